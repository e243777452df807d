import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import CIFAR_CLASSES, binary_batch, png, tiny_cifar, tiny_tree, write_tar
from PIL import Image

from dessilbi.lab.data import DataError, PadCropFlip, batches, image_archive, load_dataset
from dessilbi.lab.data.load import dataset_info

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot be compared with published ones")


def assert_holds(data, sets):
    pixels = np.concatenate([sets[name][0] for name in list(sets)[:5]])
    labels = np.concatenate([sets[name][1] for name in list(sets)[:5]])
    np.testing.assert_array_equal(data.train.images.numpy(), pixels.reshape(-1, 3, 32, 32))
    assert data.train.labels.tolist() == labels.tolist()
    np.testing.assert_array_equal(
        data.test.images.numpy(), sets["test_batch"][0].reshape(-1, 3, 32, 32)
    )
    assert data.test.labels.tolist() == sets["test_batch"][1].tolist()


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture
def sets():
    return tiny_cifar()


@pytest.fixture
def binary_files(sets):
    return {f"cifar-10-batches-bin/{name}.bin": binary_batch(*sets[name]) for name in sets}


@pytest.mark.parametrize("place", [".", "cifar10"])
def test_binary_batches(tmp_path, sets, binary_files, place):
    write_files(tmp_path / place, binary_files)
    assert_holds(load_dataset("cifar10", data_dir=tmp_path), sets)
    # and when the folder of the batches itself is named
    folder = tmp_path / place / "cifar-10-batches-bin"
    assert_holds(load_dataset("cifar10", data_dir=folder), sets)


def test_an_archive_is_read_in_place(tmp_path, sets, binary_files):
    folder = tmp_path / "data"
    folder.mkdir()
    write_tar(folder / "cifar-10-binary.tar.gz", binary_files)
    assert_holds(load_dataset("cifar10", data_dir=folder), sets)
    assert [path.name for path in folder.iterdir()] == ["cifar-10-binary.tar.gz"]
    assert not list((tmp_path / "cache").rglob("*"))


def test_colour_is_normalised_and_augmented_by_default(tmp_path, sets, binary_files):
    write_files(tmp_path, binary_files)
    data = load_dataset("cifar10", data_dir=tmp_path, dtype=torch.float64)
    x, _ = next(batches(data.test, 4, seed=0, epoch=0, shuffle=False))
    pixels = sets["test_batch"][0].reshape(-1, 3, 32, 32) / 255
    info = dataset_info("cifar10")
    mean, std = (np.array(v).reshape(3, 1, 1) for v in (info.mean, info.std))
    np.testing.assert_allclose(x.numpy(), (pixels - mean) / std, atol=1e-12)
    assert data.augmentation == PadCropFlip(pad=4)
    assert data.classes == CIFAR_CLASSES


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:-1], "12,291 bytes, no whole number of 3,073-byte records"),
        (lambda b: b"", "0 bytes"),
        (lambda b: b"\x0a" + b[1:], "labels go up to 10, must be in 0..9"),
        (None, "has no data_batch_2.bin"),
    ],
)
def test_damaged_batches_are_named(tmp_path, binary_files, change, message):
    name = "cifar-10-batches-bin/data_batch_2.bin"
    if change is None:
        del binary_files[name]
    else:
        binary_files[name] = change(binary_files[name])
    write_files(tmp_path, binary_files)
    with pytest.raises(DataError, match=message) as caught:
        load_dataset("cifar10", data_dir=tmp_path)
    assert "data_batch_2" in str(caught.value)
    assert "--download" in str(caught.value)


def test_missing_names_places_and_forms(tmp_path):
    with pytest.raises(DataError) as caught:
        load_dataset("cifar10", data_dir=tmp_path / "typo")
    message = str(caught.value)
    for part in ("typo/cifar10", "cache/data", "cifar-10-binary.tar.gz", "--download (170 MB)"):
        assert part in message


def test_a_truncated_archive(tmp_path, binary_files):
    path = tmp_path / "cifar-10-binary.tar.gz"
    write_tar(path, binary_files)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz: the archive cannot be read"):
        load_dataset("cifar10", data_dir=tmp_path)
    path.write_bytes(whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:])  # one bit of gzip's checksum
    with pytest.raises(DataError, match=r"the archive cannot be read to its end .CRC check failed"):
        load_dataset("cifar10", data_dir=tmp_path)


# --- archives of images -------------------------------------------------------------------------


def assert_holds_tree(data, tree):
    for split, name in ((data.train, "train"), (data.test, "test")):
        paths = sorted(path for path in tree if path.startswith(name))
        expected = np.stack([tree[path][1] for path in paths]).transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(split.images.numpy(), expected)
        assert split.labels.tolist() == [CIFAR_CLASSES.index(p.split("/")[1]) for p in paths]


