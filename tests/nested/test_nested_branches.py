"""Widths that branch off the shared network: what they are, how they move, who keeps them."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from nested_nets import Plain, Residual, batch, make_widths, train
from torch import nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

from dessilbi import DessiLBI, NestedWidths, PathRecorder
from dessilbi.path import count_macs_per_weight

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

NETS = [Plain, Residual]
AT_ONCE: dict[str, Any] = {
    "steps": 8,
    "branch_at": (0.5, 0.5),
    "schedule": {"min_density": 0.25, "full_fraction": 1.0},
}
"""Half and a quarter of the channels go their own way after four of eight steps."""
STAGED: dict[str, Any] = {
    "steps": 8,
    "branch_at": (0.25, 0.75),
    "schedule": AT_ONCE["schedule"] | {"rank_every": 1, "freeze_ranking_at": 0.7},
}
"""A quarter after two steps, half of them after six."""


class Neurons(nn.Module):
    """Linear layers: a narrow network still reads all of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Linear(36, 32), nn.Linear(32, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.two(self.one(x.flatten(1)).relu()).relu())


def tensors_of(nested: NestedWidths, number: int) -> dict[str, Tensor]:
    """The parameters and buffers of a branch, by name, as a checkpoint has them."""
    start = f"branches/{number}/"
    found = {
        k.removeprefix(start): t for k, t in nested.state_dict().items() if k.startswith(start)
    }
    return {name: t.clone() for name, t in found.items() if not name.startswith("optimizer/")}


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("optimizer", ["dessilbi", "sgd", "adamw"])
@pytest.mark.parametrize("options", [AT_ONCE, STAGED], ids=["at once", "one by one"])
def test_branches_go_on_from_where_the_network_was(
    kind: type[nn.Module], optimizer: str, options: dict[str, Any]
) -> None:
    """Against a whole-shaped copy that is masked before and after each of its steps."""
    make_opt: Any = {
        "dessilbi": None,
        "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-3),
        "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    }[optimizer]
    net, opt, nested = make_widths(kind, opt=make_opt, branch_macs=3.0, **options)
    references: dict[float, tuple[nn.Module, Optimizer, dict[str, Tensor]]] = {}
    for step in range(8):
        x, y = batch(step)
        for group in opt.param_groups:
            group["lr"] = (0.01 if optimizer == "adamw" else 0.1) / (step + 1)  # a schedule
        before = deepcopy(net)
        state = {n: deepcopy(opt.state[p]) for n, p in net.named_parameters() if p in opt.state}
        teacher = softmax(deepcopy(net)(x).detach(), 1)
        opt.zero_grad()
        nested.backward(x, partial(cross_entropy, target=y))
        left = sum(f"branches/{i}/out.weight" in nested.state_dict() for i in (0, 1))
        first, last = (round(8 * time) for time in options["branch_at"])
        assert left == (step >= first) + (step >= last)
        for width in (0.25, 0.5)[len(references) : left]:
            wide = nested.network(width, small=False)
            inside = {n: p.detach() != 0 for n, p in wide.named_parameters()}
            own = torch.optim.SGD(before.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)
            its: Optimizer = own if make_opt is None else make_opt(before.parameters())
            for name, p in before.named_parameters():
                its.state[p] = {k: t for k, t in state[name].items() if k != "v"}
            references[width] = (deepcopy(before), its, inside)
            # The copy takes its optimizer's state along.
            copy = references[width][0]
            its.param_groups[0]["params"] = list(copy.parameters())
            for p, q in zip(before.parameters(), copy.parameters(), strict=True):
                its.state[q] = deepcopy(its.state.pop(p))
            zero(copy, inside)
        opt.step()
        for copy, its, inside in references.values():
            its.param_groups[0]["lr"] = opt.param_groups[0]["lr"]
            output = copy(x)
            distance = kl_div(log_softmax(output, 1), teacher, reduction="batchmean")
            its.zero_grad()
            (0.5 * cross_entropy(output, y) + 0.5 * distance).backward()
            its.step()
            zero(copy, inside)
    for width, (copy, _, _) in references.items():
        wide = nested.network(width, small=False)
        for name, p in wide.named_parameters():
            torch.testing.assert_close(p, copy.get_parameter(name), rtol=1e-8, atol=1e-9)
        x = batch(9)[0]
        torch.testing.assert_close(wide(x), nested.network(width)(x), rtol=1e-9, atol=1e-10)
    assert nested.mask(0.25).issubset(nested.mask(0.5))


@torch.no_grad()
def zero(net: nn.Module, inside: dict[str, Tensor]) -> None:
    for name, p in net.named_parameters():
        p[~inside[name]] = 0


@pytest.mark.parametrize("kind", NETS)
def test_a_branch_is_a_network_of_the_models_class(kind: type[nn.Module]) -> None:
    """Which torch.compile, autocast, deepcopy, and a state dict work on as on any other."""
    net, opt, nested = make_widths(kind, **AT_ONCE)
    train(net, opt, nested, 0, 8)
    small = nested.network(0.5)
    assert type(small) is kind
    assert not small.training
    assert {n: tuple(p.shape) for n, p in small.named_parameters()} == {
        n: tuple(t.shape)
        for n, t in tensors_of(nested, 1).items()
        if n in dict(net.named_parameters())
    }
    x, y = batch(9)
    with torch.autocast("cpu", torch.bfloat16):
        assert small.float()(x.float()).shape == (16, 4)
    small = nested.network(0.5)
    before = small(x)
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    cross_entropy(small.train()(x), y).backward()
    optimizer.step()
    assert torch.equal(nested.network(0.5)(x), before), "what is handed out is a copy"


def test_a_branch_has_batchnorm_statistics_of_its_own() -> None:
    net, opt, nested = make_widths(Plain, **AT_ONCE)
    train(net, opt, nested, 0, 8)
    small = nested.network(0.5)
    assert isinstance(small, Plain)
    own = small.norm.running_mean
    shared = net.norm.running_mean  # type: ignore[union-attr]
    assert isinstance(shared, torch.Tensor)
    assert own is not None
    assert not any((value == shared).any() for value in own), "trained with its own passes"
    again = nested.network(0.5, [batch(20)[0]]).norm.running_mean  # type: ignore[union-attr]
    assert isinstance(again, torch.Tensor)
    assert not torch.equal(again, own), "and taken anew where inputs are given"


@pytest.mark.parametrize("branch_macs", [0.2, 0.4, 5.0])
def test_branches_that_would_cost_too_much_are_trained_in_turn(branch_macs: float) -> None:
    at = {"ramp_start": 0.0, "ramp_end": 0.1, "freeze_ranking_at": 0.1}
    options = AT_ONCE | {"steps": 400, "branch_at": (0.1, 0.1)}
    options["schedule"] = AT_ONCE["schedule"] | at
    net, opt, nested = make_widths(Neurons, **options, branch_macs=branch_macs)
    train(net, opt, nested, 0, 41)
    drawn: dict[int, list[bool]] = {0: [], 1: []}
    for step in range(41, 161):
        before = [tensors_of(nested, i)["one.weight"] for i in (0, 1)]
        train(net, opt, nested, step, step + 1)
        for i in (0, 1):
            drawn[i].append(not torch.equal(tensors_of(nested, i)["one.weight"], before[i]))

    def macs(one: nn.Module) -> float:
        uses = count_macs_per_weight(one, batch(0)[0])
        return sum(uses.get(name, 1) * p.numel() for name, p in one.named_parameters())

    costs = [macs(nested.network(width)) / macs(net) for width in (0.25, 0.5)]
    often = min(1.0, branch_macs / sum(costs))
    assert (often < 1) == (branch_macs < 1)
    for steps in drawn.values():
        assert sum(steps) == pytest.approx(often * len(steps), abs=1)
        longest = max(len(rest) for rest in "".join("x" if s else "-" for s in steps).split("x"))
        assert longest <= 1 / often, "evenly"


@pytest.mark.parametrize("kind", NETS)
def test_a_branch_keeps_its_channels_whatever_is_ranked_later(kind: type[nn.Module]) -> None:
    net, opt, nested = make_widths(kind, **STAGED)
    assert isinstance(opt, DessiLBI)
    train(net, opt, nested, 0, 3)
    smallest = nested.mask(0.25)
    assert smallest.density < nested.mask(0.6).density < 1, "the others still share"
    narrow = [width for width in nested.budgets if width < 1]
    assert len(narrow) == 2
    assert narrow[0] > 0.49, "none below the next one that leaves"
    with torch.no_grad():  # now all others are larger
        for name, p in opt.twins():
            p[~smallest[name]] += 10
    train(net, opt, nested, 3, 5)
    assert nested.mask(0.25) == smallest
    assert smallest.issubset(nested.mask(0.6))
    train(net, opt, nested, 5, 8)
    assert nested.mask(0.25) == smallest
    assert nested.mask(0.4) == smallest, "in the end there is nothing between the branches"


@pytest.mark.parametrize("kind", NETS)
def test_the_whole_network_goes_on_alone(kind: type[nn.Module]) -> None:
    net, opt, nested = make_widths(kind, **AT_ONCE)
    train(net, opt, nested, 0, 4)
    twin, other, _ = make_widths(kind, **AT_ONCE)
    twin.load_state_dict(net.state_dict())
    other.load_state_dict(opt.state_dict())
    train(net, opt, nested, 4, 8)
    for step in range(4, 8):
        x, y = batch(step)
        other.zero_grad()
        cross_entropy(twin(x), y).backward()
        other.step()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), twin.parameters(), strict=True))
    assert torch.equal(nested.network(1.0)(x), net.eval()(x))


