"""Filters that must leave together enter together: found, trained, recorded, cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import dessilbi.optim
from compaction_nets import NETS, Residual, Separable, lab_net
from compilers import needs_compiler
from dessilbi import DessiLBI, Mask, PathRecorder, compact, split_parameters
from dessilbi.subnet import FrozenSupport

if TYPE_CHECKING:
    from dessilbi import SolutionPath

X = torch.zeros(1, 3, 8, 8)
STREAM = ["stem.weight", "convs.1.weight", "convs.3.weight"]


def tied_sets(groups: list[dict[str, Any]]) -> list[list[str]]:
    return [[name for name, _ in g["params"]] for g in groups if g.get("tied")]


# ------------------------------------------------------------------ groups


def test_a_residual_stream_is_one_group() -> None:
    net = lab_net("resnet-20", 8, 3)
    groups = split_parameters(net, tied=True, example_input=X)
    assert tied_sets(groups) == [
        ["conv1.weight", *(f"stage1.{i}.conv2.weight" for i in range(3))],
        ["stage2.0.conv2.weight", "stage2.0.shortcut.conv.weight"]
        + [f"stage2.{i}.conv2.weight" for i in (1, 2)],
        ["stage3.0.conv2.weight", "stage3.0.shortcut.conv.weight"]
        + [f"stage3.{i}.conv2.weight" for i in (1, 2)],
    ]
    names = [group["name"] for group in groups]
    assert "filters tied to conv1.weight" in names
    assert len(set(names)) == len(names)
    held = [name for group in groups for name, _ in group["params"]]
    assert sorted(held) == sorted(name for name, _ in net.named_parameters())
    assert all(g["penalty"] == "group_lasso" for g in groups if g.get("tied"))


def test_depthwise_filters_go_with_those_before_them() -> None:
    sets = tied_sets(split_parameters(Separable(), tied=True, example_input=X))
    assert ["blocks.0.0.weight", "blocks.0.3.weight"] in sets
    assert ["stem.0.weight", *(f"blocks.{i}.6.weight" for i in range(3))] in sets


@pytest.mark.parametrize("name", NETS)
def test_every_network_can_be_split(name: str) -> None:
    """And where the channels of a sum cannot leave, or by parts only, nothing is tied."""
    make, shape = NETS[name]
    net = make()
    groups = split_parameters(net, tied=True, example_input=torch.zeros(2, *shape))
    assert bool(tied_sets(groups)) == (
        name in ("residual", "separable", "excited", "oddments", "tokens")
    )
    if not tied_sets(groups):
        plain = split_parameters(net)
        assert [(g["name"], len(g["params"])) for g in groups] == [
            (g["name"], len(g["params"])) for g in plain
        ]
    DessiLBI(groups)


def test_a_concatenation_ties_parts_of_a_layer_and_is_left_alone() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(3, n, 3) for n in (4, 4, 8))
            self.last = nn.Conv2d(8, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last(torch.cat([self.a(x), self.b(x)], 1) + self.c(x))
            return y

    assert tied_sets(split_parameters(Halves(), tied=True, example_input=X)) == []


class Rows(nn.Module):
    """A residual stream of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        y: Tensor = self.last(x + torch.relu(self.inner(x)))
        return y


def test_rows_of_linear_layers_where_a_pattern_groups_them() -> None:
    x = torch.zeros(1, 6)
    assert tied_sets(split_parameters(Rows(), tied=True, example_input=x)) == []
    groups = split_parameters(Rows(), {"*": {"penalty": "group_lasso"}}, tied=True, example_input=x)
    assert tied_sets(groups) == [["first.weight", "inner.weight"]]


def test_patterns_that_agree_are_fine() -> None:
    patterns = {"stem": {"lambd": 0.5}, "convs.1": {"lambd": 0.5}, "convs.3": {"lambd": 0.5}}
    groups = split_parameters(Residual(), patterns, tied=True, example_input=X)
    assert tied_sets(groups) == [STREAM]
    without = split_parameters(
        Residual(), exclude=["stem", "convs.1", "convs.3"], tied=True, example_input=X
    )
    assert tied_sets(without) == []
    decided = split_parameters(Residual(), {"*": {"tied": False}}, tied=True, example_input=X)
    assert tied_sets(decided) == []


@pytest.mark.parametrize(
    ("patterns", "exclude"), [({"convs.1": {"lambd": 0.5}}, []), ({}, ["convs.1"])]
)
def test_patterns_that_disagree_are_named(patterns: dict[str, Any], exclude: list[str]) -> None:
    with pytest.raises(ValueError, match=r"'stem\.weight' and 'convs\.1\.weight' one group, but"):
        split_parameters(Residual(), patterns, exclude=exclude, tied=True, example_input=X)


