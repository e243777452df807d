"""Networks that are odd: what they return, take and write to, and parts that cannot be traced."""

from __future__ import annotations

import inspect
import math
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from compaction_nets import filter_mask, randomize
from dessilbi import Mask, project
from dessilbi.compaction import Compact, CompactError, compact
from dessilbi.graph.compare import difference, drawn_examples

if TYPE_CHECKING:
    from collections.abc import Callable

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Base(nn.Module):
    """Two padded convolutions and a classifier; ``forward`` is what differs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, 5)

    def head(self, x: Tensor) -> Tensor:
        return self.fc(self.b(x).mean((2, 3)))

    def forward(self, x: Tensor) -> Any:
        return self.head(F.relu(self.a(x)))


def half(net: nn.Module, example: Any = X, **options: Any) -> Compact:
    """Compact with half of the filters off."""
    randomize(net)
    return compact(net, filter_mask(net, 0.5), example, **{"latency": False} | options)


def gap(net: nn.Module, small: Compact, *arguments: Any) -> float:
    """To the masked model, for networks that return one tensor."""
    with torch.no_grad(), project(net.eval(), filter_mask(net, 0.5)):
        return float((net(*arguments) - small.model(*arguments)).abs().max())


# ---------------------------------------------------------------------- outputs


@dataclass
class Output:
    logits: Tensor
    nothing: Tensor | None = None


def test_outputs_in_a_dataclass_are_compared() -> None:
    found = difference(lambda x: Output(x + 1), Output, [(X,)], "random")
    assert found.absolute == pytest.approx(1.0)


def test_an_output_without_tensors_is_refused() -> None:
    with pytest.raises(CompactError, match="holds no tensor that can be compared"):
        difference(str, str, [(X,)], "random")


class Classes(Base):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = super().forward(x)
        return logits, logits.argmax(1)


class Positive(Base):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = super().forward(x)
        return logits > 0, logits


class OnlyClasses(Base):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).argmax(1)


class Spectrum(Base):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(super().forward(x))


@pytest.mark.parametrize(
    ("make", "dtypes"),
    [
        (Classes, ["float64", "float32"]),
        (Positive, ["float64", "float32"]),
        (OnlyClasses, ["float64"]),
        (Spectrum, ["float64", "float32"]),
    ],
)
def test_outputs_that_are_no_floats(make: Callable[[], nn.Module], dtypes: list[str]) -> None:
    report = half(make()).report
    assert [one.dtype for one in report.differences] == dtypes
    assert report.compact.parameters < report.dense.parameters


def test_choices_are_compared_in_float64_alone() -> None:
    def other(x: Tensor) -> Tensor:
        return x.argmax(1) + 1

    with pytest.raises(CompactError, match=r"outputs of torch\.int64 differ on random inputs"):
        difference(other, lambda x: x.argmax(1), [(X,)], "random")
    # Rounding may tip a choice.
    assert difference(other, lambda x: x.argmax(1), [(X,)], "random", choices=False).relative == 0


def test_the_coarsest_output_gives_the_tolerance() -> None:
    found = difference(lambda x: x, lambda x: x, [([X, X.double()],)], "random")
    assert found.dtype == "float32"


# ---------------------------------------------------------------------- arguments


class Defaults(Base):
    def forward(self, x: Tensor, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
        x = F.relu(self.a(x))
        if mask is not None:
            x = x * mask
        return self.head(x) * scale


def test_arguments_that_were_not_given_are_still_there() -> None:
    net = Defaults()
    small = half(net).model
    assert list(inspect.signature(small.forward).parameters) == ["x", "scale", "mask"]
    with torch.no_grad():
        assert torch.allclose(small(X, scale=3.0), 3 * small(X))


def test_keyword_arguments() -> None:
    net, mask = Defaults(), (X[:, :1] > 0).float()
    small = half(net, {"x": X, "mask": mask})
    with torch.no_grad(), project(net.eval(), filter_mask(net, 0.5)):
        assert torch.allclose(small.model(X, mask=1 - mask), net(X, mask=1 - mask), atol=1e-6)


def test_arguments_that_were_given_are_there() -> None:
    net, mask = Defaults(), (X[:, :1] > 0).float()
    small = half(net, (X, torch.tensor(3.0), mask))
    assert list(inspect.signature(small.model.forward).parameters) == ["x", "scale", "mask"]
    assert gap(net, small, X, torch.tensor(2.0), 1 - mask) < 1e-6


class Containers(Base):
    def forward(
        self, x: Tensor, dims: tuple[int, ...] = (2, 3), *, by: dict[str, float] | None = None
    ) -> tuple[Tensor, Tensor]:
        x = self.b(F.relu(self.a(x))).mean(dims)
        return self.fc(x) * (by or {"scale": 2.0})["scale"], x


def test_defaults_may_be_containers() -> None:
    net = Containers()
    small = half(net)
    assert small.report.compact.parameters < small.report.dense.parameters
    with torch.no_grad():
        assert [t.shape for t in small.model(X)] == [(2, 5), (2, 8)]


class Several(Base):
    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        return super().forward(x + sum(more))


def test_any_number_of_arguments() -> None:
    net = Several()
    small = half(net, (X, X, X))
    assert gap(net, small, X, 2 * X, 3 * X) < 1e-6
    with torch.no_grad():
        assert small.model(X, X, X, X).shape == (2, 5)


def test_too_many_arguments() -> None:
    with pytest.raises(CompactError, match="takes 2 positional arguments but 3 were given"):
        half(Base(), (X, X))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.i, self.o = nn.Linear(6, 8), nn.Linear(8, 3)
        self.g = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        return self.o(self.g(F.relu(self.i(x)), hidden)[0])


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, adjacent: Tensor) -> Tensor:
        return adjacent @ self.b(F.relu(adjacent @ self.a(x)))


@pytest.mark.filterwarnings("ignore:nothing was removed")
@pytest.mark.parametrize(
    ("make", "example"),
    [
        (Recurrent, (torch.ones(1, 5, 6), torch.ones(1, 1, 8))),
        (Recurrent, (torch.ones(2, 5, 6), torch.ones(1, 2, 8))),
        (Graph, (torch.ones(10, 6), torch.ones(10, 10))),
        (Graph, (torch.ones(4, 6), torch.ones(4, 4))),
    ],
)
def test_networks_that_take_only_as_many_examples_as_they_are_shown(
    make: Callable[[], nn.Module], example: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def measure(dense: object, small: object, arguments_of: dict[int, Any], _: bool) -> tuple[()]:
        asked.extend(arguments_of)
        return ()

    monkeypatch.setattr("dessilbi.compaction._compact.measure", measure)
    half(make(), example, latency=True)
    assert asked == [len(example[0])]  # no other batch size is timed


def test_a_network_that_runs_on_no_random_numbers_is_refused() -> None:
    def picky(x: Tensor) -> Tensor:
        raise ValueError("not this one")

    with pytest.raises(CompactError, match=r"does not run on random inputs.*not this one"):
        drawn_examples(picky, (X,))


class WritesToItsInput(Base):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(0.5))


def test_the_example_is_not_written_to() -> None:
    example = X.clone()
    half(WritesToItsInput(), example)
    assert torch.equal(example, X)


# ---------------------------------------------------------------------- operations


class AddsShare(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        return self.fc(self.b(x).add_(x, alpha=0.5).mean((2, 3)))


class Fills(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        zeros = x.new_empty(x.shape[0], 8, 1, 1).zero_()
        halves = torch.empty_like(x).fill_(0.5)
        return self.fc((self.b(x) * halves + zeros + zeros.clone().copy_(zeros)).mean((2, 3)))


class FillsByFunction(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = self.head(F.relu(self.a(x)))
        return x + nn.init.ones_(torch.empty_like(x)) + torch.zero_(torch.empty_like(x))


class Asks(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.a(x)).requires_grad_(False))


class LastChannels(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.a(x)).contiguous(memory_format=torch.channels_last))


@pytest.mark.filterwarnings("ignore:nothing was removed")
@pytest.mark.parametrize("make", [AddsShare, Fills, FillsByFunction, Asks, LastChannels])
def test_methods_with_options_and_without_twins(make: Callable[[], nn.Module]) -> None:
    net = make()
    assert gap(net, half(net), X.clone()) < 1e-6


def test_what_has_no_twin_does_not_write_to_what_a_cut_put_there() -> None:
    class Emptied(Base):
        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.a(x))
            y = (x + self.b(x)).zero_()  # the sum vanishes: it is ``x`` itself
            return self.fc((x + y).mean((2, 3)))

    net = Emptied()
    nn.init.zeros_(net.b.bias)  # type: ignore[arg-type]
    mask = Mask({"b.weight": torch.zeros(8, 8, 3, 3).bool()})
    net.eval()
    small = compact(net, mask, X, form="graph", latency=False)
    assert small.plan.nodes["add"].kind == "skip"
    with torch.no_grad():
        assert torch.allclose(small.model(X), net(X), atol=1e-6)


class Dropped(nn.Module):
    def __init__(self, dims: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        conv = (nn.Conv1d, nn.Conv2d)[dims - 1]
        self.a, self.b = conv(3, 8, 3, padding=1), conv(8, 8, 3, padding=1)
        self.drop = (nn.Dropout1d, nn.Dropout2d)[dims - 1](0.1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.drop(F.relu(self.a(x)))).flatten(2).mean(2))


@pytest.mark.parametrize("dims", [1, 2])
def test_dropout_by_channel_is_not_run_on_a_vector(dims: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = half(Dropped(dims), torch.zeros(2, 3, *[8] * dims)).report
    assert not report.kept_whole
    assert report.compact.parameters < report.dense.parameters


# ---------------------------------------------------------------------- parts


class SamePadded(nn.Conv2d):
    """Pads as TensorFlow does, more behind than before, by code that depends on sizes."""

    def forward(self, x: Tensor) -> Tensor:
        pad = []
        for size, stride, kernel in zip(x.shape[:1:-1], self.stride, self.kernel_size, strict=True):
            missing = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            pad += [missing // 2, missing - missing // 2]
        return F.conv2d(F.pad(x, pad), self.weight, self.bias, self.stride)


def test_a_class_derived_from_a_layer_is_what_its_code_says() -> None:
    net = Base()
    net.b = SamePadded(8, 8, 3, stride=2)
    small = half(net)
    assert not small.report.kept_whole
    assert len(small.model.get_parameter("b.weight")) < 8
    assert gap(net, small, X) < 1e-6


class Configured(nn.Module):
    """Cannot be traced, and is called with what no graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor, options: SimpleNamespace) -> Tensor:
        return self.conv(x) * options.scale if bool(x.sum() > 0) else x


