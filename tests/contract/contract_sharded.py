"""Paths, masks and nested training of sharded parameters, as cases for two ranks or one process."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from contract_problems import LIVELY, SmallNet, make_batch, split_net
from contract_ranks import WORLD, full
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from dessilbi import (
    DessiLBI,
    GradualPruning,
    HeldMask,
    Mask,
    NestedSchedule,
    NestedTraining,
    PathRecorder,
    compact,
    project,
    split_parameters,
)

EARLY = NestedSchedule(
    min_density=0.1, max_density=1.0, ramp_start=0.0, ramp_end=0.0, rank_every=3, full_fraction=0.4
)


def place(net: nn.Module, rank: int | None, *, wrapped: bool = False) -> nn.Module:
    if rank is None:
        return net
    if wrapped:
        return DistributedDataParallel(net)
    fully_shard(net.fc)  # one layer by itself, the others with the root
    return fully_shard(net, mesh=init_device_mesh("cpu", (WORLD,)))


def own(k: int, rank: int | None) -> tuple[Tensor, Tensor]:
    x, y = make_batch(k)
    part = slice(None) if rank is None else slice(2 * rank, 2 * rank + 2)
    return x[part], y[part]


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: full(p.detach()).clone() for name, p in net.named_parameters()}


def recorded(rank: int | None, **options: Any) -> dict[str, Any]:
    """The path, and the outputs of the network that its mask leaves."""
    net = place(SmallNet(), rank)
    opt = split_net(net, options)
    recorder = PathRecorder(net, opt)
    for k in range(12):
        x, y = own(k, rank)
        opt.zero_grad()
        mse_loss(net(x), y).backward()
        opt.step()
        if k % 4 == 3:
            recorder.record(k // 4 + 1)
    path, found = recorder.path, {}
    for layer in path.layers:
        found |= {f"{layer.name}.{i}": t for i, t in enumerate(path.events(layer.name))}
        for epoch in path.epochs:
            norms = path.norms(epoch, layer.name)
            found |= {f"{layer.name}.{epoch}.{i}": n for i, n in enumerate(norms)}
            found[f"{layer.name}.{epoch}"] = path.support(epoch)[layer.name]
    found["gap"] = torch.tensor([path.gap(epoch) for epoch in path.epochs])
    before, mask = weights(net), path.mask(density=0.4, min_groups=0)
    x = make_batch(0)[0]
    with torch.no_grad():
        found["dense"] = net(x)
        with project(net, mask):
            found["masked"] = net(x)
        found["dense again"] = net(x)
    assert torch.equal(found["dense"], found["dense again"])
    assert not torch.equal(found["dense"], found["masked"])
    if hasattr(net, "reshard"):
        net.reshard()
    assert all(torch.equal(W, before[name]) for name, W in weights(net).items())
    HeldMask(net, mask, opt)
    opt.zero_grad()
    mse_loss(net(x), make_batch(0)[1]).backward()
    opt.step()
    found |= weights(net)
    assert all(bool((found[name][~mask[name]] == 0).all()) for name in mask.names)
    return found


def nested(rank: int | None, *, base: str, how: str) -> dict[str, Tensor]:
    """Weights and budgets after some steps of nested training, by FSDP2 or DDP."""
    net = place(SmallNet(), rank, wrapped="ddp" in how)
    bare = net.module if isinstance(net, DistributedDataParallel) else net
    groups = split_parameters(bare, {"fc": {"lambd": 0.1}})
    opt: Any = DessiLBI(groups, **LIVELY, momentum=0.9, weight_decay=0.01)
    if base == "adamw":
        opt = torch.optim.AdamW(groups, lr=0.05)
    made = partial(NestedTraining, net, opt, 10, schedule=EARLY, budgets_per_step=2)
    training = made()
    for k in range(10):
        x, y = own(k, rank)
        opt.zero_grad()
        if "loop" in how:
            for _ in training.passes():
                mse_loss(net(x), y).backward()
        else:
            training.backward(x, partial(mse_loss, target=y))
        opt.step()
        if k == 4:
            saved = training.state_dict()
            training.close()
            training = made()
            training.load_state_dict(saved)
    ranks = training.budget_ranks or {}
    return weights(bare) | {f"{n}.rank": torch.from_numpy(r) for n, r in ranks.items()}


def refused(rank: int) -> list[str]:
    """What sharded parameters cannot have says so."""
    net = place(SmallNet(), rank)
    opt = split_net(net, {})
    training = NestedTraining(net, torch.optim.SGD(net.parameters(), lr=0.1), 5, schedule=EARLY)
    training.backward(own(0, rank)[0], torch.sum)
    found = []
    mask = Mask.magnitude(net, 0.5)
    assert mask == Mask.magnitude(SmallNet(), 0.5)
    for call in (
        lambda: GradualPruning(net, opt, 10, density=0.5),
        lambda: training.network(0.5),
        lambda: compact(net, mask, own(0, rank)[0]),
    ):
        try:
            call()
        except ValueError as error:
            found.append(str(error))
    return found


NESTED = {
    f"{base}, {how}": {"base": base, "how": how}
    for base, how in (
        ("dessilbi", "fsdp"),
        ("adamw", "fsdp loop"),
        ("dessilbi", "ddp"),
        ("adamw", "ddp loop"),
    )
}
RECORDED: dict[str, dict[str, Any]] = {
    "filters": {},
    "init": {"lambd_scale": "init", "lambd": 0.2},
    "spread": {"group_dim": 1},
    "adamw": {"base": "adamw"},
}
CASES: dict[str, Any] = {
    **{f"nested {name}": partial(nested, **options) for name, options in NESTED.items()},
    **{f"recorded {name}": partial(recorded, **options) for name, options in RECORDED.items()},
    "refused": refused,
}
