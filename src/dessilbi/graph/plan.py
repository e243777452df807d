"""What is cut where: plain values that turn a network into the smaller one.

A plan holds no weights. Applied to the same network again, whatever its weights, it gives a network
of the same structure: that is how a compact model is loaded, and how optimizer state is cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .errors import CompactError

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT, VERSION = "dessilbi-compact", 2

Form = Literal["modules", "graph"]


@dataclass(frozen=True)
class TensorCut:
    """What stays of a parameter or buffer."""

    stays: dict[int, tuple[int, ...]]
    """By dimension, the slices that stay; of a grouped convolution's weight, input channels in
    dimension 1."""
    groups: int = 1
    """Groups of the convolution before the cut."""
    groups_left: int = 1
    shape: tuple[int, ...] = ()
    """Before the cut."""

    def to_json(self) -> dict[str, Any]:
        """As plain values; runs of indices as ``0-3,7``."""
        return {
            "stays": {str(d): spans(i) for d, i in self.stays.items()},
            "groups": self.groups,
            "groups_left": self.groups_left,
            "shape": list(self.shape),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TensorCut:
        """The inverse of :meth:`to_json`."""
        stays = {int(d): indices(i) for d, i in values["stays"].items()}
        shape = tuple(map(int, values["shape"]))
        return cls(stays, int(values["groups"]), int(values["groups_left"]), shape)


NodeKind = Literal["numbers", "constant", "skip", "cat", "scatter"]
_KINDS: tuple[str, ...] = ("numbers", "constant", "skip", "cat", "scatter")


@dataclass(frozen=True)
class NodeCut:
    """A call of the graph that changes.

    numbers: other sizes, and maybe another ``operator``. cat: only the
    inputs at ``positions`` are joined. constant: the input there is a constant by channel. skip:
    the call gives its input there as it is. scatter: the input at ``positions[1]`` has only the
    channels ``index`` of the other, and is added there.
    """

    kind: NodeKind
    positions: tuple[int, ...] = ()
    index: tuple[int, ...] = ()
    numbers: dict[str, Any] = field(default_factory=dict)
    """By the argument's position, ``"1"``, or that of an entry of a list, ``"1.2"``."""
    operator: str = ""
    shift: bool = False
    """Whether a scatter also adds a constant by channel."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "kind": self.kind,
            "positions": list(self.positions),
            "index": spans(self.index),
            "numbers": self.numbers,
            "operator": self.operator,
            "shift": self.shift,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> NodeCut:
        """The inverse of :meth:`to_json`."""
        if values["kind"] not in _KINDS:
            raise CompactError(f"the plan has a node of unknown kind {values['kind']!r}")
        return cls(
            values["kind"],
            tuple(map(int, values["positions"])),
            indices(values["index"]),
            dict(values["numbers"]),
            str(values["operator"]),
            bool(values["shift"]),
        )


@dataclass(frozen=True)
class Plan:
    """Everything that changes, by the names of parameters, of attributes and of nodes."""

    network: str
    """Fingerprint of the network that the plan was made for: names and shapes."""
    form: Form = "modules"
    """Whether the result is made of the network's own modules, or a graph of its operators."""
    tensors: dict[str, TensorCut] = field(default_factory=dict)
    biases: tuple[str, ...] = ()
    """Weights whose layer gets a bias that it did not have; it holds constants."""
    attributes: dict[str, int] = field(default_factory=dict)
    """Numbers that modules store, by ``module.attribute``."""
    nodes: dict[str, NodeCut] = field(default_factory=dict)
    example: list[Any] = field(default_factory=list)
    """Of a graph: the arguments that it is read with, as plain values."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "network": self.network,
            "form": self.form,
            "tensors": {name: cut.to_json() for name, cut in self.tensors.items()},
            "biases": list(self.biases),
            "attributes": self.attributes,
            "nodes": {name: cut.to_json() for name, cut in self.nodes.items()},
            "example": self.example,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Plan:
        """The inverse of :meth:`to_json`."""
        if values["form"] not in ("modules", "graph"):
            raise CompactError(f"the plan is of unknown form {values['form']!r}")
        return cls(
            str(values["network"]),
            values["form"],
            {name: TensorCut.from_json(cut) for name, cut in values["tensors"].items()},
            tuple(map(str, values["biases"])),
            {str(name): int(number) for name, number in values["attributes"].items()},
            {name: NodeCut.from_json(cut) for name, cut in values["nodes"].items()},
            list(values["example"]),
        )


def spans(numbers: Iterable[int]) -> str:
    """Numbers as text, runs of ascending ones as ``0-3``."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def indices(text: str) -> tuple[int, ...]:
    """The numbers of a text that :func:`spans` wrote."""
    if not re.fullmatch(r"(\d+(-\d+)?(,\d+(-\d+)?)*)?", text):
        raise CompactError(f"indices must read like '0-3,7', got {text!r}")
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)