@pytest.mark.parametrize("kind", NETS)
def test_the_path_gives_the_branches(kind: type[nn.Module]) -> None:
    net, opt, nested = make_widths(kind, **AT_ONCE)
    assert isinstance(opt, DessiLBI)
    recorder = PathRecorder(net, opt, nested=nested)
    train(net, opt, nested, 0, 8)
    recorder.record(1)
    smallest = nested.mask(0.25)
    for budget in (0.0, 0.1, 0.3, 0.49, 0.5, 0.8, 1.0):
        mask = recorder.path.mask(density=budget)
        assert mask == nested.mask(max(budget, 0.01))
        assert mask.density <= budget or mask == smallest, "the smallest is the floor"


@pytest.mark.parametrize("stopped", [1, 2, 4, 6, 7])
@pytest.mark.parametrize("kind", NETS)
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(
    kind: type[nn.Module], stopped: int
) -> None:
    net, opt, nested = make_widths(kind, **STAGED)
    train(net, opt, nested, 0, stopped)
    other, its_opt, resumed = make_widths(kind, **STAGED)
    other.load_state_dict(net.state_dict())
    its_opt.load_state_dict(opt.state_dict())
    resumed.load_state_dict({name: t.clone() for name, t in nested.state_dict().items()})
    train(net, opt, nested, stopped, 8)
    train(other, its_opt, resumed, stopped, 8)
    wanted, found = nested.state_dict(), resumed.state_dict()
    assert found.keys() == wanted.keys()
    assert "branches/0/optimizer/out.weight/momentum_buffer" in found
    assert all(torch.equal(found[key], tensor) for key, tensor in wanted.items())


