"""Passes that are recorded and played again: bit for bit those that are not."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from lean_nets import F32, F64, Written, of, some_gradient, threads
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody does

from compilers import needs_compiler
from dessilbi.lab.models import make_model
from dessilbi.lean import Program, Ranked, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dessilbi.lean import Pass

pytestmark = needs_compiler


def small(dtype: torch.dtype = F64) -> nn.Module:
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 9, 3, padding=1), nn.BatchNorm2d(9)
    layers = (conv, norm, nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(9, 8, 3), nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).to(dtype)


def batch(images: int = 16, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(images, 3, 8, 8, generator=torch.Generator().manual_seed(seed)).to(dtype)


def step(net: nn.Module, program: Program, x: Tensor, again: str | None) -> list[Tensor]:
    """A step of gradient descent: the output and all gradients."""
    done = program.run(program.enter(x), of(net), of(net), remember=True, again=again)
    gradients = done.backward(some_gradient(done.output))
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name in gradients:
                p -= 0.01 * gradients[name]
    return [done.output, *(gradients[name] for name in sorted(gradients))]


def assert_equal(found: Iterable[Tensor], wanted: Iterable[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


class Passes:
    """Counts those that are made without a recording, or for one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        once = Program.run_once

        def run_once(*arguments: Any) -> Pass:
            self.made += 1
            return once(*arguments)

        monkeypatch.setattr(Program, "run_once", run_once)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    return Passes(monkeypatch)


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("name", ["vgg-4", "lenet-5", "lenet-300-100", "resnet-20"])
def test_a_recording_gives_the_same_bits(name: str, dtype: torch.dtype, passes: Passes) -> None:
    channels, side = (1, 28) if name.startswith("lenet") else (3, 16)
    net = make_model(name, num_classes=10, in_channels=channels, input_size=side).to(dtype)
    nets = net, deepcopy(net)
    programs = [Program(n) for n in nets]
    for _ in range(4):
        x = torch.randn(16, channels, side, side).to(dtype)
        assert_equal(step(nets[0], programs[0], x, "again"), step(nets[1], programs[1], x, None))
    assert_equal(nets[0].state_dict().values(), nets[1].state_dict().values())
    assert passes.made == 5


def residual(net: Any, x: Tensor) -> Tensor:
    y = net.norm(net.c(x))
    z = F.relu(y + net.d(y)) + y
    return net.head(torch.flatten(z + z, 1))


def test_values_that_are_read_several_times(passes: Passes) -> None:
    torch.manual_seed(0)
    net = Written(
        residual, c=nn.Conv2d(3, 4, 3, padding=1), norm=nn.BatchNorm2d(4),
        d=nn.Conv2d(4, 4, 3, padding=1), head=nn.Linear(256, 5),
    ).double()  # fmt: skip
    other = deepcopy(net)
    programs = Program(net), Program(other)
    for seed in range(4):
        x = batch(seed=seed)
        assert_equal(step(net, programs[0], x, "again"), step(other, programs[1], x, None))
    assert passes.made == 5


@pytest.mark.parametrize(
    ("images", "made"),
    [
        ([16, 16, 9, 16, 16], 2),
        ([16, 9, 9, 16, 9, 9, 16], 5),
        ([16, 9, 9, 9, 9, 9, 9], 4),  # the third of a new shape is recorded
        ([16, 9, 12, 16, 16], 4),  # after two other shapes the memory of the batch is another
    ],
)
def test_batches_of_another_shape(images: list[int], made: int, passes: Passes) -> None:
    net = small()
    other = deepcopy(net)
    programs = Program(net), Program(other)
    for seed, count in enumerate(images):
        x = batch(count, seed)
        assert_equal(step(net, programs[0], x, "again"), step(other, programs[1], x, None))
    assert passes.made == made + len(images)


def test_weights_that_moved_are_found() -> None:
    net = small()
    other = deepcopy(net)
    programs = Program(net), Program(other)
    for seed in range(6):
        x = batch(seed=seed)
        assert_equal(step(net, programs[0], x, "again"), step(other, programs[1], x, None))
        if seed % 2:
            for p in net.parameters():
                p.data = p.data.clone()


def test_what_was_returned_stays() -> None:
    net = small()
    program = Program(net)
    found = step(net, program, batch(seed=0), "again")
    before = [t.clone() for t in found]
    for seed in (1, 2):
        step(net, program, batch(seed=seed), "again")
        assert_equal(found, before)


def test_other_weights_may_be_wanted() -> None:
    net = small()
    program = Program(net)
    x = program.enter(batch())
    for wanted in (["0.weight"], ["0.weight"], list(of(net)), ["1.bias", "8.weight"], [], []):
        done = program.run(x, of(net), wanted, again="again")
        plain = program.run(x, of(net), wanted)
        gradient = some_gradient(done.output)
        found, expected = done.backward(gradient), plain.backward(gradient)
        assert found.keys() == expected.keys() == set(wanted)
        assert_equal(found.values(), expected.values())


