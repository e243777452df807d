"""Arrays for the page: one block of bytes, deflated and in base64, with an index.

Norms change little from epoch to epoch: they are rounded to 16 bits of the layer's largest, stored
as differences along the epochs, low bytes apart from high ones, which halves what deflate leaves.
"""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_TYPES = {"uint8": "u1", "int8": "i1", "uint16": "u2", "int32": "i4", "float32": "f4"}


class Packer:
    """Collects arrays; :meth:`add` returns the index entry by which the page finds one again."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, array: NDArray[Any], *, along: bool = False) -> dict[str, Any]:
        """Add an array as it is, or as differences along its first dimension (8 and 16 bits)."""
        kind = _TYPES[array.dtype.name]
        entry: dict[str, Any] = {"type": kind, "shape": list(array.shape), "at": self._size}
        if along:
            entry["delta"] = True
            array = np.diff(array, axis=0, prepend=np.zeros_like(array[:1]))
        content = np.ascontiguousarray(array)
        if kind == "u2":
            content = np.ascontiguousarray(content.view(np.uint8).reshape(-1, 2).T)
        raw = content.tobytes()
        self._parts.append(raw)
        self._size += len(raw)
        return entry

    def add_scaled(
        self, array: NDArray[np.float32], starts: Sequence[int], *, along: bool = True
    ) -> dict[str, Any]:
        """Non-negative numbers rounded to 16 bits of the largest in each block of columns."""
        clean = np.nan_to_num(array, nan=0.0, posinf=0.0, neginf=0.0)
        scales, rounded = [], np.zeros(array.shape, dtype=np.uint16)
        ends = [*starts[1:], array.shape[1]]
        for start, end in zip(starts, ends, strict=True):
            block = clean[:, start:end]
            largest = float(block.max(initial=0.0)) or 1.0
            scales.append(largest / 65535)
            rounded[:, start:end] = np.rint(block * (65535 / largest)).astype(np.uint16)
        return self.add(rounded, along=along) | {"scales": scales, "starts": list(starts)}

    def add_image(self, array: NDArray[np.float32]) -> dict[str, Any]:
        """Signed numbers rounded to 8 bits of the largest."""
        clean = np.nan_to_num(array, nan=0.0, posinf=0.0, neginf=0.0)
        largest = float(np.abs(clean).max(initial=0.0)) or 1.0
        return self.add(np.rint(clean * (127 / largest)).astype(np.int8)) | {"scale": largest / 127}

    def text(self) -> str:
        """Everything, for the page."""
        return base64.b64encode(zlib.compress(b"".join(self._parts), 6)).decode()