def test_gradients_of_several_passes_add_up_and_those_of_a_step_given_up_do_not() -> None:
    found: list[dict[str, Tensor]] = []
    x, y = batch(5)
    for passes, given_up in ((1, False), (2, False), (1, True)):
        net, opt, nested = make_widths(Plain, **AT_ONCE)
        train(net, opt, nested, 0, 5)
        if given_up:
            nested.backward(-x, partial(cross_entropy, target=y))
        opt.zero_grad()
        for _ in range(passes):
            nested.backward(x, partial(cross_entropy, target=y), weight=1 / passes)
        opt.step()
        found.append(dict(nested.network(0.5).named_parameters()))
    for other in found[1:]:
        for name, p in found[0].items():
            torch.testing.assert_close(other[name], p, rtol=1e-9, atol=1e-12)


def test_widths_can_be_chosen() -> None:
    assert make_widths(Plain)[2].widths == (0.125, 0.25, 0.5)
    assert make_widths(Plain, schedule={"min_density": 0.6})[2].widths == (0.6,)
    net, opt, nested = make_widths(Plain, steps=8, branch_at=(0.5, 0.5), widths=(0.75, 0.3))
    assert nested.widths == (0.3, 0.75)
    train(net, opt, nested, 0, 5)
    assert [nested.network(w).one.out_channels for w in (0.75, 0.5, 0.3)] == [6, 2, 2]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="differ by a hundredth"):
        make_widths(Plain, widths=(0.2, 0.3, 0.3001))
    late, falling = {"branch_at": (0.5, 1.5)}, {"branch_at": (0.6, 0.3)}
    for wrong in ({"widths": (0.05,)}, {"widths": (1.0,)}, late, falling):
        with pytest.raises(ValueError, match="must lie in"):
            make_widths(Plain, **wrong)
    with pytest.raises(ValueError, match="branch_macs must be positive, got 0"):
        make_widths(Plain, branch_macs=0)


def test_a_branch_of_another_network_is_refused() -> None:
    net, opt, nested = make_widths(Plain, **AT_ONCE)
    train(net, opt, nested, 0, 5)
    state = nested.state_dict()
    name = "branches/0/out.weight"
    other: NestedWidths = make_widths(Plain, **AT_ONCE)[2]
    with pytest.raises(ValueError, match=r"branch does not fit 'out\.weight' of shape"):
        other.load_state_dict(state | {name: state[name][:, :1]})
