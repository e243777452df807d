import importlib
import sys

import pytest
import torch

from dessilbi.lab.models import ModelError, make_model

TASK = {"num_classes": 3, "in_channels": 2, "input_size": 4}
SOURCE = """
from torch import nn

def make(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(32, num_classes))

def fits_task(*, num_classes, in_channels, input_size):
    return nn.Linear(in_channels * input_size ** 2, num_classes)

def takes_keywords(width=1, **kwargs):
    assert set(kwargs) == {"num_classes"}
    return nn.Linear(width, kwargs["num_classes"])

def takes_nothing():
    return nn.Linear(5, 7)

def lazy():
    import dessilbi_test_sibling
    return dessilbi_test_sibling.net

def pretrained():
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, 0.5)
    return layer

def gives_text():
    return "net"

def needs_more(num_classes, secret):
    return nn.Linear(secret, num_classes)

def breaks():
    raise RuntimeError("from inside")

net = nn.Linear(1, 1)
number = 3
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory with a module that is importable from nowhere else."""
    (tmp_path / "dessilbi_test_nets.py").write_text(SOURCE)
    (tmp_path / "dessilbi_test_sibling.py").write_text("from torch import nn\nnet = nn.Identity()")
    (tmp_path / "dessilbi_test_broken.py").write_text("import dessilbi_test_absent")
    (tmp_path / "dessilbi_test_vision.py").write_text("import torchvision")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("dessilbi_test_")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("attribute", "shape"),
    [
        ("make", (3, 32)),
        ("fits_task", (3, 32)),
        ("takes_keywords", (3, 1)),
        ("takes_nothing", (7, 5)),
    ],
)
@pytest.mark.usefixtures("here")
def test_the_callable_gets_what_its_signature_accepts(attribute, shape):
    model = make_model(f"dessilbi_test_nets:{attribute}", **TASK)
    (weight,) = [p for p in model.parameters() if p.ndim == 2]
    assert weight.shape == shape


@pytest.mark.usefixtures("here")
def test_weights_are_kept_unless_a_scheme_is_asked_for():
    path = "dessilbi_test_nets:pretrained"
    assert torch.all(make_model(path, **TASK).weight == 0.5)
    assert not torch.any(make_model(path, **TASK, init="he").weight == 0.5)


@pytest.mark.usefixtures("here")
def test_dtype_is_applied():
    model = make_model("dessilbi_test_nets:make", **TASK, dtype=torch.float64)
    assert all(p.dtype == torch.float64 for p in model.parameters())


@pytest.mark.usefixtures("here")
def test_the_current_directory_serves_the_call_too_and_is_taken_off_again():
    before = list(sys.path)
    make_model("dessilbi_test_nets:lazy", **TASK)
    assert sys.path == before
    with pytest.raises(ModelError):
        make_model("dessilbi_test_nets:number", **TASK)
    assert sys.path == before


def refusal(path: str) -> str:
    with pytest.raises(ModelError) as caught:
        make_model(path, **TASK)
    return str(caught.value)


@pytest.mark.parametrize("path", [":make", "nets:", "a:b:c", ".nets:make", "my nets:make"])
def test_malformed_path(path):
    assert "must read module:callable" in refusal(path)


@pytest.mark.parametrize("path", ["dessilbi_test_absent:make", "torch.dessilbi_test_absent:make"])
def test_module_not_found(path):
    message = refusal(path)
    assert "cannot import" in message
    assert "run from the directory that holds it" in message


class WithoutTorchvision:
    """An import finder that answers as an environment without torchvision does."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            raise ModuleNotFoundError("No module named 'torchvision'", name="torchvision")


@pytest.mark.parametrize("path", ["torchvision.models:resnet18", "dessilbi_test_vision:make"])
@pytest.mark.usefixtures("here")
def test_torchvision_absent_names_the_extra(path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [WithoutTorchvision(), *sys.meta_path])
    assert "dessilbi[imagenet]" in refusal(path)


@pytest.mark.usefixtures("here")
def test_an_import_that_fails_inside_the_module_is_told_apart():
    message = refusal("dessilbi_test_broken:make")
    assert "dessilbi_test_absent" in message
    assert "an import inside it failed" in message


@pytest.mark.usefixtures("here")
def test_missing_attribute_suggests_the_nearest():
    assert "has no 'mak'; did you mean 'make'?" in refusal("dessilbi_test_nets:mak")
    assert "check the part after the colon" in refusal("dessilbi_test_nets:zzzzzz")


@pytest.mark.parametrize(("attribute", "kind"), [("number", "int"), ("net", "Linear")])
@pytest.mark.usefixtures("here")
def test_what_is_no_callable_that_builds_is_refused(attribute, kind):
    message = refusal(f"dessilbi_test_nets:{attribute}")
    assert f"is a {kind}" in message
    assert "wrap it" in message


@pytest.mark.usefixtures("here")
def test_what_returns_no_module_is_refused():
    assert "must return a torch.nn.Module, got str" in refusal("dessilbi_test_nets:gives_text")


@pytest.mark.usefixtures("here")
def test_further_required_arguments_are_named():
    message = refusal("dessilbi_test_nets:needs_more")
    assert "with num_classes (missing a required argument: 'secret')" in message


def test_a_builtin_without_signature_is_refused():
    assert "wrap it in a Python function" in refusal("builtins:dict")


@pytest.mark.usefixtures("here")
def test_an_error_inside_the_callable_comes_through():
    with pytest.raises(RuntimeError, match="from inside"):
        make_model("dessilbi_test_nets:breaks", **TASK)


def test_torchvision_itself_when_it_is_there():
    try:
        importlib.import_module("torchvision")
    except ImportError:
        pytest.skip("torchvision is not installed")
    model = make_model("torchvision.models:resnet18", num_classes=10, in_channels=3, input_size=32)
    assert model.fc.out_features == 10
