"""The adapters with the real frameworks, by the examples that documentation shows."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from dessilbi import DessiLBI, SolutionPath, SplitLBI, split_parameters

if TYPE_CHECKING:
    from types import ModuleType

    from torch import nn

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own


def example(name: str, framework: str) -> ModuleType:
    pytest.importorskip(framework)
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="module")
def hf() -> ModuleType:
    return example("hf_trainer", "transformers")


@pytest.fixture(scope="module")
def lightning() -> ModuleType:
    return example("with_lightning", "pytorch_lightning")


def same_path(one: SolutionPath, other: SolutionPath) -> bool:
    assert one.epochs == other.epochs
    return all(
        torch.equal(support, other.support(epoch)[name])
        for epoch in one.epochs
        for name, support in one.support(epoch).items()
    )


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(t, theirs[name]) for name, t in one.state_dict().items())


# ---------------------------------------------------------------------- Hugging Face


def hf_trainer(hf: ModuleType, folder: Path, opt: Any = None, **more: Any) -> Any:
    model = hf.small_llama()
    if opt is None:
        opt = SplitLBI(torch.optim.AdamW(split_parameters(model), lr=1e-2))
    kind = more.pop("kind", hf.Trainer)
    options = {"optimizers": (opt, None), "callbacks": [hf.DessilbiCallback()]} | more
    arguments = hf.arguments(folder, **options.pop("arguments", {}))
    return kind(model, arguments, train_dataset=hf.Counting(), **options)


def test_the_trainer_example(hf: ModuleType, tmp_path: Path) -> None:
    callback = hf.with_a_twin(tmp_path)
    path = callback.path
    assert path.epochs == (1, 2, 3, 4)
    assert path.density(1) < path.density(4) < 1
    assert path.layers[0].name == "model.layers.0.self_attn.q_proj.weight"
    small = hf.fewer_neurons(tmp_path)
    assert small.config.intermediate_size < 32
    assert small(torch.arange(12)[None]).logits.shape == (1, 12, 16)
    trainer = hf.every_budget(tmp_path)
    assert trainer.nested.budget_ranks is not None
    small = hf.LlamaForCausalLM.from_pretrained(tmp_path / "tenth")
    mask = trainer.nested.mask(0.1)
    weight = small.get_parameter("model.layers.0.mlp.up_proj.weight")
    assert not weight[~mask["model.layers.0.mlp.up_proj.weight"]].any()


@pytest.mark.parametrize("nested", [False, True])
def test_a_resumed_trainer_goes_on_with_its_path(
    hf: ModuleType, tmp_path: Path, nested: bool
) -> None:
    saving = {"save_strategy": "steps", "save_steps": 6, "gradient_accumulation_steps": 2}
    kind = {"kind": hf.NestedTrainer, "nested": {"min_groups": 2}} if nested else {}
    arguments = {**saving, "num_train_epochs": 3, "per_device_train_batch_size": 8}
    whole = hf_trainer(hf, tmp_path, arguments=arguments, **kind)
    whole.train()
    again = hf_trainer(hf, tmp_path, arguments=arguments, **kind)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    one, other = (t.callback_handler.callbacks for t in (whole, again))
    paths = [next(c for c in cs if isinstance(c, hf.DessilbiCallback)).path for cs in (one, other)]
    assert paths[0].epochs == (1, 2, 3)
    assert paths[0].density(3) > 0
    assert same_path(*paths)
    assert same_weights(whole.model, again.model)
    assert paths[0].default_order == ("nested" if nested else "magnitude")
    assert "density" in whole.state.log_history[-1]
    with pytest.raises(FileNotFoundError, match=r"has no dessilbi-path\.safetensors"):
        hf_trainer(hf, tmp_path / "other", arguments=arguments).train(
            resume_from_checkpoint=without_ours(tmp_path / "checkpoint-6")
        )


def without_ours(folder: Path) -> str:
    (folder / "dessilbi-path.safetensors").unlink()
    return str(folder)


def test_a_trainer_stops_when_the_support_has_settled(hf: ModuleType, tmp_path: Path) -> None:
    callback = hf.DessilbiCallback(every_steps=3, stop_when_stable=True, window=1, tolerance=1.0)
    hf_trainer(hf, tmp_path, callbacks=[callback]).train()
    first, second = callback.path.epochs[-2:]
    assert callback.path.density(first) > 0 or callback.path.density(second) > 0
    assert second < 16


def test_the_trainer_makes_the_optimizer(hf: ModuleType, tmp_path: Path) -> None:
    """By a class with named groups, or by a factory; embeddings have no twin."""
    from dessilbi.integrations.hf import TwinFactory

    def trained(*given: Any) -> DessiLBI | SplitLBI:
        trainer = hf_trainer(
            hf, tmp_path, optimizers=(None, None), optimizer_cls_and_kwargs=given,
            arguments={"num_train_epochs": 1},
        )  # fmt: skip
        named = dict(trainer.model.named_parameters())
        if "params" in given[1]:
            groups = split_parameters(trainer.model)
            given[1]["params"] = groups
        trainer.train()
        opt = trainer.optimizer.optimizer
        assert set(opt.mask()) <= named.keys()
        assert "model.embed_tokens.weight" not in opt.mask()
        return opt

    plain = trained(DessiLBI, {"params": [], "lr": 0.1})
    assert isinstance(plain, DessiLBI)
    made = trained(TwinFactory, {"lr": 1e-2, "weight_decay": 0.1, "twin": {"c": 0.5}})
    assert isinstance(made.base, torch.optim.AdamW)
    decays = {n: g["weight_decay"] for g in made.param_groups for n in g["param_names"]}
    assert decays["model.norm.weight"] == 0.0
    assert decays["lm_head.weight"] == 0.1
    assert {group["lambd"] for group in made.param_groups} == {0.5}
    assert made.param_groups[0]["nu"] != 100, "the callback has told it how long the training is"
    with pytest.raises(ValueError, match=r"the embedding 'model.embed_tokens.weight' has a twin"):
        trained(DessiLBI, {"lr": 0.1})


# ---------------------------------------------------------------------- Lightning


def test_the_lightning_example(
    lightning: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lightning.main(str(tmp_path))
    said = dict(
        line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line
    )
    densities = [float(number) for number in said["density by epoch"].split()]
    assert len(densities) == 4
    assert 0 < densities[-1] <= 1
    assert "weights kept" in said["a tenth"]


def test_a_resumed_fit_goes_on_with_its_path(lightning: ModuleType, tmp_path: Path) -> None:
    found = []
    for resume in (None, "auto"):
        torch.manual_seed(0)
        callback, module = lightning.DessilbiCallback(), lightning.Classifier()
        checkpoints = lightning.pl.callbacks.ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
        trainer = lightning.trainer(str(tmp_path), callback)
        trainer.callbacks.append(checkpoints)
        last = None if resume is None else str(tmp_path / "epoch=1.ckpt")
        trainer.fit(module, lightning.data(), ckpt_path=last)
        found.append((callback.path, module))
        assert float(trainer.callback_metrics["density"]) == pytest.approx(callback.path.density(4))
    assert found[0][0].epochs == (1, 2, 3, 4)
    assert [layer.name for layer in found[0][0].layers] == ["0.weight", "2.weight"]
    assert same_path(found[0][0], found[1][0])
    assert same_weights(found[0][1], found[1][1])


def test_a_fit_stops_when_the_support_has_settled(lightning: ModuleType, tmp_path: Path) -> None:
    callback = lightning.DessilbiCallback(
        every_steps=4, stop_when_stable=True, window=1, tolerance=1.0, network="net"
    )
    lightning.trainer(str(tmp_path), callback).fit(lightning.Classifier(), lightning.data())
    assert callback.path.density(callback.path.epochs[-1]) > 0
    assert callback.path.epochs[-1] < 32


def test_a_fit_without_end_tells_no_length(lightning: ModuleType, tmp_path: Path) -> None:
    endless = lightning.trainer(str(tmp_path), lightning.DessilbiCallback(), max_epochs=-1)
    with pytest.raises(ValueError, match="cannot tell how many steps the training has"):
        endless.fit(lightning.Classifier(), lightning.data())


def test_a_fit_reckons_with_its_schedule(lightning: ModuleType, tmp_path: Path) -> None:
    class Decaying(lightning.Classifier):  # type: ignore[name-defined,misc]
        def configure_optimizers(self) -> Any:
            opt = super().configure_optimizers()
            return [opt], [torch.optim.lr_scheduler.StepLR(opt, 2, gamma=0.1)]

    found = {}
    for kind in (lightning.Classifier, Decaying):
        callback, module = lightning.DessilbiCallback(), kind()
        lightning.trainer(str(tmp_path), callback).fit(module, lightning.data())
        group = module.optimizers(use_pl_optimizer=False).param_groups[0]
        found[kind] = group["nu"]
        assert group["tau"] == 10
    assert found[lightning.Classifier] == pytest.approx(0.1 * 32 / 10)
    assert found[Decaying] == pytest.approx((0.1 + 0.01) * 16 / 10)


# ---------------------------------------------------------------------- Accelerate, timm


def test_the_accelerate_example() -> None:
    _, recorder, nested = example("with_accelerate", "accelerate").main()
    assert recorder.path.epochs == tuple(range(1, 11))
    assert recorder.path.default_order == "nested"
    assert nested.mask(0.3) == recorder.path.mask(density=0.3)


@pytest.mark.parametrize(("name", "rate"), [("dessilbi", 0.05), ("dessilbiadamw", 1e-3)])
def test_the_timm_example(name: str, rate: float) -> None:
    pytest.importorskip("timm", reason="needs torchvision, which the tests do without")
    recorder = example("with_timm", "timm").main(name, rate)
    assert recorder.path.epochs == (10, 20, 30, 40)
    assert recorder.path.density(40) > 0


def test_the_fsdp2_example(tmp_path: Path) -> None:
    module = example("with_fsdp2", "torch")
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        recorder = module.main()
    finally:
        dist.destroy_process_group()
    assert len(recorder.path.epochs) == 10
    assert recorder.path.density(10) > 0
