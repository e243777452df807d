import gzip
import hashlib
import struct

import numpy as np
import pytest
import torch
from data_files import IDX_STEMS, idx_bytes, write_tiny_mnist

from dessilbi._disk import cache_dir
from dessilbi.lab.data import DataError, load_dataset, mnist, places
from dessilbi.lab.data.errors import read_bytes
from dessilbi.lab.data.mnist import parse_idx

UNOFFICIAL = "cannot be compared with published ones"


def load_tiny(name="mnist", **options):
    with pytest.warns(UserWarning, match=UNOFFICIAL):
        return load_dataset(name, **options)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("layout", ["mnist", ".", "MNIST/raw"])
def test_every_layout_gives_the_same_tensors(tmp_path, layout, compress):
    x, y, u, v = write_tiny_mnist(tmp_path / "data" / layout, compress=compress)
    data = load_tiny(data_dir=tmp_path / "data")
    images, labels = data.train.tensors()
    assert images.shape == (30, 1, 28, 28)
    assert images.dtype == torch.float32
    np.testing.assert_allclose(images[:, 0].numpy(), x / np.float32(255))
    assert labels.tolist() == y.tolist()
    assert labels.dtype == torch.int64
    np.testing.assert_array_equal(data.test.images[:, 0].numpy(), u)
    assert data.test.labels.tolist() == v.tolist()
    assert str(tmp_path / "data") in data.source


def test_fashion_mnist_has_its_own_folders(tmp_path):
    arrays = [
        write_tiny_mnist(tmp_path / place, compress=True, seed=seed)
        for seed, place in enumerate(["mnist", "FashionMNIST/raw"])
    ]
    for name, (images, *_) in zip(("mnist", "fashion-mnist"), arrays, strict=True):
        data = load_tiny(name, data_dir=tmp_path)
        np.testing.assert_array_equal(data.train.images[:, 0].numpy(), images)


def test_debians_folder_is_searched(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "SYSTEM_DATASETS", tmp_path / "system")
    write_tiny_mnist(tmp_path / "system" / "fashion-mnist", compress=True)
    assert load_tiny("fashion-mnist").source == str(tmp_path / "system" / "fashion-mnist")


def test_places_come_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv("DESSILBI_DATA", str(tmp_path / "env"))
    expected = [tmp_path / "argument", tmp_path / "env", tmp_path / "cache" / "data"]
    for place in reversed(expected):
        write_tiny_mnist(place / "mnist", compress=False)
        assert load_tiny(data_dir=tmp_path / "argument").source == str(place / "mnist")


def test_the_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("DESSILBI_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "dessilbi"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home" / ".cache" / "dessilbi"


def test_missing_names_every_place_and_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("DESSILBI_DATA", str(tmp_path / "env"))
    with pytest.raises(DataError) as caught:
        load_dataset("mnist", data_dir=tmp_path / "typo")
    message = str(caught.value)
    for place in ("typo/mnist", "typo/MNIST/raw", "env/mnist", "cache/data", "no-system-datasets"):
        assert str(tmp_path / place) in message
    assert "no such folder" in message
    assert "--download (12 MB)" in message
    assert "--data-dir" in message


def test_an_incomplete_folder_is_not_enough(tmp_path):
    write_tiny_mnist(tmp_path / "mnist", compress=True)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"(?s)t10k-labels-idx1-ubyte\[.gz\] in:.*--download"):
        load_dataset("mnist", data_dir=tmp_path)


def test_a_file_of_the_other_set_is_refused_by_name(tmp_path, monkeypatch):
    write_tiny_mnist(tmp_path, compress=True)
    hashes = {
        stem: hashlib.sha256(gzip.decompress((tmp_path / f"{stem}.gz").read_bytes())).hexdigest()
        for stem in IDX_STEMS
    }
    tiny = places.SOURCES["mnist"]._replace(sha256=hashes)
    monkeypatch.setitem(places.SOURCES, "mnist", tiny)
    load_dataset("mnist", data_dir=tmp_path)  # now the published set: no warning
    with pytest.raises(DataError, match=r"is train-images-.* of mnist, not .* of fashion-mnist"):
        load_dataset("fashion-mnist", data_dir=tmp_path)


def test_right_size_and_wrong_content_is_damage(tmp_path, monkeypatch):
    tiny = dict(zip(IDX_STEMS, (30, 30, 10, 10), strict=True))
    monkeypatch.setattr(mnist, "COUNTS", tiny)
    write_tiny_mnist(tmp_path, compress=False)
    with pytest.raises(DataError, match=r"train-images.*SHA-256.*Delete it.*--download"):
        load_dataset("mnist", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("number", "array", "message"),
    [
        (0, np.zeros((30, 8, 8), np.uint8), r"\(8, 8\) pixels, not \(28, 28\)"),
        (1, np.zeros(29, np.uint8), "29 labels for 30 images"),
        (3, np.full(10, 10, np.uint8), "labels go up to 10"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*cannot be compared")
def test_files_that_do_not_fit_together(tmp_path, number, array, message):
    write_tiny_mnist(tmp_path, compress=False)
    (tmp_path / IDX_STEMS[number]).write_bytes(idx_bytes(array))
    with pytest.raises(DataError, match=message):
        load_dataset("mnist", data_dir=tmp_path)


GOOD = idx_bytes(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))


def read_idx(path, dimensions):
    return parse_idx(read_bytes(path), path, dimensions)


@pytest.mark.parametrize(("name", "content"), [("a", GOOD), ("a.gz", gzip.compress(GOOD))])
def test_idx_round_trip(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    values = read_idx(tmp_path / name, dimensions=3)
    assert values.tolist() == np.arange(24).reshape(2, 3, 4).tolist()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("short", GOOD[:-5], r"19 bytes for the shape \(2, 3, 4\)"),
        ("long", GOOD + b"x", "25 bytes for the shape"),
        ("header", GOOD[:9], "starts with 00000803, must with 00000803 and sizes"),
        ("empty", b"", "starts with , must with 00000803"),
        ("magic", b"\x89PNG" + GOOD[4:], "starts with 89504e47, must with 00000803"),
        ("labels", idx_bytes(np.zeros(24, np.uint8)), "starts with 00000801"),
        ("cut.gz", gzip.compress(GOOD, mtime=0)[:-12], r"cannot be read \(.*end"),
        ("crc.gz", gzip.compress(GOOD, mtime=0)[:-8] + bytes(8), r"cannot be read \(CRC"),
        ("flip.gz", b"\x1f\x8b\x08\x00" + bytes(6) + b"\xff" * 40, "cannot be read"),
        ("plain.gz", GOOD, r"cannot be read \(Not a gzipped file"),
        ("huge", b"\x00\x00\x08\x03" + struct.pack(">3I", *[2**32 - 1] * 3), "0 bytes for"),
    ],
)
def test_damaged_idx_says_what_and_what_to_do(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(tmp_path / name, dimensions=3)
    assert str(tmp_path / name) in str(caught.value)
    assert "--download" in str(caught.value)


def test_a_file_that_cannot_be_opened(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path, dimensions=3)
