"""Two gloo ranks equal one process: DDP, FSDP2, and DTensors with groups whole or spread."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from contract_problems import (
    LIVELY,
    SmallNet,
    has_compiler,
    make_grads,
    make_params,
    split_net,
    train,
)
from contract_ranks import WORLD, full, results_of, run_cases, snapshot
from contract_sharded import CASES as SHARDED_CASES
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from dessilbi.optim import DessiLBI, SplitLBI, split_parameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.tensor.placement_types import Placement

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")

STEPS = 8
NAIVE: dict[str, Any] = {}
FSDP_OPTIONS: dict[str, dict[str, Any]] = {
    "naive": NAIVE,
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "coupling": {"momentum": 0.5, "coupling": "momentum", "kappa": 2.0},
    "decoupled": {"weight_decay": 0.01, "decoupled_weight_decay": True},
    "init": {"lambd_scale": "init", "lambd": 0.2},
    "size": {"lambd_scale": "size", "lambd": 0.06},
    "foreach": {"foreach": True, "momentum": 0.9},
    "tensor_lr": {"lr": torch.tensor(0.1, dtype=torch.float64)},
    "adamw": {"base": "adamw"},
    "adamw_init": {"base": "adamw", "lambd_scale": "init", "lambd": 0.2},
}
if has_compiler():
    FSDP_OPTIONS["fused"] = {"fused": True, "momentum": 0.9, "weight_decay": 0.01}
    FSDP_OPTIONS["fused_adamw"] = {"fused": True, "base": "adamw"}
    FSDP_OPTIONS["fused_init"] = {"fused": True, "lambd_scale": "init", "lambd": 0.2}


def _ddp(rank: int) -> dict[str, Tensor]:
    net = DistributedDataParallel(SmallNet())
    opt = split_net(net.module, {"momentum": 0.9})
    train(net, opt, STEPS, part=slice(2 * rank, 2 * rank + 2))
    return snapshot(net.module, opt)


def _ddp_adamw(rank: int) -> dict[str, Tensor]:
    net = DistributedDataParallel(NeuronNet())
    opt = SHARDED["neurons, AdamW"](net.module)
    train(net, opt, STEPS, part=slice(2 * rank, 2 * rank + 2))
    return snapshot(net.module, opt)


class SummedNet(nn.Module):
    """Two convolutions that write to one stream."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 5, 3, padding=1, dtype=torch.float64)
        self.conv2 = nn.Conv2d(5, 5, 3, padding=1, dtype=torch.float64)
        self.fc = nn.Linear(5, 3, dtype=torch.float64)
        g = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in self.parameters():
                sizes = torch.linspace(0.1, 1, len(p)).double().view(-1, *[1] * (p.ndim - 1))
                p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64) * sizes / 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        out: Tensor = self.fc(torch.tanh(x + self.conv2(torch.tanh(x))).mean((2, 3)))
        return out


def _tied(rank: int | None) -> dict[str, Tensor]:
    """Filters that enter together; rank None is the single process."""
    net = SummedNet()
    example = torch.zeros(1, 2, 5, 5, dtype=torch.float64)
    groups = split_parameters(net, exclude=["fc"], tied=True, example_input=example)
    opt = DessiLBI(groups, **{**LIVELY, "lambd_scale": "size", "lambd": 0.05, "momentum": 0.9})
    if rank is None:
        train(net, opt, STEPS)
    else:
        train(DistributedDataParallel(net), opt, STEPS, part=slice(2 * rank, 2 * rank + 2))
    return snapshot(net, opt)


