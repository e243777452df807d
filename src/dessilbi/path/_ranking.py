"""What budgets rank groups by: their strengths at the last snapshot."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


class NestedRun(Protocol):
    """What a recorder asks of nested training (:class:`dessilbi.NestedTraining`)."""

    @property
    def budget_ranks(self) -> Mapping[str, NDArray[np.uint8]] | None:
        """By layer, the smallest budget that each group is trained in, as a rank."""

    @property
    def dependents(self) -> Mapping[str, NDArray[np.int32]] | None:
        """By parameter without a twin, the group that each element leaves with, or -1."""


@dataclass(frozen=True)
class Ranking:
    """What ranks the groups, beside the norms of the last snapshot.

    Group layers have their norms in every snapshot. By element that would be as large as a
    checkpoint an epoch, so elements have |W| and |V| at the last snapshot only, in float16: 11 bits
    of precision serve a ranking, and values below 6e-8 count as zero.
    """

    W: dict[str, NDArray[np.float16]]
    """|W| by element, for Lasso layers."""
    V: dict[str, NDArray[np.float16]]
    """|V| by element, for Lasso layers."""
    thresholds: dict[str, NDArray[np.float32]]
    """lambd of each group, or one number for the layer."""
    kappa: dict[str, float]
    budget_ranks: dict[str, NDArray[np.uint8]] | None = None
    """The smallest budget that each group is trained in, in a nested run; see NestedTraining."""
    dependents: dict[str, NDArray[np.int32]] | None = None
    """By parameter without a twin, for each of its elements the group that it leaves with, numbered
    through all layers, or -1; see NestedWidths. ``None`` for a run that was not by width."""


_W, _V, _THRESHOLDS = "strength.W.", "strength.V.", "strength.lambd."
_BUDGET_RANKS, _DEPENDENTS = "strength.level.", "strength.follows."


def pack_ranking(s: Ranking | None) -> tuple[dict[str, Any], dict[str, NDArray[np.generic]]]:
    """Plain values and arrays."""
    if s is None:
        return {"kappa": None}, {}
    values = {"kappa": s.kappa, "widths": s.dependents is not None}
    arrays: dict[str, NDArray[np.generic]] = {}
    for start, by_layer in ((_W, s.W), (_V, s.V)):
        arrays |= {start + name: _compress(array) for name, array in by_layer.items()}
    arrays |= {_THRESHOLDS + name: array for name, array in s.thresholds.items()}
    arrays |= {
        _BUDGET_RANKS + name: _deflate(array) for name, array in (s.budget_ranks or {}).items()
    }
    arrays |= {_DEPENDENTS + name: array for name, array in (s.dependents or {}).items()}
    return values, arrays


def unpack_ranking(values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Ranking | None:
    """The inverse of :func:`pack_ranking`."""
    if values["kappa"] is None:
        return None

    def part(start: str) -> dict[str, NDArray[Any]]:
        return {k.removeprefix(start): a for k, a in arrays.items() if k.startswith(start)}

    W, V = ({name: _decompress(a) for name, a in part(start).items()} for start in (_W, _V))
    ranks = {name: _inflate(a) for name, a in part(_BUDGET_RANKS).items()}
    dependents = part(_DEPENDENTS)
    by_width = values.get("widths", bool(dependents))  # older files do not say
    return Ranking(
        W, V, part(_THRESHOLDS), values["kappa"], ranks or None, dependents if by_width else None
    )


def _compress(array: NDArray[np.float16]) -> NDArray[np.uint8]:
    """Low bytes apart from high bytes: exponents are much alike, a fifth of the whole is saved."""
    planes = array.view(np.uint8).reshape(-1, 2).T
    return _deflate(planes)


def _decompress(content: NDArray[np.uint8]) -> NDArray[np.float16]:
    planes = _inflate(content).reshape(2, -1)
    return np.ascontiguousarray(planes.T).view(np.float16).reshape(-1)


def _deflate(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.frombuffer(zlib.compress(array.tobytes(), 1), dtype=np.uint8)


def _inflate(content: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.frombuffer(zlib.decompress(content.tobytes()), dtype=np.uint8)
