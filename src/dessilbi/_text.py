"""Words for error messages."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def did_you_mean(
    word: str, known: Iterable[str], *, otherwise: str = "", cutoff: float = 0.5
) -> str:
    """The end of a message about an unknown word, with the known one that comes nearest.

    Args:
        word: what was given.
        known: what could have been given.
        otherwise: what to say if nothing comes near.
        cutoff: how alike two words must be, from 0 to 1.

    Example:
        >>> "unknown layer 'cnov1'" + did_you_mean("cnov1", ["conv1", "fc"])
        "unknown layer 'cnov1'; did you mean 'conv1'?"
    """
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), names, n=1, cutoff=cutoff)
    return f"; did you mean {names[near[0]]!r}?" if near else otherwise


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lines of cells in columns, two spaces apart: the first to the left, the others to the right.

    Example:
        >>> print(table([("", "dense", "compact"), ("bytes", "1,024", "64")]))
               dense  compact
        bytes  1,024       64
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    )
