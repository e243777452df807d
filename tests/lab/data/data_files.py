"""Tiny sets in the published formats, written by code that shares nothing with the readers."""

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

IDX_STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte",
             "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")  # fmt: skip
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer",
                 "dog", "frog", "horse", "ship", "truck")  # fmt: skip


def idx_bytes(array: np.ndarray) -> bytes:
    header = b"\x00\x00\x08" + bytes([array.ndim])
    return header + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_tiny_mnist(folder: Path, *, compress: bool, seed: int = 0) -> list[np.ndarray]:
    """Write 30 training and 10 test images; return the arrays in the order of IDX_STEMS."""
    rng = np.random.default_rng(seed)
    arrays = []
    folder.mkdir(parents=True, exist_ok=True)
    for stem, count in zip(IDX_STEMS, (30, 30, 10, 10), strict=True):
        shape = (count, 28, 28) if "images" in stem else (count,)
        array = rng.integers(0, 10 if "labels" in stem else 256, shape, dtype=np.uint8)
        content = idx_bytes(array)
        if compress:
            (folder / f"{stem}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / stem).write_bytes(content)
        arrays.append(array)
    return arrays


def tiny_cifar(records: int = 4, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Six batches: name -> (pixels (n, 3072), labels (n,))."""
    rng = np.random.default_rng(seed)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {
        name: (
            rng.integers(0, 256, (records, 3072), dtype=np.uint8),
            rng.integers(0, 10, records, dtype=np.uint8),
        )
        for name in names
    }


def binary_batch(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    return b"".join(
        bytes([label]) + row.tobytes() for row, label in zip(pixels, labels, strict=True)
    )


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def png(pixels: np.ndarray) -> bytes:
    """A lossless image file of (H, W, 3) bytes."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def tiny_tree(per_class: int = 2, seed: int = 0) -> dict[str, tuple[bytes, np.ndarray]]:
    """Relative path -> (png file, pixels); both splits, all ten classes."""
    rng = np.random.default_rng(seed)
    tree = {}
    for split in ("train", "test"):
        for name in CIFAR_CLASSES:
            for number in range(per_class):
                pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                tree[f"{split}/{name}/{number:04d}.png"] = (png(pixels), pixels)
    return tree