class NeuronNet(nn.Module):
    """Two linear layers: a neuron is a row of the first and a column of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(50, 7, dtype=torch.float64)
        self.down = nn.Linear(7, 3, dtype=torch.float64)
        g = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64) / 4)
            self.up.weight.mul_(torch.linspace(0.1, 1, 7, dtype=torch.float64)[:, None])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.tanh(self.up(x.flatten(1))))
        return out


def neurons(net: NeuronNet) -> list[dict[str, Any]]:
    """Its parameter groups, neurons tied."""
    weights = [("up.weight", net.up.weight), ("down.weight", net.down.weight)]
    twins = {"params": weights, "penalty": "group_lasso", "group_dim": (0, 1), "tied": True}
    biases = [("up.bias", net.up.bias), ("down.bias", net.down.bias)]
    return [twins, {"params": biases, "penalty": None}]


SHARDED: dict[str, Callable[[nn.Module], DessiLBI | SplitLBI]] = {
    "tied filters": lambda net: DessiLBI(
        split_parameters(
            net,
            exclude=["fc"],
            tied=True,
            example_input=torch.zeros(1, 2, 5, 5, dtype=torch.float64),
        ),
        lr=0.1,
        nu=2.0,
        lambd=0.3,
        momentum=0.9,
    ),
    "neurons": lambda net: DessiLBI(neurons(net), lr=0.1, nu=2.0, lambd=0.3, fused=has_compiler()),
    "neurons, AdamW": lambda net: SplitLBI(
        torch.optim.AdamW(neurons(net), lr=0.01), nu=0.2, lambd=0.3, fused=has_compiler()
    ),
    "elements, AdamW": lambda net: SplitLBI(
        torch.optim.AdamW(split_parameters(net), lr=0.1), nu=2.0, c=0.3
    ),
}


def _sharded(rank: int | None, name: str) -> dict[str, Tensor]:
    """FSDP2 on two ranks; rank None is the single process."""
    net = SummedNet() if name == "tied filters" else NeuronNet()
    tied = SHARDED[name](net).param_groups  # read off the network before it is sharded
    if rank is not None:
        fully_shard(net, mesh=init_device_mesh("cpu", (WORLD,)))
    mine = dict(net.named_parameters())
    opt = SHARDED[name](net) if "filters" not in name else None
    if opt is None:
        groups = [
            {
                "params": [(n, mine[n]) for n in group["param_names"]],
                **{k: group[k] for k in ("penalty", "group_dim", "tied")},
            }
            for group in tied
        ]
        opt = DessiLBI(groups, lr=0.1, nu=2.0, lambd=0.3, momentum=0.9)
    part = slice(None) if rank is None else slice(2 * rank, 2 * rank + 2)
    train(net, opt, STEPS, part=part)
    return snapshot(net, opt)


def _fsdp(rank: int, options: dict[str, Any]) -> dict[str, Tensor]:
    net = SmallNet()
    fully_shard(net, mesh=init_device_mesh("cpu", (WORLD,)))
    opt = split_net(net, options)
    train(net, opt, STEPS, part=slice(2 * rank, 2 * rank + 2))
    return snapshot(net, opt)


def _one_process(options: dict[str, Any]) -> dict[str, Tensor]:
    net = SmallNet()
    opt = split_net(net, options)
    train(net, opt, STEPS)
    return snapshot(net, opt)


# A tensor, how it lies on the ranks, and its groups. 5 and 7 do not divide by 2, 1 leaves a rank
# with nothing.
LAYOUTS = [
    (shape, shard, dim)
    for shape in [(5, 3, 2, 2), (5, 7), (1, 3), (3, 1)]
    for shard in (0, 1)
    for dim in (0, 1)
]
DTENSOR_OPTIONS: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9, "weight_decay": 0.1},
    "inside": {"momentum": 0.9, "nesterov": True, "coupling": "momentum", "maximize": True},
    "init": {
        "lambd_scale": "init",
        "lambd": 0.2,
        "weight_decay": 0.01,
        "decoupled_weight_decay": True,
        "fused": has_compiler() or None,
    },
}


def dtensor(
    rank: int | None,
    shape: tuple[int, ...],
    placements: tuple[Placement, ...],
    options: dict[str, Any],
    grad_placements: tuple[Placement, ...] | None = None,
    mesh_shape: tuple[int, ...] = (WORLD,),
) -> dict[str, Tensor]:
    """Steps on a distributed tensor beside a plain one; rank None is the single process."""
    named = make_params(shapes={"spread": shape, "plain": (3, 4)})
    plain_params = list(named.values())
    mesh = None if rank is None else init_device_mesh("cpu", mesh_shape)

    def place(t: Tensor, how: tuple[Placement, ...]) -> Tensor:
        return t if mesh is None else distribute_tensor(t, mesh, list(how))

    if mesh is not None:
        named["spread"] = nn.Parameter(place(named["spread"].detach(), placements))
    opt = DessiLBI(named.items(), **{**LIVELY, **options})
    for k in range(6):
        grads = make_grads(plain_params, k)
        named["spread"].grad = place(grads[0], grad_placements or placements)
        named["plain"].grad = grads[1]
        opt.step()
    found = {}
    for name, p in named.items():
        found |= {f"{name}.W": full(p.detach())}
        found |= {f"{name}.{key}": full(value) for key, value in opt.state[p].items()}
        found |= {f"{name}.gamma": full(opt.gamma(p)), f"{name}.support": full(opt.support(p))}
        found |= {f"{name}.density": torch.tensor(opt.density(p))}
    return found


DTENSOR_CASES: dict[str, dict[str, Any]] = {
    f"{'x'.join(map(str, shape))}-shard{shard}-groups{dim}-{name}": {
        "shape": shape,
        "placements": (Shard(shard),),
        "options": {"penalty": "group_lasso", "group_dim": dim, **options},
    }
    for shape, shard, dim in LAYOUTS
    for name, options in DTENSOR_OPTIONS.items()
}
DTENSOR_CASES |= {
    "lasso-init": {
        "shape": (5, 3),
        "placements": (Shard(1),),
        "options": {"penalty": "lasso", "lambd_scale": "init", "lambd": 0.2},
    },
    "replicated": {"shape": (5, 3, 2), "placements": (Replicate(),), "options": {}},
    "replicated-gradient": {
        "shape": (5, 3, 2),
        "placements": (Shard(0),),
        "options": {"momentum": 0.9},
        "grad_placements": (Replicate(),),
    },
    "two-dim-mesh": {
        "shape": (5, 3, 2),
        "placements": (Replicate(), Shard(0)),
        "options": {},
        "mesh_shape": (1, 2),
    },
    "two-dim-mesh-spread": {
        "shape": (5, 3, 2),
        "placements": (Shard(0), Shard(1)),
        "options": {"momentum": 0.9, "lambd_scale": "init", "lambd": 0.2},
        "mesh_shape": (1, 2),
    },
}


def _partial_is_refused(rank: int) -> str:
    mesh: DeviceMesh = init_device_mesh("cpu", (WORLD,))
    p = nn.Parameter(DTensor.from_local(torch.ones(3, 4), mesh, [Partial()]))
    opt = DessiLBI([p])
    p.grad = DTensor.from_local(torch.ones(3, 4), mesh, [Partial()])
    try:
        opt.step()
    except RuntimeError as error:
        return str(error)
    return "no error"


def _partial_gradient(rank: int) -> dict[str, Tensor]:
    """A gradient that still has to be summed over the ranks is summed, and itself unchanged."""
    mesh = init_device_mesh("cpu", (WORLD,))
    W, g = (t.detach() for t in make_params(shapes={"W": (5, 3, 2), "g": (5, 3, 2)}).values())
    p = nn.Parameter(distribute_tensor(W, mesh, [Shard(0)]))
    opt = DessiLBI([p], **LIVELY)
    p.grad = DTensor.from_local(g / 2, mesh, [Partial()])
    opt.step()
    return {"W": full(p.detach()), "grad": p.grad.to_local(), "given": g / 2}


def _looking_before_the_first_step(rank: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (WORLD,))
    net = SmallNet()
    fully_shard(net, mesh=mesh)
    opt = split_net(net, {"lambd_scale": "init"})
    p = net.conv1.weight
    return {
        "density": opt.density(),
        "gamma": full(opt.gamma(p)),
        "support": full(opt.support(p)),
        "state": len(opt.state),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Every case in one pair of processes; a spawn costs seconds."""
    cases: dict[str, Any] = {
        "ddp": _ddp,
        "tied": _tied,
        "partial": _partial_is_refused,
        "partial-gradient": _partial_gradient,
        "looking": _looking_before_the_first_step,
    }
    cases |= {f"fsdp-{name}": partial(_fsdp, options=o) for name, o in FSDP_OPTIONS.items()}
    cases |= {f"sharded-{name}": partial(_sharded, name=name) for name in SHARDED}
    cases |= {"ddp-adamw": _ddp_adamw}
    cases |= {name: partial(dtensor, **kwargs) for name, kwargs in DTENSOR_CASES.items()}
    return run_cases(cases | SHARDED_CASES, tmp_path_factory.mktemp("ranks"))


