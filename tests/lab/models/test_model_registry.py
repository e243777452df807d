import pytest
import torch

from dessilbi.lab.models import MODELS, ModelError, make_model

TEXT = ["char-gpt", "char-gpt-tiny"]
LIGHT = [name for name in MODELS if name not in {"resnet-110", "resnet-50", *TEXT}]
TASK = {"num_classes": 6, "in_channels": 2, "input_size": 32}


def test_the_registry_holds_every_net_of_the_paper():
    resnets = {f"resnet-{depth}" for depth in (20, 32, 44, 50, 56, 110)}
    others = {"lenet-5", "lenet-300-100", "lenet-3", "conv-2", "conv-4", "vgg-16"}
    ours = {"digits-net", "vgg-4", "vgg-7", "resnet-8"}
    assert set(MODELS) == resnets | others | ours | set(TEXT)


@pytest.mark.parametrize("name", LIGHT)
def test_float64_forward_and_a_gradient_for_every_parameter(name):
    torch.manual_seed(0)
    model = make_model(name, **TASK, dtype=torch.float64)
    # Eval mode: before a BatchNorm over one pixel, training mode makes some gradients vanish.
    out = model.eval()(torch.rand(2, 2, 32, 32, dtype=torch.float64))
    assert out.shape == (2, 6)
    assert out.dtype == torch.float64
    out.square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert torch.count_nonzero(parameter.grad) > 0, parameter_name


@pytest.mark.parametrize("name", TEXT)
def test_a_language_model_says_what_follows_each_character_and_looks_at_none_after_it(name):
    torch.manual_seed(0)
    task = {"num_classes": 7, "in_channels": 0, "input_size": 12}
    model = make_model(name, **task, dtype=torch.float64)
    text = torch.randint(7, (2, 12))
    logits = model(text)
    assert logits.shape == (2, 12, 7)
    later = text.clone()
    later[:, 8:] = (later[:, 8:] + 1) % 7
    torch.testing.assert_close(model(later)[:, :8], logits[:, :8], rtol=0, atol=1e-12)
    assert not torch.allclose(model(later)[:, 8:], logits[:, 8:])
    torch.testing.assert_close(model(text[:, :5]), logits[:, :5], rtol=0, atol=1e-12)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.count_nonzero() for p in model.parameters())


def test_char_gpt_has_the_weights_and_the_names_of_its_layers():
    model = make_model("char-gpt", num_classes=65, in_channels=0, input_size=64)
    block = 12 * 128**2 + 2 * 128
    assert sum(p.numel() for p in model.parameters()) == 4 * block + (65 + 64 + 65 + 1) * 128
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes["blocks.3.attn.qkv.weight"] == (384, 128)
    assert shapes["blocks.0.mlp.fc.weight"] == (512, 128)
    assert shapes["blocks.0.mlp.proj.weight"] == (128, 512)
    assert shapes["head.weight"] == (65, 128)


def test_attention_is_softmax_of_scaled_products_of_each_head():
    torch.manual_seed(0)
    attn = make_model("char-gpt-tiny", num_classes=5, in_channels=0, input_size=6).blocks[0].attn
    attn, x = attn.double(), torch.randn(3, 6, 16, dtype=torch.float64)
    q, k, v = (x @ w.T for w in attn.qkv.weight.split(16))
    heads = []
    for part in (slice(0, 8), slice(8, 16)):
        scores = q[..., part] @ k[..., part].mT / 8**0.5
        scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(-1) @ v[..., part])
    torch.testing.assert_close(attn(x), torch.cat(heads, -1) @ attn.proj.weight.T)


@pytest.mark.parametrize(
    ("name", "channels", "message"),
    [
        ("char-gpt", 1, "char-gpt reads texts, got images .*choose one of digits-net"),
        ("lenet-5", 0, "lenet-5 reads images, got a text .*choose one of char-gpt"),
    ],
)
def test_a_net_for_images_is_not_given_a_text_nor_the_other_way_round(name, channels, message):
    with pytest.raises(ModelError, match=message):
        make_model(name, num_classes=10, in_channels=channels, input_size=32)


def test_training_mode_runs_forward_and_backward():
    model = make_model("resnet-20", **TASK)
    model(torch.rand(4, 2, 32, 32)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_one_seed_gives_the_same_net_in_both_precisions():
    weights = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        weights.append(make_model("digits-net", **TASK, dtype=dtype).conv2.weight)
    assert torch.equal(weights[0].double(), weights[1])


def test_he_is_the_initialisation_of_named_nets():
    nets = []
    for init in ({}, {"init": "he"}, {"init": "default"}):
        torch.manual_seed(0)
        nets.append(make_model("digits-net", **TASK, **init).fc.weight)
    assert torch.equal(nets[0], nets[1])
    assert not torch.equal(nets[0], nets[2])


@pytest.mark.parametrize(("wrong", "right"), [("resnet56", "resnet-56"), ("LeNet5", "lenet-5")])
def test_unknown_name_suggests_the_nearest_and_lists_all(wrong, right):
    with pytest.raises(ModelError, match=f"'{wrong}'; did you mean '{right}'") as caught:
        make_model(wrong, **TASK)
    assert all(name in str(caught.value) for name in MODELS)


def test_unknown_name_without_a_near_one_names_the_import_path():
    with pytest.raises(ModelError, match=r"'qqq'\. Known: .*with a colon") as caught:
        make_model("qqq", **TASK)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "least"), [("num_classes", 1), ("in_channels", 0), ("input_size", 1)]
)
def test_the_task_must_be_positive(argument, least):
    with pytest.raises(ModelError, match=f"{argument} must be >= {least}, got {least - 1}"):
        make_model("lenet-5", **{**TASK, argument: least - 1})


@pytest.mark.parametrize(
    ("name", "smallest"),
    [
        ("digits-net", 2),
        ("lenet-5", 28),
        ("conv-2", 2),
        ("conv-4", 4),
        ("vgg-4", 8),
        ("vgg-16", 32),
    ],
)
def test_the_smallest_image_a_net_can_read(name, smallest):
    task = {"num_classes": 3, "in_channels": 1}
    images = torch.rand(2, 1, smallest, smallest)
    assert make_model(name, **task, input_size=smallest)(images).shape == (2, 3)
    with pytest.raises(ModelError, match=f"{name} needs input_size >= {smallest}, got"):
        make_model(name, **task, input_size=smallest - 1)


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ModelError, match="init must be one of"):
        make_model("digits-net", **TASK, init="")
