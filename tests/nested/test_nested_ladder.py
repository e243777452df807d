"""Widths that part from the shared network: what their steps are, and who gives their weights."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from test_nested_widths import NETS, Plain, Residual, batch, make, train, trained_path
from torch import nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

from dessilbi import NestedWidths, project
from dessilbi.compaction import compact
from dessilbi.nested.branches import own_weights
from dessilbi.path import Mask, count_macs_per_weight

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

PARTED: dict[str, Any] = {"steps": 8, "parted": (0.5, 0.5), "lowest": 0.25, "full": 1.0}
"""Half and a quarter of the channels go their own way after four of eight steps."""
STAGED: dict[str, Any] = PARTED | {"parted": (0.25, 0.75), "refresh": 1, "settled": 0.7}
"""A quarter after two steps, half of them after six."""


class Masked:
    """A whole-shaped copy of the network that sees and moves its mask only: SGD by hand."""

    def __init__(self, net: nn.Module, momenta: dict[str, Tensor], inside: dict[str, Tensor]):
        self.net, self.inside = deepcopy(net), inside
        self.momenta = {name: buffer.clone() for name, buffer in momenta.items()}

    @torch.no_grad()
    def zero_outside(self) -> None:
        for name, p in self.net.named_parameters():
            p[~self.inside[name]] = 0

    def step(self, x: Tensor, y: Tensor, teacher: Tensor, lr: float) -> None:
        self.zero_outside()
        output = self.net(x)
        distance = kl_div(log_softmax(output, 1), softmax(teacher, 1), reduction="batchmean")
        loss = 0.5 * cross_entropy(output, y) + 0.5 * distance
        gradients = torch.autograd.grad(loss, list(self.net.parameters()))
        with torch.no_grad():
            for (name, p), g in zip(self.net.named_parameters(), gradients, strict=True):
                buffer = self.momenta[name].mul_(0.9).add_(g + 1e-3 * p)
                p.sub_(lr * buffer)
        self.zero_outside()


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize(
    "options",
    [PARTED | {"beside": 3.0}, STAGED | {"beside": 3.0}, STAGED | {"beside": 0.3}],
    ids=["at once", "one by one", "in turn"],
)
def test_rungs_go_on_by_momentum_from_where_the_network_was(
    kind: type[nn.Module], options: dict[str, Any]
) -> None:
    net, opt, nested = make(kind, **options)
    references: dict[float, Masked] = {}
    for step in range(8):
        x, y = batch(step)
        for group in opt.param_groups:
            group["lr"] = 0.1 / (step + 1)  # a schedule
        before = deepcopy(net)
        momenta = {
            name: opt.state[p]["momentum_buffer"].clone()
            for name, p in net.named_parameters()
            if p in opt.state
        }
        teacher = deepcopy(net)(x).detach()
        opt.zero_grad()
        nested.backward(x, lambda o, y=y: cross_entropy(o, y))
        drawn = {
            width: level in nested._drawn
            for width, level in zip((0.25, 0.5), nested._ladder.rungs, strict=False)
        }
        assert all(drawn.values()) or options["beside"] == 0.3
        for width, level in zip((0.25, 0.5), nested._ladder.rungs, strict=False):
            if width not in references:  # it has just left
                cut = nested._cut(level)
                inside = {name: nested._narrow.used(cut, name) for name in momenta}
                assert any(not where.all() for where in inside.values())
                references[width] = Masked(before, momenta, inside)
        opt.step()
        for width, reference in references.items():
            if drawn[width]:  # else it rests, and so does its momentum
                reference.step(x, y, teacher, 0.1 / (step + 1))
        first, last = (round(8 * time) for time in options["parted"])
        assert len(references) == (step >= first) + (step >= last)
    for width, reference in references.items():
        for name, found in nested.weights(width).items():
            wanted = reference.net.get_parameter(name)
            torch.testing.assert_close(found, wanted.detach(), rtol=1e-8, atol=1e-10)
    assert nested.mask(0.25).issubset(nested.mask(0.5))


class Neurons(nn.Module):
    """Linear layers: a narrow network still reads all of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Linear(36, 32), nn.Linear(32, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.two(self.one(x.flatten(1)).relu()).relu())


def macs_of(net: nn.Module) -> float:
    uses = count_macs_per_weight(net, batch(0)[0])
    return sum(uses.get(name, 1) * p.numel() for name, p in net.named_parameters())


@pytest.mark.parametrize("kind", [*NETS, Neurons])
def test_the_cost_of_a_width_is_that_of_its_network(kind: type[nn.Module]) -> None:
    net, opt, nested = make(kind, **PARTED)
    train(net, opt, nested, 0, 8)
    for width, rung in zip((0.25, 0.5), nested._ladder.rungs.values(), strict=True):
        small = compact(net.eval(), nested.mask(width), batch(0)[0]).model
        assert nested._narrow.cost(rung.cut) == pytest.approx(macs_of(small) / macs_of(net))