def _assert_equal_one_process(outcome: list[Any], expected: dict[str, Tensor]) -> None:
    for got in results_of(outcome):
        assert got.keys() == expected.keys()
        for key in expected:
            torch.testing.assert_close(
                got[key],
                expected[key],
                rtol=1e-12,
                atol=1e-12,
                msg=lambda m, k=key: f"{k}: {m}",
            )


def test_ddp(ranks: dict[str, list[Any]]) -> None:
    """Bit-identical on all ranks, close to one process at the same global batch."""
    first, second = results_of(ranks["ddp"])
    for key in first:
        assert torch.equal(first[key], second[key]), key
    _assert_equal_one_process(ranks["ddp"], _one_process({"momentum": 0.9}))


def test_ddp_with_tied_filters(ranks: dict[str, list[Any]]) -> None:
    first, second = results_of(ranks["tied"])
    for key in first:
        assert torch.equal(first[key], second[key]), key
    expected = _tied(None)
    assert 0 < expected["density"] < 1
    one, two = (expected[f"conv{i}.weight.support"].flatten(1).any(1) for i in (1, 2))
    assert torch.equal(one, two)
    _assert_equal_one_process(ranks["tied"], expected)


@pytest.mark.parametrize("name", SHARDED)
def test_tied_groups_and_other_bases_in_shards(name: str, ranks: dict[str, list[Any]]) -> None:
    expected = _sharded(None, name)
    assert 0 < expected["density"] < 1
    _assert_equal_one_process(ranks[f"sharded-{name}"], expected)


