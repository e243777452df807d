"""Keep a set that was slow to decode: one safetensors file, checked, or made again."""

import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from dessilbi._disk import cache_dir, write_whole
from dessilbi.lab.data.splits import RawSet

_TENSORS = RawSet._fields[:-1]


def cached(name: str, fingerprint: str, source: str, build: Callable[[], RawSet]) -> RawSet:
    """Return the set kept under (name, fingerprint); build and keep it if there is no sound copy.

    A folder that cannot be written to costs a warning and the same work next time, not the run.

    Args:
        name: Name of the set.
        fingerprint: Changes when the files it is made from change.
        source: Where those files are.
        build: Makes the set from them.
    """
    path = cache_dir("decoded") / f"{name}-{fingerprint[:32]}.safetensors"
    if (kept := _load(path, source)) is not None:
        return kept
    fresh = build()._replace(source=source)
    try:
        _save(path, fresh)
    except OSError as error:
        warnings.warn(
            f"{path} cannot be written ({error}), so {name} will be decoded again next time. "
            "Set DESSILBI_CACHE to a folder that can be written to.",
            UserWarning,
            stacklevel=2,
        )
    return fresh


def _load(path: Path, source: str) -> RawSet | None:
    """The kept set, or None if the file is absent, cut short, or not what was written."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            # Cloned: the tensors would stay a window on the file, and change if it did.
            tensors = [file.get_tensor(key).clone() for key in _TENSORS]
            checksum = (file.metadata() or {}).get("crc32")
    except (SafetensorError, OSError):
        return None
    if checksum != _crc32(tensors):
        return None
    train_images, train_labels, test_images, test_labels = tensors
    return RawSet(train_images, train_labels, test_images, test_labels, source)


def _save(path: Path, raw: RawSet) -> None:
    """Keep the set, whole or not at all."""
    from safetensors.torch import save

    tensors = dict(zip(_TENSORS, raw[:-1], strict=True))
    content = save(tensors, metadata={"crc32": _crc32(list(tensors.values()))})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


def _crc32(tensors: list[Tensor]) -> str:
    total = 0
    for tensor in tensors:
        total = zlib.crc32(tensor.contiguous().numpy().data, total)
    return f"{total:08x}"