@pytest.mark.parametrize("beside", [0.2, 0.4, 5.0])
def test_widths_that_would_cost_too_much_are_trained_in_turn(beside: float) -> None:
    options = PARTED | {"steps": 400, "parted": (0.1, 0.1), "descended": 0.1, "settled": 0.1}
    net, opt, nested = make(Neurons, **options, beside=beside)
    train(net, opt, nested, 0, 41)
    rungs = nested._ladder.rungs
    drawn: dict[int, list[bool]] = {level: [] for level in rungs}
    for step in range(41, 241):
        before = {level: rung.own["one.weight"].clone() for level, rung in rungs.items()}
        train(net, opt, nested, step, step + 1)
        for level, rung in rungs.items():
            drawn[level].append(not torch.equal(rung.own["one.weight"], before[level]))
    costs = {level: nested._narrow.cost(rung.cut) for level, rung in rungs.items()}
    often = min(1.0, beside / sum(costs.values()))
    assert (often < 1) == (beside < 1)
    assert len(costs) == 2
    for steps in drawn.values():
        assert sum(steps) == pytest.approx(often * len(steps), abs=1)
        longest = max(len(rest) for rest in "".join("x" if s else "-" for s in steps).split("x"))
        assert longest <= 1 / often, "evenly"
    taken = sum(cost * sum(drawn[level]) / len(drawn[level]) for level, cost in costs.items())
    assert taken <= beside + 0.01


def test_widths_of_a_convolutional_network_are_trained_in_every_step() -> None:
    net, opt, nested = make(Residual, **PARTED)
    train(net, opt, nested, 0, 5)
    assert len(nested.budgets) == 3
    with pytest.raises(ValueError, match="beside must be positive, got 0"):
        make(Residual, beside=0)


@pytest.mark.parametrize("kind", NETS)
def test_a_rung_keeps_its_channels_whatever_is_ranked_later(kind: type[nn.Module]) -> None:
    net, opt, nested = make(kind, **STAGED)
    train(net, opt, nested, 0, 3)
    smallest = nested.mask(0.25)
    assert nested.mask(0.6).density > smallest.density, "the others still share"
    assert nested.mask(0.6).density < 1
    narrow = [w for w in nested.budgets if w < 1]
    assert len(narrow) == 2
    assert narrow[0] > 0.49, "wider than what is left of the ladder"
    with torch.no_grad():  # now all others are larger
        for name, p in nested._params.items():
            p[~smallest[name]] += 10
    train(net, opt, nested, 3, 5)
    assert nested.mask(0.25) == smallest
    assert smallest.issubset(nested.mask(0.6))
    wanted = {name: w for name, w in nested.weights(0.25).items() if name in smallest.names}
    assert all(not w[~smallest[name]].any() for name, w in wanted.items())
    train(net, opt, nested, 5, 8)
    assert nested.mask(0.25) == smallest
    assert nested.mask(0.4) == smallest, "in the end there is nothing between the rungs"


@pytest.mark.parametrize("kind", NETS)
def test_the_whole_network_goes_on_alone(kind: type[nn.Module]) -> None:
    net, opt, nested = make(kind, **PARTED)
    train(net, opt, nested, 0, 4)
    twin, other, _ = make(kind, **PARTED)
    twin.load_state_dict(net.state_dict())
    other.load_state_dict(opt.state_dict())
    train(net, opt, nested, 4, 8)
    for step in range(4, 8):
        x, y = batch(step)
        other.zero_grad()
        cross_entropy(twin(x), y).backward()
        other.step()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)  # by the kernels, which round differently


@pytest.mark.parametrize("kind", NETS)
def test_the_path_gives_the_rungs_and_the_state_their_weights(
    kind: type[nn.Module], tmp_path: Path
) -> None:
    net, opt, nested = make(kind, **PARTED)
    path = trained_path(net, opt, nested, tmp_path)
    state, whole = nested.state_dict(), dict(net.named_parameters())
    smallest = nested.mask(0.25)
    for budget in (0.0, 0.1, 0.3, 0.49, 0.5, 0.8, 1.0):
        mask = path.mask(density=budget)
        assert mask == nested.mask(max(budget, 0.01))
        assert mask.density <= budget or mask == smallest, "the smallest is the floor"
        weights = nested.weights(max(budget, 0.01))
        if budget == 1:
            assert own_weights(state, mask, whole) == {}
            assert all(torch.equal(weights[name], p) for name, p in whole.items())
            continue
        found = own_weights(state, mask, whole)
        assert found.keys() == whole.keys()
        for name, w in weights.items():
            assert torch.equal(found[name], w)
            if name in mask.names:
                assert not w[~mask[name]].any(), "zero outside of the mask"
        assert not torch.equal(weights["out.weight"], whole["out.weight"]), "its own"
    assert path.mask(density=0.3) != path.mask(density=0.6)
    assert own_weights(state, path.mask(epoch=1), whole) == {}, "no rung: the whole one's weights"
    one = Mask(
        {"hidden.weight" if kind is Plain else "inner.weight": smallest[path.layers[1].name]}
    )
    assert own_weights(state, one, whole) == {}


