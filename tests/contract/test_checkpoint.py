"""torch.distributed.checkpoint: asking for state moves nothing, a checkpoint continues exactly.

To make empty state it calls ``step()`` with lr 0 and zero gradients, before the first real step.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from contract_problems import (
    IMPLEMENTATIONS,
    LIVELY,
    VARIANTS,
    SmallNet,
    assert_same,
    run,
    split_net,
    state_of,
    train,
)
from contract_ranks import WORLD, full, results_of, run_cases, snapshot
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from dessilbi.optim import DessiLBI, SplitLBI, split_parameters

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]

ASKED = {
    **VARIANTS,
    "tensor_lr": {"lr": torch.tensor(0.1, dtype=torch.float64), "momentum": 0.9},
    "all_decays": {
        "weight_decay": 0.1,
        "decoupled_weight_decay": True,
        "coupling": "momentum",
        "momentum": 0.9,
        "lambd_scale": "init",
        "lambd": 0.1,
    },
    "l2_inside": {"weight_decay": 0.1, "coupling": "momentum", "momentum": 0.9},
}
STORED: dict[str, dict[str, Any]] = {
    "naive": {},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "init": {"lambd_scale": "init", "lambd": 0.2},
    "tensor_lr": {"lr": torch.tensor(0.1, dtype=torch.float64)},
    "adamw": {"base": "adamw", "lambd_scale": "init", "lambd": 0.2},
}
FLAT = [pytest.param(False, id="nested"), pytest.param(True, id="flat")]


def _plain_groups(net: SmallNet, options: dict[str, Any]) -> DessiLBI:
    """Without penalties by group, so that the options decide."""
    return DessiLBI(net.named_parameters(), **deepcopy({**LIVELY, **options}))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ASKED)
def test_asking_for_state_moves_nothing(name: str, implementation: dict[str, Any]) -> None:
    """W, V and buffers are as if nobody had asked, and training goes on bit by bit."""
    options = {**ASKED[name], **implementation}
    asked, plain = SmallNet(), SmallNet()
    opt, expected = _plain_groups(asked, options), _plain_groups(plain, options)
    lr = opt.param_groups[0]["lr"]

    state = get_optimizer_state_dict(asked, opt)
    assert opt.param_groups[0]["lr"] == lr
    for p, q in zip(asked.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p, q)
        for key in opt.state[p].keys() - {"lambd_scale"}:
            assert not opt.state[p][key].any(), key
    assert {"v"} <= state["state"]["conv1.weight"].keys() or name == "no_twin"
    assert opt.density() == 0.0

    train(asked, opt, 4)
    train(plain, expected, 4)
    assert_same(state_of(opt), state_of(expected))


@pytest.mark.parametrize("base", [{}, {"fused": True}, {"foreach": True}], ids=str)
def test_asking_begins_the_twin_of_another_base_at_zero(base: dict[str, Any]) -> None:
    net = SmallNet()
    groups = split_parameters(net)
    opt = SplitLBI(torch.optim.AdamW(groups, lr=0.1, weight_decay=0.1, **base), nu=2.0, c=0.1)
    state = get_optimizer_state_dict(net, opt)["state"]
    assert {"v", "lambd_scale", "exp_avg"} <= state["conv1.weight"].keys()
    assert not any(opt.dual(p).any() for _, p in opt.twins())
    for p, q in zip(net.parameters(), SmallNet().parameters(), strict=True):
        assert torch.equal(p, q)
    train(net, opt, 4)
    assert opt.density() > 0


@pytest.mark.parametrize("options", [{"momentum": 0.9, "weight_decay": 0.1}, {"base": "adamw"}])
def test_asking_later_moves_nothing_either(options: dict[str, Any]) -> None:
    net = SmallNet()
    opt = split_net(net, options)
    train(net, opt, 3)
    before = state_of(opt)
    get_optimizer_state_dict(net, opt)
    assert_same(state_of(opt), before)


def test_group_at_lr_zero_is_at_rest() -> None:
    """The paper's decay is not scaled by lr; a frozen group must not shrink all the same."""
    net = SmallNet()
    options = {"weight_decay": 0.1, "decoupled_weight_decay": True, "lr": 0.0, "momentum": 0.9}
    opt = split_net(net, options)
    run(opt, 3)
    for p, q in zip(net.parameters(), SmallNet().parameters(), strict=True):
        assert torch.equal(p, q)
        assert "v" not in opt.state[p] or not opt.state[p]["v"].any()
        assert opt.state[p]["momentum_buffer"].any(), "a real gradient is remembered as in SGD"


