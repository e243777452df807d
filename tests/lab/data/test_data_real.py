"""The published files themselves, where they are at hand."""

import pytest
import torch

from dessilbi.lab.data import DataError, load_dataset
from dessilbi.lab.data.load import DATASET_INFO


@pytest.mark.parametrize(
    ("name", "train_counts", "first_labels", "pixel_sum"),
    [
        (
            "mnist",
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
            [5, 0, 4, 1, 9, 2, 1, 3, 1, 4],
            27525,
        ),
        ("fashion-mnist", [6000] * 10, [9, 0, 0, 3, 0, 2, 7, 2, 5, 5], 76247),
    ],
)
def test_mnist_and_fashion_mnist(real_data, name, train_counts, first_labels, pixel_sum):
    data = load_dataset(name, data_dir=real_data)
    assert data.train.images.shape == (60_000, 1, 28, 28)
    assert data.test.images.shape == (10_000, 1, 28, 28)
    assert data.train.labels.bincount().tolist() == train_counts
    assert data.train.labels[:10].tolist() == first_labels
    assert data.train.images[0].sum().item() == pixel_sum
    pixels = data.train.images.double() / 255
    assert pixels.mean().item() == pytest.approx(DATASET_INFO[name].mean[0], abs=5e-5)
    assert pixels.std().item() == pytest.approx(DATASET_INFO[name].std[0], abs=5e-5)


def test_mnist_given_as_fashion_mnist_is_refused(real_data):
    with pytest.raises(DataError, match=r"is train-images-.* of mnist, not .* of fashion-mnist"):
        load_dataset("fashion-mnist", data_dir=real_data / "mnist")


def test_tinyshakespeare(real_data):
    data = load_dataset("tinyshakespeare", data_dir=real_data)
    assert data.num_classes == 65
    assert len(data.train.tokens) == 1_003_854
    assert len(data.test.tokens) == 111_540
    opening = "".join(data.classes[i] for i in data.train.tokens[:30].tolist())
    assert opening == "First Citizen:\nBefore we proce"


@pytest.mark.slow
def test_cifar10_from_its_archive_of_images(real_data):
    data = load_dataset("cifar10", data_dir=real_data)
    assert data.train.images.shape == (50_000, 3, 32, 32)
    assert data.test.labels.bincount().tolist() == [1000] * 10
    assert data.train.labels.bincount().tolist() == [5000] * 10
    mean = torch.stack([data.train.images[:, c].double().mean() / 255 for c in range(3)])
    torch.testing.assert_close(
        mean, torch.tensor(DATASET_INFO["cifar10"].mean).double(), atol=2e-3, rtol=0
    )
