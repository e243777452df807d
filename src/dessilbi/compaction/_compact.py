"""``compact``: a smaller network that is the same function as the masked one."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from dessilbi.graph.compare import (
    TOLERANCES,
    coarsest,
    difference,
    drawn_examples,
    in_double,
    of_another_size,
    random_like,
    require_small,
)
from dessilbi.graph.copies import copied
from dessilbi.graph.errors import CompactError
from dessilbi.graph.example import Example
from dessilbi.graph.names import named_weights
from dessilbi.graph.reading import refuse_hidden_code, require_runs
from dessilbi.graph.wrappers import bare_model
from dessilbi.path import Mask
from dessilbi.path.sharded import is_sharded
from dessilbi.subnet import project, recalibrate_batchnorm

from .autotune import batch_to_time, is_channels_last, is_faster, may_be_channels_last
from .cutting import Cut, Cutter
from .graph_form import set_state
from .optimizer_state import cut_optimizer
from .pretrained import save_pretrained
from .report import Report, Size, measure
from .serialization import save_compact

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torch.optim import Optimizer

    from dessilbi.graph.compare import Difference
    from dessilbi.graph.plan import Form, Plan

BATCHES = (1, 128)
"""Batch sizes whose latency is measured."""

_O = TypeVar("_O", bound="Optimizer")
Streams = Literal["auto", "keep", "scatter"]


@dataclass(frozen=True)
class Compact:
    """A smaller network, what it gained, and how it was cut."""

    model: nn.Module
    """In the mode that the model was in; parameters have the names that they had."""
    report: Report
    plan: Plan
    example: Example = field(repr=False)
    """What it was checked on."""

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a Hugging Face model for ``AutoModel...from_pretrained``, with no code of ours.

        Its layers must be of equal sizes, and its config able to say them; what is written is
        checked to be the same function. Otherwise :meth:`save` takes any sizes.

        Args:
            folder: made if needed.
        """
        save_pretrained(self.model, self.plan, self.example, folder)

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
    form: Literal["auto", "modules", "graph"] = "auto",
    streams: Streams = "auto",
    channels_last: bool | None = None,
    latency: bool = True,
    tolerance: float | None = None,
) -> Compact:
    """Cut everything out of a network that a mask leaves without effect.

    The result gives, in evaluation mode, the outputs of ``project(model, mask)``: with the biases
    and BatchNorm shifts of the filters that are off, and its statistics unless they are measured
    anew (``recalibrate``). This is checked on every call. The model itself is not changed.

    Where a copy of the model's own modules with smaller parameters gives the same function, that is
    the result: its class, its ``forward``, its arguments and outputs stay. Otherwise, where its
    code names sizes, it is a graph of the operators that the model calls.

    Args:
        model: the network.
        mask: which weights stay, a :class:`Mask` or ``opt.mask()``; parameters that it does
            not name stay as they are.
        example_input: a batch, a tuple of arguments whose first is one, or a dict of keyword
            arguments; its shapes are used.
        inputs: batches of real inputs to check as well, each like ``example_input``.
        recalibrate: batches of training inputs, on which the masked network's BatchNorm statistics
            are measured anew before it is cut; see :func:`recalibrate_batchnorm`.
        form: ``"modules"`` or ``"graph"``; ``"auto"`` takes the model's own modules where that is
            exact. A graph can do more: calls that have no effect left leave it as well.
        streams: what to do with filters that are off where a residual stream is not: ``"keep"``
            computes them, ``"scatter"`` leaves them out and adds the others by index, ``"auto"``
            measures which is faster. To scatter takes a graph.
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
    if form not in ("auto", "modules", "graph"):
        raise CompactError(f"form must be auto, modules or graph, got {form!r}")
    example = Example.of(example_input)
    model = bare_model(model)
    if is_sharded(model):
        raise CompactError(
            "each rank holds a part of the weights (FSDP2): gather them into a model that is not "
            "sharded, and compact that"
        )
    refuse_hidden_code(model)
    mask = Mask.of(mask)
    matrices = [name for name, p in named_weights(model).items() if p.ndim > 1]
    if not mask.kept and matrices and all(name in mask for name in matrices):
        raise CompactError(
            "the mask keeps no weight at all, so that nothing is left but biases; take a larger "
            "budget, or a later epoch"
        )
    masked = masked_copy(model, mask)
    if recalibrate is not None:
        recalibrate_batchnorm(masked, recalibrate)
    require_runs(masked, example)
    latency = latency and example.first.device.type == "cpu"
    examples = drawn_examples(masked, example)
    cutter = Cutter(masked, example)
    final = cutter.cut(form) if streams != "scatter" else cutter.scattered()
    any_size = examples != example.examples
    was_channels_last = is_channels_last(masked)
    if channels_last is None:
        channels_last = was_channels_last
        if latency and may_be_channels_last(final.model, example):
            batch = random_like(
                example, batch_to_time(final.model, example) if any_size else examples
            )
            channels_last = is_faster(final.model, final.model, batch, (True, False))
    if streams == "auto" and latency and form != "modules":
        batch = random_like(example, batch_to_time(final.model, example) if any_size else examples)
        final = cutter.fastest(final, batch, channels_last)
    small = final.model
    if channels_last or was_channels_last:  # layers that were not cut are as they were
        to = torch.channels_last if channels_last else torch.contiguous_format
        small.to(memory_format=to)  # type: ignore[call-overload]
    given = [Example.of(one) for one in inputs]
    differences, notes = _checked(final, model, masked, mask, example, examples, given, tolerance)
    dense, compacted = Size.of(masked, example), Size.of(small, example)
    batches = BATCHES if any_size else (examples,)
    measured = {n: random_like(example, n) for n in batches}
    reformat = channels_last and not was_channels_last
    report = Report(
        dense=dense,
        compact=compacted,
        form=final.plan.form,
        channels_last=channels_last,
        latency=measure(masked, small, measured, reformat) if latency else (),
        threads=torch.get_num_threads(),
        differences=differences,
        carriers=final.kept.carrier_count,
        scattered=tuple(n for n, cut in final.plan.nodes.items() if cut.kind == "scatter"),
        vanished=tuple(
            n for n, c in final.plan.nodes.items() if c.kind in ("cat", "constant", "skip")
        ),
        kept_whole=tuple(dict.fromkeys(final.analysis.reasons)),
        notes=(*final.notes, *notes),
    )
    _same_modes(small, model, final.plan.form)
    _warn_if_nothing(report, mask)
    return Compact(small, report, final.plan, example)


def masked_copy(model: nn.Module, mask: Mapping[str, Tensor]) -> nn.Module:
    """A copy in evaluation mode whose weights off the mask are zero, as ``project`` makes them."""
    Mask.of(mask).check(model)
    own = copied(model).eval()
    with project(own, mask, allow_empty=True):
        return copied(own)


def _same_modes(small: nn.Module, model: nn.Module, form: Form) -> None:
    """Let the result train where the model did."""
    small.train(model.training)
    if form == "modules":
        for name, module in model.named_modules(remove_duplicate=False):
            small.get_submodule(name).training = module.training


def _warn_if_nothing(report: Report, mask: Mask) -> None:
    if mask.kept == mask.total or report.compact.parameters < report.dense.parameters:
        return
    why = "; ".join(report.kept_whole) or "what is off is tied to what is not"
    warnings.warn(
        f"nothing was removed, though the mask keeps only {mask.density:.0%} of the weights "
        f"that it names: {why}",
        stacklevel=3,
    )


# ---------------------------------------------------------------------- the check


def _checked(
    final: Cut,
    model: nn.Module,
    masked: nn.Module,
    mask: Mask,
    example: Example,
    examples: int,
    given: list[Example],
    tolerance: float | None,
) -> tuple[tuple[Difference, ...], list[str]]:
    """Differences on random and given inputs, in float64 and in the model's own precision."""
    small = final.model
    sets = {"random": [random_like(example, examples)]}
    notes = []
    other = of_another_size(masked, example)
    if other is not None:
        try:
            with torch.no_grad():
                other.copied().call(small)
            sets["random"].append(other)
        except Exception:  # whatever a network's own code raises
            notes.append("the compact model takes only inputs of the example's size")
    if given:
        sets["given"] = given
    found = []
    doubled = in_double(sets["random"][0])
    precise = _in_double(small, masked, final.values, doubled)
    finest = TOLERANCES[torch.float64 if precise is None else coarsest(precise[1], doubled)]
    for kind, batches in sets.items():
        if precise is not None:
            one = difference(*precise, map(in_double, batches), kind)
            require_small(one, finest)
            found.append(one)
        # With the model that was given: a copy of it need not be the same. In less than float64
        # rounding may tip a choice between two that are as good.
        with _evaluated(model, masked, mask) as reference:
            one = difference(small, reference, batches, kind, choices=precise is None)
        if precise is None or one.dtype != "float64":
            limit = TOLERANCES[getattr(torch, one.dtype)] if tolerance is None else tolerance
            require_small(one, limit)
            found.append(one)
        else:
            require_small(one, TOLERANCES[torch.float64])
    return tuple(found), notes


@contextmanager
def _evaluated(model: nn.Module, masked: nn.Module, mask: Mask) -> Iterator[nn.Module]:
    """The model itself under the mask, in evaluation mode, with the masked copy's statistics."""
    modes = [(module, module.training) for module in model.modules()]
    statistics = dict(masked.named_buffers())
    before = {name: b.detach().clone() for name, b in model.named_buffers()}
    try:
        with project(model.eval(), mask, allow_empty=True), torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(statistics[name])
            yield model
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])
        for module, mode in modes:
            module.training = mode


def _in_double(
    small: nn.Module, masked: nn.Module, values: dict[str, Tensor], example: Example
) -> tuple[nn.Module, nn.Module] | None:
    """Both networks in float64, where the network allows it."""
    try:
        reference, precise = deepcopy(masked).double(), deepcopy(small).double()
        with torch.no_grad():
            example.copied().call(reference)
            example.copied().call(precise)
    except (RuntimeError, TypeError):
        return None
    set_state(precise, values)
    return precise, reference