def _save(net: SmallNet, opt: DessiLBI, folder: Path | str, flat: bool, alone: bool) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model_state, opt_state = get_state_dict(net, opt, options=options)
    dcp.save({"model": model_state, "opt": opt_state}, checkpoint_id=folder, no_dist=alone)


def _load(net: SmallNet, opt: DessiLBI, folder: Path | str, flat: bool, alone: bool) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model_state, opt_state = get_state_dict(net, opt, options=options)
    state = {"model": model_state, "opt": opt_state}
    dcp.load(state, checkpoint_id=folder, no_dist=alone)
    set_state_dict(
        net,
        opt,
        model_state_dict=state["model"],
        optim_state_dict=state["opt"],
        options=options,
    )


@pytest.mark.parametrize("flat", FLAT)
@pytest.mark.parametrize("name", STORED)
def test_round_trip_in_one_process(name: str, flat: bool, tmp_path: Path) -> None:
    """Twins, plain tensors without any state (biases) and options all come back."""
    net, other = SmallNet(), SmallNet(seed=1)
    opt = split_net(net, STORED[name])
    train(net, opt, 4)
    _save(net, opt, tmp_path, flat, alone=True)
    loaded = split_net(other, {"lr": opt.param_groups[0]["lr"] * 0, "nu": 77.0, **STORED[name]})
    _load(other, loaded, tmp_path, flat, alone=True)
    assert_same(state_of(loaded), state_of(opt))
    assert loaded.param_groups[0]["nu"] == opt.param_groups[0]["nu"]
    train(net, opt, 3, start=4)
    train(other, loaded, 3, start=4)
    assert_same(state_of(loaded), state_of(opt))


# ---------------------------------------------------------------------- two ranks


def _sharded(seed: int = 0, dtype: torch.dtype = torch.float64) -> SmallNet:
    net = SmallNet(seed).to(dtype)
    fully_shard(net, mesh=init_device_mesh("cpu", (WORLD,)))
    return net


def _round_trip(rank: int, options: dict[str, Any], folder: str, flat: bool) -> Any:
    """Snapshots: saved, loaded, both after three more steps."""
    part = slice(2 * rank, 2 * rank + 2)
    net, other = _sharded(), _sharded(seed=1)
    opt, loaded = split_net(net, options), split_net(other, options)
    train(net, opt, 4, part=part)
    saved = snapshot(net, opt)
    _save(net, opt, folder, flat, alone=False)
    _load(other, loaded, folder, flat, alone=False)
    came_back = snapshot(other, loaded)
    train(net, opt, 3, start=4, part=part)
    train(other, loaded, 3, start=4, part=part)
    return saved, came_back, snapshot(net, opt), snapshot(other, loaded)


def _asking(rank: int, options: dict[str, Any]) -> Any:
    part = slice(2 * rank, 2 * rank + 2)
    net, plain = _sharded(), _sharded()
    opt, expected = split_net(net, options), split_net(plain, options)
    get_optimizer_state_dict(net, opt)
    asked = [full(p.detach()) for p in net.parameters()]
    train(net, opt, 4, part=part)
    train(plain, expected, 4, part=part)
    return asked, snapshot(net, opt), snapshot(plain, expected)


