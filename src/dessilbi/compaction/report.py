"""What compaction gained, and how exactly: one table."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dessilbi._text import table
from dessilbi.graph.macs import count_macs
from dessilbi.graph.names import named_weights

from .latency import Timing, side_by_side

if TYPE_CHECKING:
    from dessilbi.graph.compare import Difference
    from dessilbi.graph.example import Example
    from dessilbi.graph.plan import Form


@dataclass(frozen=True)
class Size:
    """What a network stores and computes, zeros included: the one meaning of size here."""

    parameters: int
    """As usual: weights, biases, BatchNorm's scales and shifts. Its statistics are buffers."""
    macs: float
    """Multiply-adds of all products for one example, counted as it runs."""
    nonzeros: int
    """Parameters without the weights of filters and matrices that are zero."""
    nonzero_macs: float
    """Multiply-adds of the weights that are not zero."""
    bytes: int
    """Of parameters and buffers."""

    @classmethod
    def of(cls, model: nn.Module, arguments: tuple[Any, ...] | Example) -> Size:
        """Count."""
        parameters = list(model.parameters())
        uses, others = count_macs(model, arguments)
        weights = named_weights(model)
        nonzero = {n: int(weights[n].count_nonzero()) for n in weights if weights[n].ndim > 1}
        return cls(
            parameters=sum(p.numel() for p in parameters),
            macs=others + sum(weights[name].numel() * each for name, each in uses.items()),
            nonzeros=sum(nonzero.get(name, p.numel()) for name, p in weights.items()),
            nonzero_macs=others + sum(nonzero.get(n, 0) * each for n, each in uses.items()),
            bytes=sum(t.numel() * t.element_size() for t in [*parameters, *model.buffers()]),
        )


@dataclass(frozen=True)
class Latency:
    """Both networks on one batch size, timed in turn."""

    batch: int
    dense: Timing
    """As the caller gave it."""
    compact: Timing
    dense_channels_last: Timing | None = None
    """The dense model in the memory format of the compact one, if that is not its own."""

    @property
    def ratio(self) -> float:
        """How many times faster the compact model is, by medians."""
        return self.dense.median / self.compact.median

    @property
    def ratio_in_one_format(self) -> float:
        """The same with both in the compact model's memory format."""
        return (self.dense_channels_last or self.dense).median / self.compact.median


@dataclass(frozen=True)
class Report:
    """Sizes, speed and equality of a compact model."""

    dense: Size
    compact: Size
    form: Form
    """Whether the result is made of the model's own modules, or a graph of its operators."""
    latency: tuple[Latency, ...]
    """Empty if it was not measured."""
    threads: int
    channels_last: bool
    """Whether the compact model's feature maps have their channels last in memory."""
    differences: tuple[Difference, ...]
    """To the masked model."""
    carriers: int
    """Dead channels that stay to carry the constants of others."""
    scattered: tuple[str, ...]
    """Sums whose branch computes only the channels that vary."""
    vanished: tuple[str, ...]
    """Sums, products and concatenations that lost a side."""
    kept_whole: tuple[str, ...]
    """Operations that were not looked into and the reason: all channels they touch stay."""
    notes: tuple[str, ...] = ()

    @property
    def largest_difference(self) -> float:
        """Relative, over all inputs and precisions."""
        return max(d.relative for d in self.differences)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"largest_difference": self.largest_difference}

    def __str__(self) -> str:
        rows = [("", "dense", "compact", "ratio")]
        for name in ("parameters", "macs", "bytes"):
            a, b = getattr(self.dense, name), getattr(self.compact, name)
            rows.append((name, f"{a:,.0f}", f"{b:,.0f}", f"{_ratio(a, b):.2f}"))
        rows += [
            (f"batch {one.batch}", str(one.dense), str(one.compact), f"{one.ratio:.2f}")
            for one in self.latency
        ]
        rows += [
            (f"batch {one.batch}, channels last", str(one.dense_channels_last), "as above",
             f"{one.ratio_in_one_format:.2f}")
            for one in self.latency if one.dense_channels_last is not None
        ]  # fmt: skip
        small = self.compact
        made = "the model's own modules" if self.form == "modules" else "a graph of operators"
        lines = [table(rows), f"made of: {made}"]
        lines.append(f"nonzeros: {small.nonzeros:,} of the {small.parameters:,} parameters")
        lines += [f"difference to the masked model: {found}" for found in self.differences]
        if self.carriers:
            lines.append(f"carrier channels: {self.carriers}")
        for name, entries in (
            ("scattered", self.scattered),
            ("vanished", self.vanished),
            ("kept whole", self.kept_whole),
            ("note", self.notes),
        ):
            lines += [f"{name}: {entry}" for entry in entries]
        return "\n".join(lines)


def measure(
    dense: nn.Module,
    compact: nn.Module,
    arguments_of: dict[int, Example],
    reformat: bool,
    seconds: float = 30.0,
) -> tuple[Latency, ...]:
    """Time both networks for each batch size, on as many threads as torch has now.

    Args:
        dense: as the caller gave it.
        compact: the smaller one.
        arguments_of: what they are called with, by batch size.
        reformat: whether the dense one is timed with its channels last as well.
        seconds: batches that would take longer, by the smaller ones, are left out.
    """
    networks = [dense, compact]
    if reformat:
        other = deepcopy(dense).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.inference_mode(), suppress(RuntimeError):  # a view that needs the other format
            next(iter(arguments_of.values())).call(other)
            networks.append(other)
    found: list[Latency] = []
    stop = time.perf_counter() + seconds
    for batch, arguments in sorted(arguments_of.items()):
        if found:
            last = found[-1]
            one_round = (last.dense.median + last.compact.median) / 1e3 * batch / last.batch
            if time.perf_counter() + 4 * one_round > stop:  # a call before, and three rounds
                break
        calls = [partial(arguments.call, network) for network in networks]
        found.append(Latency(batch, *side_by_side(calls)))
    return tuple(found)


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.inf
