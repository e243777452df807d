"""How strong each group is at the last mark."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Strengths:
    """What ranks the groups, beside the norms of the last mark.

    Group layers have their norms in every mark. By element that would be as large as a checkpoint
    an epoch, so elements have |W| and |V| at the last mark only, in float16: 11 bits of precision
    serve a ranking, and values below 6e-8 count as zero.
    """

    W: dict[str, NDArray[np.float16]]
    """|W| by element, for Lasso layers."""
    V: dict[str, NDArray[np.float16]]
    """|V| by element, for Lasso layers."""
    thresholds: dict[str, NDArray[np.float32]]
    """lambd of each group, or one number for the layer."""
    kappa: dict[str, float]
    levels: dict[str, NDArray[np.uint8]] | None = None
    """The smallest budget that each group is trained in, in a nested run; see NestedTraining."""
    followers: dict[str, NDArray[np.int32]] | None = None
    """By parameter without a twin, for each of its elements the group that it leaves with, numbered
    through all layers, or -1; see NestedWidths. ``None`` for a run that was not by width."""


_W, _V, _THRESHOLDS = "strength.W.", "strength.V.", "strength.lambd."
_LEVELS, _FOLLOWERS = "strength.level.", "strength.follows."


def pack_strengths(s: Strengths | None) -> tuple[dict[str, Any], dict[str, NDArray[np.generic]]]:
    """Plain values and arrays."""
    if s is None:
        return {"kappa": None}, {}
    values = {"kappa": s.kappa, "widths": s.followers is not None}
    arrays: dict[str, NDArray[np.generic]] = {}
    for start, by_layer in ((_W, s.W), (_V, s.V)):
        arrays |= {start + name: _compress(array) for name, array in by_layer.items()}
    arrays |= {_THRESHOLDS + name: array for name, array in s.thresholds.items()}
    arrays |= {_LEVELS + name: _deflate(array) for name, array in (s.levels or {}).items()}
    arrays |= {_FOLLOWERS + name: array for name, array in (s.followers or {}).items()}
    return values, arrays


def unpack_strengths(values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Strengths | None:
    """The inverse of :func:`pack_strengths`."""
    if values["kappa"] is None:
        return None

    def part(start: str) -> dict[str, NDArray[Any]]:
        return {k.removeprefix(start): a for k, a in arrays.items() if k.startswith(start)}

    W, V = ({name: _decompress(a) for name, a in part(start).items()} for start in (_W, _V))
    levels = {name: _inflate(a) for name, a in part(_LEVELS).items()}
    followers = part(_FOLLOWERS)
    by_width = values.get("widths", bool(followers))  # older files do not say
    return Strengths(
        W, V, part(_THRESHOLDS), values["kappa"], levels or None, followers if by_width else None
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
