"""A sequence of supports, each kept as its difference to the one before.

A support is a boolean vector over all groups. Few groups change between two snapshots, so what is
kept is the list of flips: as distances from one flip to the next, a byte each (255: go on), where
flips are rare, and as packed bits where they are not; both compressed. Up to 5 % of flips that is
within 10 % of the entropy, about half of what compressed packed bits alone take. XOR undoes itself:
the sequence can be read in both directions.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Bits = NDArray[np.bool_]
    Indices = NDArray[np.int64]

_DISTANCES, _PACKED = b"d", b"p"
_RARE = 16  # packed bits win where more than one group in so many flips
_ESCAPE = 255


class SupportSequence:
    """Supports over ``size`` groups; grows by :meth:`append`."""

    def __init__(self, size: int, blobs: Sequence[bytes] = ()) -> None:
        self.size = size
        self.blobs = list(blobs)
        self._held = -1  # the support that _bits holds
        self._bits: Bits = np.zeros(size, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.blobs)

    def append(self, bits: Bits) -> None:
        """Add a support at the end."""
        flips = np.flatnonzero(self._at(len(self) - 1) != bits)
        self.blobs.append(encode(flips, self.size))
        self._held += 1
        self._bits = bits.copy()

    def at(self, index: int) -> Bits:
        """The support by its index, as a fresh array."""
        return self._at(index).copy()

    def flips(self, index: int) -> Indices:
        """The groups in which a support differs from the one before it."""
        return decode(self.blobs[index], self.size)

    def first(self, count: int) -> SupportSequence:
        """The sequence of the first supports."""
        return SupportSequence(self.size, self.blobs[:count])

    def _at(self, index: int) -> Bits:
        while self._held != index:
            forward = index > self._held
            flips = self.flips(self._held + 1 if forward else self._held)
            self._bits[flips] ^= True
            self._held += 1 if forward else -1
        return self._bits

    # ------------------------------------------------------------------ as arrays

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """What a file keeps."""
        ends = np.cumsum([len(blob) for blob in self.blobs], dtype=np.int64)
        return {"data": np.frombuffer(b"".join(self.blobs), dtype=np.uint8), "ends": ends}

    @classmethod
    def from_arrays(
        cls, size: int, data: NDArray[np.uint8], ends: NDArray[np.int64]
    ) -> SupportSequence:
        """The inverse of :meth:`arrays`."""
        content, starts = data.tobytes(), [0, *ends.tolist()]
        return cls(size, [content[a:b] for a, b in zip(starts, ends.tolist(), strict=False)])


def encode(flips: Indices, size: int) -> bytes:
    """Sorted indices below ``size``, compressed."""
    if len(flips) * _RARE > size:
        bits = np.zeros(size, dtype=np.bool_)
        bits[flips] = True
        return _PACKED + zlib.compress(np.packbits(bits).tobytes(), 6)
    gaps = np.diff(flips, prepend=-1) - 1
    escapes = gaps // _ESCAPE
    out = np.full(len(gaps) + int(escapes.sum()), _ESCAPE, dtype=np.uint8)
    out[np.cumsum(escapes + 1) - 1] = gaps % _ESCAPE
    return _DISTANCES + zlib.compress(out.tobytes(), 6)


def decode(blob: bytes, size: int) -> Indices:
    """The inverse of :func:`encode`."""
    kind, content = blob[:1], np.frombuffer(zlib.decompress(blob[1:]), dtype=np.uint8)
    if kind == _PACKED:
        return np.flatnonzero(np.unpackbits(content, count=size))
    if kind != _DISTANCES:
        raise ValueError(f"a support is stored in an unknown way, {kind!r}")
    last = content != _ESCAPE
    # Every byte moves on by its value; one below 255 also ends a distance and counts its flip.
    flips: Indices = np.cumsum(content.astype(np.int64) + last)[last] - 1
    return flips