def test_the_example_is_needed_and_for_nothing_else() -> None:
    for split in (split_parameters, dessilbi.optim.split_parameters):
        with pytest.raises(ValueError, match="tied=True needs example_input"):
            split(Residual(), tied=True)
    with pytest.raises(ValueError, match="got tied=False and example_input=Tensor"):
        split_parameters(Residual(), example_input=X)


def test_a_pattern_may_tie_by_hand() -> None:
    net = Residual()
    groups = split_parameters(net, {"convs": {"tied": True}})
    assert tied_sets(groups) == [[f"convs.{i}.weight" for i in range(4)]]
    groups = split_parameters(net, {"*": {"tied": True}}, exclude=["head"])  # also norms
    assert len(tied_sets(groups)[0]) == 5
    DessiLBI(groups)


# ------------------------------------------------------------------ a run


def trained(net: nn.Module, *, steps: int = 60, **options: Any) -> tuple[SolutionPath, DessiLBI]:
    """A net trained for a while, and what was recorded."""
    groups = split_parameters(net, exclude=["head"], tied=True, example_input=X)
    opt = DessiLBI(groups, lr=0.05, nu=5.0, lambd=0.34, momentum=0.9, **options)
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(16, 3, 8, 8, generator=g), torch.arange(16) % 5
    with PathRecorder(net, opt) as recorder:
        for k in range(steps):
            if k == 42:  # what is inside is drawn out again
                with torch.no_grad():
                    for p in net.parameters():
                        p.neg_()
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
            if k % 20 == 19:
                recorder.record(epoch=k // 20)
    return recorder.path, opt


@pytest.mark.parametrize(
    "how", [{}, {"foreach": True}, pytest.param({"fused": True}, marks=needs_compiler)]
)
def test_a_stream_enters_and_leaves_at_the_same_steps(how: dict[str, bool]) -> None:
    path, opt = trained(Residual(), **how)
    log = path.event_log.all()
    found = []
    for layer in map(path.layer, STREAM):
        own = log.where((log.groups >= layer.offset) & (log.groups < layer.slice.stop))
        found.append(
            [own.steps.tolist(), (own.groups - layer.offset).tolist(), own.entered.tolist()]
        )
    assert all(one == found[0] for one in found)
    steps, _, entered = found[0]
    assert len(set(steps)) > 3
    assert not all(entered), "nothing ever left"
    params = dict(opt.twins())
    for epoch in path.epochs:
        kept = [path.support(epoch)[name].flatten(1).any(1) for name in STREAM]
        assert all(torch.equal(one, kept[0]) for one in kept)
    last = [opt.support(params[name]).flatten(1).any(1) for name in STREAM]
    assert all(torch.equal(one, kept[0]) for one in last)


def test_compact_removes_channels_of_the_stream() -> None:
    net = Residual()
    path, opt = trained(net)
    epoch = next(e for e in path.epochs if 0 < path.support(e)["stem.weight"].float().mean() < 1)
    mask = path.mask(epoch=epoch)
    alive = int(mask["stem.weight"].flatten(1).any(1).sum())
    small = compact(net.eval(), mask, X, latency=False)
    # The stream keeps its live channels, and one more if constants must be carried.
    assert alive <= len(small.model.get_parameter("stem.weight")) <= alive + 1 < 8
    rows = {small.plan.tensors[name].stays[0] for name in STREAM}
    assert len(rows) == 1
    moved = small.cut_optimizer(net, opt)
    (together,) = (g for g in moved.param_groups if g["tied"])
    assert together["param_names"] == STREAM
    small.model(torch.randn(2, 3, 8, 8)).sum().backward()
    moved.step()


def test_a_cut_that_parts_the_filters_unties_them() -> None:
    net = Residual()
    _, opt = trained(net, steps=5)
    last = torch.ones(8, 8, 3, 3).bool()
    last[[0, 1]] = False
    mask = Mask({"convs.3.weight": last})
    small = compact(net.eval(), mask, X, streams="scatter", latency=False)
    assert len(small.model.get_parameter("convs.3.weight")) == 6
    moved = small.cut_optimizer(net, opt)
    assert not any(g["tied"] for g in moved.param_groups)
    small.model(torch.randn(2, 3, 8, 8)).sum().backward()
    moved.step()


def test_frozen_support_keeps_the_stream_together() -> None:
    net = Residual()
    _, opt = trained(net, steps=20)
    frozen = FrozenSupport(net, opt)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    opt.step()
    params = dict(opt.twins())
    kept = [opt.support(params[name]).flatten(1).any(1) for name in STREAM]
    assert all(torch.equal(one, kept[0]) for one in kept)
    frozen.close()
