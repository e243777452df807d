"""The ways to cut one network, each with its result."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

from dessilbi.graph.analysis import Analysis
from dessilbi.graph.compare import Difference, difference, random_like
from dessilbi.graph.errors import CompactError
from dessilbi.graph.matrix import Matrix
from dessilbi.graph.plan import Plan, TensorCut
from dessilbi.graph.reading import read
from dessilbi.graph.steps import Draft

from .autotune import is_faster, scatterable
from .graph_form import build_graph, node_cuts, set_state
from .liveness import keep_channels, live_nodes
from .modules_form import apply_plan, attribute_choices, with_attributes

if TYPE_CHECKING:
    from dessilbi.graph.classes import Kept
    from dessilbi.graph.example import Example
    from dessilbi.graph.reading import Network

_ALIKE = 1e-3
"""Two networks that differ by less, relative to the outputs, have the same structure."""


@dataclass(frozen=True)
class Cut:
    """One way to cut a network, with the result."""

    analysis: Analysis
    kept: Kept
    plan: Plan
    values: dict[str, Tensor]
    model: nn.Module
    notes: tuple[str, ...] = ()


@dataclass
class Cutter:
    """A masked network in evaluation mode, and how it can be cut."""

    masked: nn.Module
    example: Example
    _graph: Network | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.example = self.example.at_least_two(self.masked)
        self.fingerprint = fingerprint(self.masked)

    def cut(self, form: Literal["auto", "modules", "graph"]) -> Cut:
        """As modules if that is asked for or works, as a graph otherwise."""
        if form == "graph":
            return self.as_graph({})
        made = self.as_modules()
        if made is not None:
            return made
        if form == "modules":
            raise CompactError(
                f"the modules of {type(self.masked).__name__} do not run with fewer channels: "
                "their code names sizes; use form='graph'"
            )
        note = f"a graph of operators: the code of {type(self.masked).__name__} names sizes"
        graph = self.as_graph({})
        return replace(graph, notes=(note, *graph.notes))

    def as_modules(self) -> Cut | None:
        """A copy of the network's own modules; ``None`` if they do not run with fewer channels."""
        analysis = Analysis(read(self.masked, self.example))
        for step in analysis.steps.values():
            if isinstance(step, Matrix) and step.bias is None and step.leaf is not None:
                owner = self.masked.get_submodule(step.leaf.name.rpartition(".")[0])
                step.bias_fixed &= "bias" in owner._parameters
        kept = keep_channels(analysis, vanish=False)
        plan, values = self._planned(analysis, kept, vanish=False)
        small = apply_plan(plan, self.masked).eval()
        set_state(small, values)
        drawn = random_like(self.example, self.example.examples)

        def is_same(tried: nn.Module) -> bool:
            try:
                found: Difference = difference(tried, self.masked, [drawn], "random", choices=False)
            except (CompactError, RuntimeError, ValueError, TypeError, AssertionError, IndexError):
                return False
            return found.relative <= _ALIKE

        choices = attribute_choices(self.masked, analysis, kept)
        found = with_attributes(small, choices, is_same)
        if found is None:
            return None
        model, attributes = found
        return Cut(analysis, kept, replace(plan, attributes=attributes), values, model)

    def as_graph(self, scattered: dict[str, int]) -> Cut:
        """A graph of the network's operators."""
        network = self._read_any_batch()
        analysis = Analysis(network, scattered)
        kept = keep_channels(analysis, vanish=True)
        plan, values = self._planned(analysis, kept, vanish=True)
        nodes, constants = node_cuts(analysis, kept)
        plan = replace(plan, form="graph", nodes=nodes, example=described(self.example))
        values |= constants
        model = build_graph(plan, network, self.masked).eval()
        set_state(model, values)
        return Cut(analysis, kept, plan, values, model)

    def scattered(self) -> Cut:
        """As a graph, every branch without its dead channels."""
        first = self.as_graph({})
        chosen = {
            n: side for one in scatterable(first.analysis, first.kept) for n, side in one.items()
        }
        return self.as_graph(chosen) if chosen else first

    def fastest(self, first: Cut, example: Example, channels_last: bool) -> Cut:
        """As a graph where it is faster to leave the dead channels of branches out."""
        best, chosen = first, dict[str, int]()
        for alike in scatterable(first.analysis, first.kept):
            other = self.as_graph(chosen | alike)
            if is_faster(other.model, best.model, example, (channels_last, channels_last)):
                best, chosen = other, chosen | alike
        return best

    def _read_any_batch(self) -> Network:
        if self._graph is None:
            self._graph = read(self.masked, self.example, any_batch=True)
        return self._graph

    def _planned(
        self, analysis: Analysis, kept: Kept, *, vanish: bool
    ) -> tuple[Plan, dict[str, Tensor]]:
        draft = Draft()
        live = live_nodes(analysis, kept, vanish=vanish)
        for node, step in analysis.steps.items():
            if node in live:
                step.write(kept, draft)
        tensors = {}
        for leaf in analysis.leaves.values():
            stays = {d: kept.of(ids) for d, ids in enumerate(leaf.ids) if ids is not None}
            if leaf.name in draft.groups:
                columns, groups, groups_left, _ = draft.groups[leaf.name]
                stays.pop(1, None)
                found = {d: _indices(s) for d, s in stays.items()}
                found[1] = tuple(columns.tolist())
                shape = tuple(leaf.tensor.shape)
                tensors[leaf.name] = TensorCut(found, groups, groups_left, shape)
                continue
            found = {d: _indices(s) for d, s in stays.items() if not bool(s.all())}
            used = vanish or leaf.name in analysis.uses
            if found and used and all(found.values()):
                tensors[leaf.name] = TensorCut(found, shape=tuple(leaf.tensor.shape))
        plan = Plan(self.fingerprint, "modules", tensors, tuple(draft.biases))
        return plan, draft.values


def fingerprint(model: nn.Module) -> str:
    """A network's tensors and their shapes in sixteen digits, whatever its weights."""
    lines = [type(model).__qualname__]
    lines += [f"{name} {tuple(t.shape)}" for name, t in model.state_dict().items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def described(example: Example) -> list[object]:
    """Arguments as plain values: shapes and types of tensors."""

    def one(value: object) -> object:
        if isinstance(value, Tensor):
            return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        return value

    return [[one(a) for a in example.args], {k: one(v) for k, v in (example.kwargs or {}).items()}]


def _indices(stays: Tensor) -> tuple[int, ...]:
    return tuple(stays.nonzero().flatten().tolist())