def test_ddp_around_adamw(ranks: dict[str, list[Any]]) -> None:
    first, second = results_of(ranks["ddp-adamw"])
    for key in first:
        assert torch.equal(first[key], second[key]), key
    expected = _sharded(None, "neurons, AdamW")
    _assert_equal_one_process(ranks["ddp-adamw"], expected)


@pytest.mark.parametrize("name", FSDP_OPTIONS)
def test_fsdp(name: str, ranks: dict[str, list[Any]]) -> None:
    """Five filters on two ranks, and one filter: a rank with an empty shard."""
    expected = _one_process(FSDP_OPTIONS[name])
    assert 0 < expected["density"] < 1, "a test on an empty or full Gamma shows little"
    _assert_equal_one_process(ranks[f"fsdp-{name}"], expected)


@pytest.mark.parametrize("name", DTENSOR_CASES)
def test_dtensor(name: str, ranks: dict[str, list[Any]]) -> None:
    """Also where the groups are spread over the ranks."""
    _assert_equal_one_process(ranks[name], dtensor(None, **DTENSOR_CASES[name]))


def test_partial_parameter_is_refused(ranks: dict[str, list[Any]]) -> None:
    for message in results_of(ranks["partial"]):
        assert "Partial placement" in message
        assert "redistribute it to Shard or Replicate" in message


def test_partial_gradient(ranks: dict[str, list[Any]]) -> None:
    W, g = (t.detach() for t in make_params(shapes={"W": (5, 3, 2), "g": (5, 3, 2)}).values())
    p = nn.Parameter(W)
    p.grad = g
    DessiLBI([p], **LIVELY).step()
    for got in results_of(ranks["partial-gradient"]):
        torch.testing.assert_close(got["W"], p.detach(), rtol=1e-12, atol=1e-12)
        assert torch.equal(got["grad"], got["given"])


def test_looking_before_the_first_step(ranks: dict[str, list[Any]]) -> None:
    for got in results_of(ranks["looking"]):
        assert got["density"] == 0.0
        assert not got["gamma"].any()
        assert not got["support"].any()
        assert got["state"] == 0


@pytest.mark.parametrize("name", sorted(SHARDED_CASES.keys() - {"refused"}))
def test_paths_masks_and_nested_training(name: str, ranks: dict[str, list[Any]]) -> None:
    """Of parameters of which each rank holds a part, or nothing."""
    _assert_equal_one_process(ranks[name], SHARDED_CASES[name](None))


def test_what_needs_whole_weights_refuses_parts_of_them(ranks: dict[str, list[Any]]) -> None:
    for pruning, network, smaller in results_of(ranks["refused"]):
        assert "PathRecorder, NestedTraining, project and HeldMask take sharded ones" in pruning
        assert "use project(model, nested.mask(density)), there or on a model" in network
        assert "each rank holds a part of the weights" in smaller
