"""What is cut where: plain values that turn the graph of a network into the smaller one.

A plan holds no weights. Applied to the same network again, whatever its weights, it gives a network
of the same structure: that is how a compact model is loaded, and how optimizer state is cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_args

from .errors import CompactError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FORMAT, VERSION = "dessilbi-compact", 2

LayerKind = Literal["linear", "convolution", "per-channel"]
NodeKind = Literal["flatten", "cat", "constant", "skip", "scatter"]


class _Cut:
    def to_json(self) -> dict[str, Any]:
        """As plain values; runs of indices as ``0-3,7``."""
        return {n: spans(v) if isinstance(v, tuple) else v for n, v in vars(self).items()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """The inverse of :meth:`to_json`."""
        kinds, what = (LayerKind, "layer") if cls is LayerCut else (NodeKind, "node")
        if values["kind"] not in get_args(kinds):
            raise CompactError(f"the plan has a {what} of unknown kind {values['kind']!r}")
        read: dict[type, Callable[[Any], Any]] = {tuple: indices, int: int, bool: bool}
        make: Any = cls
        return cast(
            "Self",
            make(*(read.get(type(f.default), str)(values[f.name]) for f in fields(make))),
        )


@dataclass(frozen=True)
class LayerCut(_Cut):
    """A layer that gets narrower."""

    kind: LayerKind
    rows: tuple[int, ...] = ()
    """Outputs that stay; of a per-channel layer, channels."""
    columns: tuple[int, ...] = ()
    """Inputs that stay."""
    groups: int = 1
    """Groups of the convolution before the cut."""
    groups_left: int = 1
    bias: bool = False
    """Whether the layer has a bias afterwards; one may be added to hold constants."""


@dataclass(frozen=True)
class NodeCut(_Cut):
    """A node of the graph that changes; ``positions`` are those of its arguments.

    flatten: a reshape to fixed sizes becomes a flatten. cat: only the inputs at ``positions`` are
    joined. constant: the input there is a constant by channel. skip: the node gives its input there
    as it is. scatter: the input at ``positions[1]`` has only the channels ``index`` of the other,
    and is added there.
    """

    kind: NodeKind
    positions: tuple[int, ...] = ()
    index: tuple[int, ...] = ()
    width: int = 0
    """Channels of the constant."""
    shift: bool = False
    """Whether a scatter also adds a constant by channel."""


@dataclass(frozen=True)
class Plan:
    """Everything that changes, by the names of layers and of nodes."""

    network: str
    """Fingerprint of the network that the plan was made for."""
    arguments: int
    """Positional arguments that the network is called with."""
    layers: dict[str, LayerCut] = field(default_factory=dict)
    nodes: dict[str, NodeCut] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "network": self.network,
            "arguments": self.arguments,
            "layers": {name: cut.to_json() for name, cut in self.layers.items()},
            "nodes": {name: cut.to_json() for name, cut in self.nodes.items()},
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Plan:
        """The inverse of :meth:`to_json`."""
        return cls(
            str(values["network"]),
            int(values["arguments"]),
            {name: LayerCut.from_json(cut) for name, cut in values["layers"].items()},
            {name: NodeCut.from_json(cut) for name, cut in values["nodes"].items()},
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