@pytest.fixture
def tree():
    return tiny_tree()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def write_tree(folder: Path, tree, **changed: bytes) -> Path:
    """The archive of a tree."""
    path = folder / "cifar10-jpeg.tar.gz"
    write_tar(path, {name: content for name, (content, _) in tree.items()} | changed)
    return path


def test_an_archive_of_images_is_decoded_once(folder, tree, monkeypatch):
    write_tree(folder, tree)
    data = load_dataset("cifar10", data_dir=folder)
    assert_holds_tree(data, tree)
    assert "JPEG is lossy" in data.source
    with monkeypatch.context() as patched:
        patched.setattr(image_archive, "_decode", None)
        again = load_dataset("cifar10", data_dir=folder)
    assert_holds_tree(again, tree)
    assert again.source == data.source
    changed = np.zeros((32, 32, 3), np.uint8)
    tree["train/cat/0001.png"] = (png(changed), changed)
    write_tree(folder, tree)
    assert_holds_tree(load_dataset("cifar10", data_dir=folder), tree)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-100],
        lambda content: b"",
        lambda content: b"not safetensors at all",
    ],
)
def test_a_damaged_cache_is_made_again(tmp_path, folder, tree, damage):
    write_tree(folder, tree)
    load_dataset("cifar10", data_dir=folder)
    (kept,) = (tmp_path / "cache" / "decoded").iterdir()
    good = kept.read_bytes()
    kept.write_bytes(damage(good))
    assert_holds_tree(load_dataset("cifar10", data_dir=folder), tree)
    assert kept.read_bytes() == good
    assert list(kept.parent.iterdir()) == [kept]


def test_a_cache_that_cannot_be_written_costs_a_warning(tmp_path, folder, tree, monkeypatch):
    write_tree(folder, tree)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DESSILBI_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="decoded again next time. Set DESSILBI_CACHE"):
        data = load_dataset("cifar10", data_dir=folder)
    assert_holds_tree(data, tree)


def test_an_archive_of_images_is_order_free_and_safe(tmp_path, folder, tree):
    files = {name: content for name, (content, _) in tree.items()}
    shuffled = dict(sorted(files.items(), key=lambda item: hashlib.md5(item[0].encode()).digest()))
    path = folder / "cifar10-jpeg.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {"../../evil.txt": b"x", "README": b"x", **shuffled}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("train/cat/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert_holds_tree(load_dataset("cifar10", data_dir=folder), tree)
    assert list(folder.iterdir()) == [path]
    assert not list(tmp_path.rglob("evil.txt"))


def test_jpeg_and_grey_images_become_rgb(folder, tree):
    grey = Image.new("L", (32, 32), 200)
    stream = io.BytesIO()
    grey.save(stream, "JPEG", quality=95)
    write_tree(folder, tree, **{"train/airplane/0000a.JPG": stream.getvalue()})
    image = load_dataset("cifar10", data_dir=folder).train.images[1]
    assert image.shape == (3, 32, 32)
    assert (image.int() - 200).abs().max() <= 2


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("train/cat/0000.png", b"no image", r"train/cat/0000.png: it cannot be decoded"),
        ("train/cat/0000.png", png(np.zeros((32, 32, 3), np.uint8))[:60], "cannot be decoded"),
        ("test/dog/0001.png", png(np.zeros((8, 9, 3), np.uint8)), r"\(9, 8\) pixels, must be \(32"),
        ("train/unicorn/1.png", png(np.zeros((32, 32, 3), np.uint8)), "'unicorn' .* none of the"),
    ],
)
def test_bad_images_are_named(folder, tree, path, content, message):
    write_tree(folder, tree, **{path: content})
    with pytest.raises(DataError, match=message):
        load_dataset("cifar10", data_dir=folder)


def test_a_class_without_images_is_named(folder, tree):
    write_tree(folder, {k: v for k, v in tree.items() if not k.startswith("test/ship")})
    with pytest.raises(DataError, match=r"test/ has no images of ship"):
        load_dataset("cifar10", data_dir=folder)


def test_a_truncated_archive_of_images(folder, tree):
    path = write_tree(folder, tree)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:5000]))
    with pytest.raises(DataError, match=r"cifar10-jpeg.tar.gz: the archive cannot be read"):
        load_dataset("cifar10", data_dir=folder)


def test_a_set_of_another_size_warns(folder, tree):
    write_tree(folder, tree)
    with pytest.warns(UserWarning, match=r"20 images in a split; the published set has 50,000"):
        load_dataset("cifar10", data_dir=folder)