class Caller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Configured()])
        self.options = SimpleNamespace(scale=2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.parts[0](x, self.options)


class Calls(Base):
    def __init__(self) -> None:
        super().__init__()
        self.caller = Caller()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.caller(F.relu(self.a(x))))


class CallsItself(Calls):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.caller.parts[0](F.relu(self.a(x)), self.caller.options))


@pytest.mark.parametrize("make", [Calls, CallsItself])
def test_a_part_with_an_odd_argument_is_kept_whole(make: Callable[[], nn.Module]) -> None:
    net = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        small = half(net)
    assert small.report.kept_whole == ("caller.parts.0: cannot be read by torch.export",)
    assert gap(net, small, X) < 1e-6


# ---------------------------------------------------------------------- formats


class Stream(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        return self.fc((x + self.norm(self.b(x))).mean((2, 3)))


def test_a_scattered_sum_runs_under_autocast() -> None:
    net = Stream()
    small = half(net, streams="scatter")
    (name,) = small.report.scattered
    assert small.plan.nodes[name].shift
    with torch.autocast("cpu", torch.bfloat16):
        assert gap(net, small, X) < 0.05


@pytest.mark.parametrize("asked", [None, False])
def test_the_memory_format_is_the_models_if_it_is_not_timed(asked: bool | None) -> None:
    net = Stream().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    small = half(net, channels_last=asked)
    assert small.report.channels_last == (asked is None)
    formats = {
        p.is_contiguous(memory_format=torch.channels_last)
        for p in small.model.parameters()
        if p.ndim == 4
    }
    assert formats == {asked is None}