def _bf16_dual_survives(rank: int) -> Any:
    net, other = _sharded(dtype=torch.bfloat16), _sharded(dtype=torch.bfloat16)
    opt, loaded = split_net(net, {"momentum": 0.9}), split_net(other, {"momentum": 0.9})
    for k in range(3):
        for p in net.parameters():
            p.grad = torch.ones_like(p) / (k + 3)
        opt.step()
    set_optimizer_state_dict(other, loaded, get_optimizer_state_dict(net, opt))
    vs = [full(o.state[m.conv1.weight]["v"]) for m, o in ((net, opt), (other, loaded))]
    return vs, vs[0].dtype, torch.equal(vs[0], vs[0].bfloat16().float())


def _full_state(rank: int, options: dict[str, Any]) -> Any:
    """A gathered state dict, loaded back into shards."""
    part = slice(2 * rank, 2 * rank + 2)
    net, other = _sharded(), _sharded()
    opt, loaded = split_net(net, options), split_net(other, options)
    train(net, opt, 4, part=part)
    how = StateDictOptions(full_state_dict=True)
    model_state, opt_state = get_state_dict(net, opt, options=how)
    set_state_dict(
        other, loaded, model_state_dict=model_state, optim_state_dict=opt_state, options=how
    )
    return snapshot(net, opt), snapshot(other, loaded)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> dict[str, list[Any]]:
    cases: dict[str, Any] = {"bf16": _bf16_dual_survives}
    for name, options in STORED.items():
        cases[f"asking-{name}"] = partial(_asking, options=options)
        cases[f"full-{name}"] = partial(_full_state, options=options)
        for flat in (False, True):
            where = str(folder / f"{name}-{flat}")
            cases[f"{name}-{flat}"] = partial(_round_trip, options=options, folder=where, flat=flat)
    return run_cases(cases, folder / "ranks")


@pytest.mark.parametrize("flat", FLAT)
@pytest.mark.parametrize("name", STORED)
def test_round_trip_on_two_ranks(name: str, flat: bool, ranks: dict[str, list[Any]]) -> None:
    for saved, came_back, later, loaded_later in results_of(ranks[f"{name}-{flat}"]):
        assert_same(saved, came_back)
        assert_same(later, loaded_later)


@pytest.mark.parametrize("flat", FLAT)
@pytest.mark.parametrize("name", STORED)
def test_two_ranks_reshard_to_one(
    name: str, flat: bool, ranks: dict[str, list[Any]], folder: Path
) -> None:
    saved, _, later, _ = results_of(ranks[f"{name}-{flat}"])[0]
    net = SmallNet(seed=1)
    opt = split_net(net, STORED[name])
    _load(net, opt, folder / f"{name}-{flat}", flat, alone=True)
    assert_same(snapshot(net, opt), saved)
    train(net, opt, 3, start=4)
    for key, value in snapshot(net, opt).items():
        torch.testing.assert_close(value, later[key], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", STORED)
def test_asking_on_two_ranks_moves_nothing(name: str, ranks: dict[str, list[Any]]) -> None:
    for asked, with_it, without in results_of(ranks[f"asking-{name}"]):
        for got, p in zip(asked, SmallNet().parameters(), strict=True):
            assert torch.equal(got, p)
        if name != "adamw":  # which counts the step that torch made to ask
            assert_same(with_it, without)


@pytest.mark.parametrize("name", STORED)
def test_full_state_dict_on_two_ranks(name: str, ranks: dict[str, list[Any]]) -> None:
    for saved, loaded in results_of(ranks[f"full-{name}"]):
        assert_same(saved, loaded)


def test_bf16_dual_survives_on_two_ranks(ranks: dict[str, list[Any]]) -> None:
    for (v, loaded), dtype, representable in results_of(ranks["bf16"]):
        assert dtype is torch.float32
        assert not representable, "the test needs values that bf16 cannot hold"
        assert torch.equal(v, loaded)
