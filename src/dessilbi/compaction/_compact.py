"""``compact``: a smaller network that is the same function as the masked one."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor, fx, nn

from dessilbi.graph.analysis import Analysis
from dessilbi.graph.compare import (
    TOLERANCES,
    difference,
    drawn_examples,
    in_double,
    random_like,
    require_small,
)
from dessilbi.graph.errors import CompactError
from dessilbi.graph.operations import DROPOUTS, operation
from dessilbi.graph.plan import Plan
from dessilbi.graph.steps import Draft
from dessilbi.graph.tracing import Traced, as_arguments, refuse_hidden_code, trace
from dessilbi.graph.wrappers import bare_model
from dessilbi.path import Mask
from dessilbi.path.sharded import is_sharded
from dessilbi.subnet import project, recalibrate_batchnorm

from .autotune import BATCH, is_channels_last, is_faster, may_be_channels_last, scatterable
from .build import build, fingerprint, set_state
from .liveness import keep_channels, live_steps
from .optimizer_state import cut_optimizer
from .report import Report, Size, measure
from .serialization import save_compact

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torch.optim import Optimizer

    from dessilbi.graph.channels import KeptChannels
    from dessilbi.graph.compare import Difference

BATCHES = (1, 128)
"""Batch sizes whose latency is measured."""

_O = TypeVar("_O", bound="Optimizer")
Streams = Literal["auto", "keep", "scatter"]


@dataclass(frozen=True)
class Compact:
    """A smaller network, what it gained, and how it was cut."""

    model: fx.GraphModule
    """In evaluation mode; parameters have the names that they had."""
    report: Report
    plan: Plan

    def save(
        self, folder: str | Path, constructor: str, arguments: Mapping[str, Any] | None = None
    ) -> int:
        """Write weights and plan; see :func:`save_compact`."""
        return save_compact(self, folder, constructor, arguments)

    def cut_optimizer(self, model: nn.Module, optimizer: _O) -> _O:
        """The model's optimizer for the smaller network, V and momentum cut along.

        Args:
            model: the network that was compacted.
            optimizer: trains it; is left alone.
        """
        return cut_optimizer(self.plan, self.model, model, optimizer)


def compact(
    model: nn.Module,
    mask: Mapping[str, Tensor],
    example_input: Any,
    *,
    inputs: Iterable[Any] = (),
    recalibrate: Iterable[Tensor] | None = None,
    streams: Streams = "auto",
    channels_last: bool | None = None,
    latency: bool = True,
    tolerance: float | None = None,
) -> Compact:
    """Cut everything out of a network that a mask leaves without effect.

    The result gives, in evaluation mode, the outputs of ``project(model, mask)``: with the biases
    and BatchNorm shifts of the filters that are off, and its statistics unless they are measured
    anew (``recalibrate``). This is checked on every call. The model itself is not changed.

    Args:
        model: the network.
        mask: which weights stay, a :class:`Mask` or ``opt.mask()``; parameters that it does
            not name stay as they are.
        example_input: a batch, or a tuple of arguments whose first is one; its shapes are used.
        inputs: batches of real inputs to check as well (tensors, or tuples of arguments).
        recalibrate: batches of training inputs, on which the masked network's BatchNorm statistics
            are measured anew before it is cut; see :func:`recalibrate_batchnorm`.
        streams: what to do with filters that are off where a residual stream is not: ``"keep"``
            computes them, ``"scatter"`` leaves them out and adds the others by index, ``"auto"``
            measures which is faster.
        channels_last: memory format of the result's feature maps; ``None`` measures whether it is
            faster (for networks of 2d convolutions on the CPU).
        latency: whether anything is timed, on torch's current threads: the report's latencies, in
            turn with the dense model, and what is left open above. If not, or if the input is not
            on the CPU, streams are kept and the memory format is the model's.
        tolerance: largest difference, relative to the largest output, in the model's own precision;
            by default 1e-5 in float32. In float64 it is 1e-10.

    Raises:
        CompactError: the network cannot be read, or the result is not the same function.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> mask = Mask({"0.weight": (torch.arange(16) < 5)[:, None].expand(16, 8)})
        >>> small = compact(model, mask, torch.zeros(1, 8), latency=False)
        >>> small.model
        Sequential(
          (0): Linear(in_features=8, out_features=5, bias=True)
          (1): ReLU()
          (2): Linear(in_features=5, out_features=2, bias=True)
        )
    """
    if streams not in ("auto", "keep", "scatter"):
        raise CompactError(f"streams must be auto, keep or scatter, got {streams!r}")
    model = bare_model(model)
    if is_sharded(model):
        raise CompactError(
            "each rank holds a part of the weights (FSDP2): gather them into a model that is not "
            "sharded, and compact that"
        )
    arguments = as_arguments(example_input)
    refuse_hidden_code(model)
    masked = masked_copy(model, mask)
    if recalibrate is not None:
        recalibrate_batchnorm(masked, recalibrate)
    traced = trace(masked, arguments)
    first = _Cut.of(traced, len(arguments))
    latency = latency and arguments[0].device.type == "cpu"
    examples = drawn_examples(masked, arguments)
    any_size = examples != len(arguments[0])
    batch = random_like(arguments, BATCH if any_size else examples)
    was_channels_last = is_channels_last(masked)
    if channels_last is None:
        channels_last = was_channels_last
        if latency and may_be_channels_last(first.model, arguments):
            channels_last = is_faster(first.model, first.model, batch, (True, False))
    final = first
    if streams == "scatter":
        final = first.scattered()
    elif streams == "auto" and latency:
        final = first.fastest(batch, channels_last)
    small = final.model
    if channels_last or was_channels_last:  # layers that were not cut are as they were
        to = torch.channels_last if channels_last else torch.contiguous_format
        small.to(memory_format=to)  # type: ignore[call-overload]
    differences = _checked(
        small, masked, final.values, random_like(arguments, examples), list(inputs), tolerance
    )
    batches = BATCHES if any_size else (examples,)
    report = Report(
        dense=Size.of(masked, arguments),
        compact=Size.of(small, arguments),
        channels_last=channels_last,
        latency=(
            measure(
                masked,
                small,
                {n: random_like(arguments, n) for n in batches},
                channels_last and not was_channels_last,
            )
            if latency
            else ()
        ),
        threads=torch.get_num_threads(),
        differences=differences,
        carriers=final.kept.carrier_count,
        scattered=tuple(n for n, cut in final.plan.nodes.items() if cut.kind == "scatter"),
        vanished=tuple(
            n for n, c in final.plan.nodes.items() if c.kind in ("cat", "constant", "skip")
        ),
        kept_whole=tuple(step.reason for step in final.analysis.opaque if step.reason is not None),
        notes=_notes(traced),
    )
    return Compact(small, report, final.plan)


def masked_copy(model: nn.Module, mask: Mapping[str, Tensor]) -> nn.Module:
    """A copy in evaluation mode whose weights off the mask are zero, as ``project`` makes them."""
    Mask.of(mask).check(model)
    own = deepcopy(model).eval()
    with project(own, mask, allow_empty=True):
        return deepcopy(own)


@dataclass(frozen=True)
class _Cut:
    """One way to cut a network, with the result."""

    traced: Traced
    arguments: int
    analysis: Analysis
    kept: KeptChannels
    plan: Plan
    values: dict[str, Tensor]
    model: fx.GraphModule

    @classmethod
    def of(cls, traced: Traced, arguments: int, scattered: dict[str, int] | None = None) -> _Cut:
        analysis = Analysis(traced, scattered)
        kept = keep_channels(analysis)
        draft = Draft()
        for step in live_steps(analysis, kept):
            step.write(kept, draft)
        plan = Plan(fingerprint(traced.module), arguments, draft.layers, draft.nodes)
        model = build(plan, traced.module).eval()
        set_state(model, draft.values)
        return cls(traced, arguments, analysis, kept, plan, draft.values, model)

    def scattered(self) -> _Cut:
        """Cut again, every branch without its dead channels."""
        chosen = {
            n: side for one in scatterable(self.analysis, self.kept) for n, side in one.items()
        }
        return _Cut.of(self.traced, self.arguments, chosen) if chosen else self

    def fastest(self, arguments: tuple[Any, ...], channels_last: bool) -> _Cut:
        """Cut again where it is faster to leave the dead channels of branches out."""
        best, chosen = self, dict[str, int]()
        for alike in scatterable(self.analysis, self.kept):
            other = _Cut.of(self.traced, self.arguments, chosen | alike)
            if is_faster(other.model, best.model, arguments, (channels_last, channels_last)):
                best, chosen = other, chosen | alike
        return best


def _checked(
    small: nn.Module,
    masked: nn.Module,
    values: dict[str, Tensor],
    drawn: tuple[Any, ...],
    given: list[Any],
    tolerance: float | None,
) -> tuple[Difference, ...]:
    """Differences on random and given inputs, in float64 and in the model's own precision."""
    sets = {"random": [drawn]}
    if given:
        sets["given"] = [as_arguments(one) for one in given]
    found = []
    precise = _in_double(small, masked, values, in_double(drawn))
    for kind, batches in sets.items():
        if precise is not None:
            one = difference(*precise, map(in_double, batches), kind)
            require_small(one, TOLERANCES[torch.float64])
            found.append(one)
        # In less than float64 rounding may tip a choice between two that are as good.
        one = difference(small, masked, batches, kind, choices=precise is None)
        if precise is None or one.dtype != "float64":
            limit = TOLERANCES[getattr(torch, one.dtype)] if tolerance is None else tolerance
            require_small(one, limit)
            found.append(one)
    return tuple(found)


def _in_double(
    small: nn.Module, masked: nn.Module, values: dict[str, Tensor], arguments: tuple[Any, ...]
) -> tuple[nn.Module, nn.Module] | None:
    """Both networks in float64, where the network allows it."""
    try:
        reference, precise = deepcopy(masked).double(), deepcopy(small).double()
        with torch.no_grad():
            reference(*deepcopy(arguments))
    except (RuntimeError, TypeError):
        return None
    set_state(precise, values)
    return precise, reference


def _notes(traced: Traced) -> tuple[str, ...]:
    return tuple(
        f"{node.name} stays off when the compact model trains; use nn.Dropout to have it back"
        for node in traced.nodes
        if operation(node) in DROPOUTS
    )
