"""The base class of whatever follows an optimizer, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class Attached:
    """Follows an optimizer by hooks until it is closed; a context manager closes itself."""

    _handles: tuple[RemovableHandle, ...] = ()

    def close(self) -> None:
        """Let go of the optimizer; what was recorded or done stays."""
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
