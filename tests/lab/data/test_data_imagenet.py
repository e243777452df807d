"""torchvision does not import everywhere; a stand-in with its interface tests what is ours."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import png
from PIL import Image

from dessilbi.lab.data import DataError, PadCropFlip, batches, imagenet, load_dataset
from dessilbi.lab.data.load import dataset_info


class FakeImageFolder:
    def __init__(self, root):
        root = Path(root)
        self.classes = sorted(p.name for p in root.iterdir() if p.is_dir())
        if not self.classes:
            raise FileNotFoundError(f"Couldn't find any class folder in {root}.")
        self.samples = [
            (str(path), number)
            for number, name in enumerate(self.classes)
            for path in sorted((root / name).iterdir())
        ]

    @staticmethod
    def loader(path):
        with Image.open(path) as image:
            return image.convert("RGB")


def fake_transforms():
    module = types.ModuleType("torchvision.transforms")

    def compose(steps):
        def run(image):
            for step in steps:
                image = step(image)
            return image

        return run

    def random_resized_crop(size):
        def run(image):
            left, top = torch.randint(0, 20, (2,)).tolist()
            return image.resize((size, size), box=(left, top, left + 30, top + 30))

        return run

    def random_flip():
        return lambda im: (
            im.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(1) < 0.5 else im
        )

    def center_crop(size):
        def run(image):
            left, top = (image.width - size) // 2, (image.height - size) // 2
            return image.crop((left, top, left + size, top + size))

        return run

    module.Compose = compose
    module.RandomResizedCrop = random_resized_crop
    module.RandomHorizontalFlip = random_flip
    module.Resize = lambda size: lambda image: image.resize((size, size))
    module.CenterCrop = center_crop
    module.PILToTensor = lambda: lambda im: torch.from_numpy(np.array(im)).permute(2, 0, 1).clone()
    return module


@pytest.fixture
def torchvision(monkeypatch):
    package = types.ModuleType("torchvision")
    datasets = types.ModuleType("torchvision.datasets")
    datasets.ImageFolder = FakeImageFolder
    for module in (package, datasets, fake_transforms()):
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def folders(tmp_path):
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for name in ("n01", "n02"):
            folder = tmp_path / "imagenet" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (50, 60, 3), dtype=np.uint8)
                (folder / f"{number}.png").write_bytes(png(pixels))
    return tmp_path


def load(folders, **options):
    return load_dataset("imagenet", data_dir=folders, workers=0, **options)


def test_without_torchvision_the_extra_is_named(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(DataError, match=r"pip install 'dessilbi\[imagenet\]'"):
        load(folders)


def test_absent_folders_are_listed(tmp_path):
    with pytest.raises(DataError, match=r"(?s)train/<class>.*ILSVRC2012.*image-net.org"):
        load(tmp_path)


def test_splits_classes_and_test_images(folders, torchvision):
    data = load(folders, validation=3)
    assert (len(data.train), len(data.validation), len(data.test)) == (5, 3, 4)
    assert set(data.train.paths).isdisjoint(data.validation.paths)
    assert data.classes == ("n01", "n02")
    assert data.num_classes == 2
    (x, y), (u, _) = batches(data.test, 3, seed=0, epoch=0, shuffle=False)
    assert (x.shape, u.shape) == ((3, 3, 224, 224), (1, 3, 224, 224))
    assert y.tolist() == [0, 0, 1]
    image = FakeImageFolder.loader(data.test.paths[0]).resize((256, 256)).crop((16, 16, 240, 240))
    raw = torch.from_numpy(np.array(image)).permute(2, 0, 1).double() / 255
    info = dataset_info("imagenet")
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (info.mean, info.std))
    torch.testing.assert_close(x[0].double(), (raw - mean) / std, atol=1e-5, rtol=1e-5)


def test_augmented_epochs_can_be_recreated_and_resumed(folders, torchvision):
    data = load(folders)
    options = {"seed": 1, "epoch": 2, "augment": data.augmentation}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    whole = list(batches(data.train, 3, **options))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    resumed = list(batches(data.train, 3, start=1, **options))
    assert len(resumed) == 2
    for (x, y), (u, v) in zip(whole[1:], resumed, strict=True):
        assert torch.equal(x, u)
        assert torch.equal(y, v)
    other = list(batches(data.train, 3, **(options | {"epoch": 3})))
    assert not torch.equal(whole[0][0], other[0][0])


def test_a_damaged_image_is_named(folders, torchvision):
    (folders / "imagenet" / "train" / "n01" / "0.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"n01/0.png cannot be decoded"):
        list(batches(load(folders).train, 8, seed=0, epoch=0))


def test_class_folders_must_agree(folders, torchvision):
    (folders / "imagenet" / "val" / "n03").mkdir()
    with pytest.raises(DataError, match="same class folders; only one of them has n03"):
        load(folders)


def test_empty_folders(tmp_path, torchvision):
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
    with pytest.raises(DataError, match="cannot be listed"):
        load(tmp_path)


def test_other_augmentation_is_refused(folders, torchvision):
    with pytest.raises(TypeError, match="ResizedCropFlip"):
        next(batches(load(folders).train, 2, seed=0, epoch=0, augment=PadCropFlip()))


def test_the_recipe_is_the_standard_one():
    assert (imagenet.SIDE, imagenet._RESIZED) == (224, 256)