def test_a_gradient_of_any_layout(passes: Passes) -> None:
    net = small()
    program = Program(net)
    x = program.enter(batch())
    done, plain = (program.run(x, of(net), of(net), again=again) for again in ("again", None))
    given = some_gradient(done.output)
    for gradient in (given, given.t().contiguous().t(), given[:1].expand_as(given)):
        assert_equal(done.backward(gradient).values(), plain.backward(gradient).values())


def test_recordings_of_several_names_do_not_mix() -> None:
    net = small()
    program = Program(net)
    weights = [{name: (k + 1) * w for name, w in of(net).items()} for k in range(2)]
    for seed in range(3):
        x = program.enter(batch(seed=seed))
        for k in range(2):
            done = program.run(x, weights[k], of(net), again=k)
            plain = program.run(x, weights[k], of(net))
            assert torch.equal(done.output, plain.output)
            gradient = some_gradient(done.output)
            assert_equal(done.backward(gradient).values(), plain.backward(gradient).values())


def test_a_recording_is_played_by_any_number_of_threads() -> None:
    net = small()
    program = Program(net)
    found = []
    for count in (1, 3, 2):
        with threads(count):
            done = program.run(program.enter(batch(256)), of(net), of(net), again="again")
            found.append([done.output, *done.backward(some_gradient(done.output)).values()])
    assert_equal(found[0], found[1])
    assert_equal(found[0], found[2])


def test_levels_move_within_a_recording(passes: Passes) -> None:
    net = small()
    program = Program(net)
    levels = {n: (torch.rand(of(net)[n].shape) * 255).byte() for n in program.skippable}
    ranked = {n: Ranked(levels[n], 100) for n in program.skippable}
    for seed, level in enumerate((50, 100, 0, 70)):
        x = program.enter(batch(seed=seed))
        fixed: dict[str, Any] = of(net)
        moving: dict[str, Any] = of(net)
        for n, lists in ranked.items():
            fixed[n] = lists.at(level), fixed[n].flatten()[lists.index]
            moving[n] = lists.moving.to(level, moving[n])
        done = program.run(x, moving, of(net), again="again")
        plain = program.run(x, fixed, of(net), again="not this one")
        assert torch.equal(done.output, plain.output)
        gradient = some_gradient(done.output)
        found, expected = done.backward(gradient), plain.backward(gradient)
        assert found.keys() == expected.keys()
        assert_equal((found[n] for n in expected), expected.values())
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(0.9)
    assert passes.made == 1 + 4


def test_too_large_a_recording_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    net = small()
    program = Program(net)
    done = program.run(program.enter(batch()), of(net), [], again="again")
    numbers = sum(t.nbytes for t in done._forward.kept)  # type: ignore[attr-defined]
    for most, kept in ((numbers, True), (numbers - 1, False)):
        monkeypatch.setattr(replay, "_MOST", most)
        program = Program(net)
        for seed in range(3):
            x = program.enter(batch(seed=seed))
            found = program.run(x, of(net), of(net), again="again")
            plain = program.run(x, of(net), of(net))
            assert (type(found) is not type(plain)) == kept
            assert torch.equal(found.output, plain.output)
            gradient = some_gradient(plain.output)
            assert_equal(found.backward(gradient).values(), plain.backward(gradient).values())


def test_what_is_too_large_is_tried_once(monkeypatch: pytest.MonkeyPatch, passes: Passes) -> None:
    monkeypatch.setattr(replay, "_MOST", 0)
    net = small()
    program = Program(net)
    for seed in range(5):
        program.run(program.enter(batch(seed=seed)), of(net), [], again="again")
    assert passes.made <= 6


UNRECORDED: dict[str, Callable[[], nn.Module]] = {
    "by torch": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Conv2d(4, 2, 3)),
    "overlap": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(3, 2), nn.Conv2d(4, 2, 1)),
    "layout": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).to(
        memory_format=torch.channels_last  # type: ignore[call-overload]
    ),
}


@pytest.mark.parametrize("make", UNRECORDED.values(), ids=UNRECORDED)
def test_what_cannot_be_recorded_runs_without(
    make: Callable[[], nn.Module], passes: Passes
) -> None:
    net = make().double()
    other = deepcopy(net)
    programs = Program(net), Program(other)
    for seed in range(3):
        x = batch(seed=seed)
        assert_equal(step(net, programs[0], x, "again"), step(other, programs[1], x, None))
    assert passes.made == 6


def test_tied_weights_in_a_recording() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 192)).double()
    net[3].weight = net[1].weight
    other = deepcopy(net)
    programs = Program(net), Program(other)
    for seed in range(3):
        x = batch(seed=seed)
        assert_equal(step(net, programs[0], x, "again"), step(other, programs[1], x, None))


def test_weights_turned_in_place_are_noticed() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 192, bias=False)).double()
    program = Program(net)
    x = program.enter(batch())
    W = of(net)["1.weight"]
    for weight in (W, W.t(), W):
        done = program.run(x, {"1.weight": weight}, [], again="again")
        assert torch.equal(done.output, program.run(x, {"1.weight": weight}, []).output)