def test_a_rung_is_compact_with_its_own_weights() -> None:
    net, opt, nested = make(Plain, **PARTED)
    train(net, opt, nested, 0, 8)
    mask = nested.mask(0.5)
    net.load_state_dict(nested.weights(0.5), strict=False)
    small = compact(net.eval(), mask, batch(0)[0]).model
    cut = nested._cut(nested._level_for(0.5))
    own = nested._ladder.rungs[nested._level_for(0.5)].own
    expected, _ = nested._narrow.forward(cut, batch(0)[0], own=own)
    torch.testing.assert_close(small(batch(0)[0]), expected, rtol=1e-9, atol=1e-10)
    with project(net, mask):  # nothing is left to be masked
        torch.testing.assert_close(net(batch(0)[0]), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("stopped", [1, 2, 4, 6, 7])
@pytest.mark.parametrize("kind", NETS)
def test_a_resumed_ladder_goes_on_as_if_it_had_not_stopped(
    kind: type[nn.Module], stopped: int
) -> None:
    net, opt, nested = make(kind, **STAGED)
    train(net, opt, nested, 0, 8)
    first, begun, half = make(kind, **STAGED)
    train(first, begun, half, 0, stopped)
    second, opt2, resumed = make(kind, **STAGED)
    second.load_state_dict(first.state_dict())
    opt2.load_state_dict(begun.state_dict())
    resumed.load_state_dict({name: t.clone() for name, t in half.state_dict().items()})
    train(second, opt2, resumed, stopped, 8)
    wanted, found = nested.state_dict(), resumed.state_dict()
    assert found.keys() == wanted.keys()
    assert any(key.startswith("own.0.momentum.") for key in found)
    assert all(torch.equal(found[key], tensor) for key, tensor in wanted.items())


def test_gradients_of_several_passes_add_up_and_those_of_a_step_given_up_do_not() -> None:
    wanted: list[dict[str, Tensor]] = []
    x, y = batch(5)
    for passes, given_up in ((1, False), (2, False), (1, True)):
        net, opt, nested = make(Plain, **PARTED)
        train(net, opt, nested, 0, 5)
        if given_up:
            nested.backward(-x, lambda o: cross_entropy(o, y))
        opt.zero_grad()
        for _ in range(passes):
            nested.backward(x, lambda o: cross_entropy(o, y), weight=1 / passes)
        opt.step()
        wanted.append(nested.weights(0.5))
    for other in wanted[1:]:
        for name, w in wanted[0].items():
            torch.testing.assert_close(other[name], w, rtol=1e-9, atol=1e-12)


def test_the_ladder_can_be_chosen() -> None:
    assert make(Plain, lowest=0.1)[2].ladder == (0.125, 0.25, 0.5)
    assert make(Plain, lowest=0.6)[2].ladder == (0.6,)
    net, opt, nested = make(Plain, steps=8, parted=(0.5, 0.5), lowest=0.1, ladder=(0.75, 0.3))
    assert nested.ladder == (0.3, 0.75)
    train(net, opt, nested, 0, 5)
    assert int(nested.mask(0.75)["one.weight"].flatten(1).any(1).sum()) == 6
    assert int(nested.mask(0.5)["one.weight"].flatten(1).any(1).sum()) == 2
    with pytest.raises(ValueError, match="differ by a hundredth"):
        make(Plain, lowest=0.1, ladder=(0.2, 0.3, 0.3001))
    late, falling = {"parted": (0.5, 1.5)}, {"parted": (0.6, 0.3)}
    for wrong in ({"ladder": (0.05,)}, {"ladder": (1.0,)}, late, falling):
        with pytest.raises(ValueError, match="must lie in"):
            make(Plain, **wrong)


def test_a_ladder_of_another_network_is_refused() -> None:
    net, opt, nested = make(Plain, **PARTED)
    train(net, opt, nested, 0, 5)
    state = nested.state_dict()
    (name,) = (key for key in state if key == "own.0.weight.out.weight")
    other: NestedWidths = make(Plain, **PARTED)[2]
    with pytest.raises(ValueError, match=r"ladder does not fit parameter 'out\.weight'"):
        other.load_state_dict(state | {name: state[name][:, :1]})
