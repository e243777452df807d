"""Texts: characters as numbers, read in windows, each with the characters that follow.

``tinyshakespeare``, or any file whose name ends in ``.txt`` or ``.txt.gz``. The first nine tenths
train; the rest is what a run is evaluated on. Such a file is read byte by byte, so that every
character that it holds has a number.
"""

import hashlib
import string
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from dessilbi.lab.data.augment import Augmentation, RandomWindows
from dessilbi.lab.data.errors import DataError, read_bytes, warn_unofficial
from dessilbi.lab.data.places import folders, missing
from dessilbi.lab.data.splits import Batch, Bounds, Split

SHAKESPEARE = "tinyshakespeare"
_SUFFIXES = (".txt", ".txt.gz")
_CHARACTERS = f"\n !$&',-.3:;?{string.ascii_uppercase}{string.ascii_lowercase}"
_LENGTH = 1_115_394
_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
_TRAINING_TENTHS = 9


def is_text(name: str) -> bool:
    """Whether a data set is a text."""
    return name == SHAKESPEARE or name.endswith(_SUFFIXES)


def vocabulary(name: str) -> tuple[str, ...]:
    """The characters of a text, in the order of their numbers."""
    return tuple(_CHARACTERS if name == SHAKESPEARE else map(chr, range(256)))


class Text(NamedTuple):
    """What a text is split into, and where it was found."""

    train: "TextSplit"
    rest: "TextSplit"
    source: str


@dataclass(frozen=True, eq=False)
class TextSplit(Split):
    """A text in memory as windows that begin where the last one ended.

    An item is the characters of a window, and for each of them the one that follows.
    """

    takes = RandomWindows

    tokens: Tensor
    """uint8 (characters,): their numbers in the vocabulary."""
    starts: Tensor
    """int64 (windows,), on the same device: where each begins."""
    context: int
    """Characters of a window."""

    @classmethod
    def of(cls, tokens: Tensor, context: int) -> Self:
        """All windows of a text."""
        last = len(tokens) - context  # one more character follows
        return cls(tokens, torch.arange(0, last, context, device=tokens.device), context)

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, index: Tensor) -> Self:
        """The split made of the windows numbered ``index``; random ones still come from all."""
        return replace(self, starts=self.starts.index_select(0, index.to(self.starts.device)))

    def stream(
        self, order: Tensor, bounds: Bounds, augment: Augmentation | None, draws: Tensor | None
    ) -> Iterator[Batch]:
        """See :meth:`Split.stream`."""
        assert augment is None or isinstance(augment, RandomWindows)
        device = self.tokens.device
        starts = self.starts
        if augment is not None and draws is not None:
            starts = augment(len(self.tokens) - self.context, draws.to(device))
        order, window = order.to(device), torch.arange(self.context + 1, device=device)
        for first, last in bounds:
            index = starts.index_select(0, order[first:last])
            found = self.tokens[index.unsqueeze(1) + window].long()
            yield found[:, :-1], found[:, 1:]


def read_text(name: str, data_dir: str | Path | None, context: int, device: torch.device) -> Text:
    """Find a text, and split it into windows of so many characters."""
    path = _find(name, data_dir)
    tokens = torch.from_numpy(_numbers(name, path)).to(device)
    cut = len(tokens) * _TRAINING_TENTHS // 10
    for part in (tokens[:cut], tokens[cut:]):
        if len(part) <= context:
            raise DataError(
                f"{path} has {len(tokens):,} characters: too few for a window of {context} and the "
                f"character that follows in its last tenth; set --data.context lower"
            )
    train, rest = (TextSplit.of(part, context) for part in (tokens[:cut], tokens[cut:]))
    return Text(train, rest, str(path))


def _find(name: str, data_dir: str | Path | None) -> Path:
    inside, file = (SHAKESPEARE, "input.txt") if name == SHAKESPEARE else ("", name)
    places = folders(data_dir, *dict.fromkeys((inside, "")))
    for folder in places:
        for path in (folder / file, folder / f"{file}.gz"):
            if path.is_file():
                return path
    origin = "github.com/karpathy/char-rnn, data/tinyshakespeare" if inside else "where you have it"
    way_out = f"--download does not fetch texts: take {file} from {origin}"
    raise missing(name, f"{file}[.gz]", places, way_out)


def _numbers(name: str, path: Path) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """A file's bytes as numbers of the vocabulary."""
    content = read_bytes(path)
    if name != SHAKESPEARE:
        return np.frombuffer(content, np.uint8).copy()
    known = np.frombuffer(_CHARACTERS.encode(), np.uint8)
    found = np.frombuffer(content, np.uint8)
    if len(foreign := np.setdiff1d(found, known)):
        raise DataError(
            f"{path} is not {name}: it holds {bytes(foreign[:5])!r}, which is not among its "
            f"{len(known)} characters. A text of your own is trained on by its file name: "
            "--data.name my.txt"
        )
    if hashlib.sha256(content).hexdigest() != _SHA256:
        warn_unofficial(path, f"{len(content):,} other characters", f"{_LENGTH:,}")
    return np.searchsorted(known, found).astype(np.uint8)  # the vocabulary is sorted
