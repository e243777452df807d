import numpy as np
import pytest
import torch

from dessilbi.lab.data import DataError, PadCropFlip, batches, load_dataset
from dessilbi.lab.data.errors import require
from dessilbi.lab.data.load import DATASET_INFO


@pytest.fixture(scope="module")
def sklearn_digits():
    return pytest.importorskip("sklearn.datasets").load_digits()


def test_digits_need_no_file(sklearn_digits):
    data = load_dataset("digits")
    train, labels = data.train.tensors()
    assert (len(data.train), len(data.test)) == (1442, 355)
    assert train.shape[1:] == data.shape == (1, 8, 8)
    assert (train.min(), train.max()) == (0, 1)
    assert train.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert data.num_classes == 10
    assert data.source == "scikit-learn"
    assert data.validation is None
    assert data.augmentation is None


def test_digits_split_is_every_fifth_of_each_class(sklearn_digits):
    seen, test = [0] * 10, []
    for image, label in zip(sklearn_digits.images, sklearn_digits.target, strict=True):
        seen[label] += 1
        if seen[label] % 5 == 0:
            test.append((image, label))
    data = load_dataset("digits")
    np.testing.assert_array_equal(data.test.images[:, 0].numpy(), [image for image, _ in test])
    assert data.test.labels.tolist() == [label for _, label in test]
    both = torch.cat([data.train.images, data.test.images]).sum(0)[0].numpy()
    np.testing.assert_array_equal(both % 256, sklearn_digits.images.sum(0) % 256)


def test_cards_mean_and_std_are_those_of_the_training_digits(sklearn_digits):
    x, _ = load_dataset("digits", dtype=torch.float64).train.tensors()
    assert DATASET_INFO["digits"].mean[0] == pytest.approx(x.mean().item(), abs=5e-5)
    assert DATASET_INFO["digits"].std[0] == pytest.approx(x.std(correction=0).item(), abs=5e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_normalize_is_an_option_of_the_load(sklearn_digits, dtype):
    plain = load_dataset("digits", dtype=torch.float64)
    data = load_dataset("digits", normalize=True, dtype=dtype)
    x, _ = data.train.tensors()
    assert x.dtype == dtype
    info = DATASET_INFO["digits"]
    expected = (plain.train.tensors()[0] - info.mean[0]) / info.std[0]
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(x.double(), expected, atol=tolerance, rtol=tolerance)


def test_validation_is_held_out_of_the_training_set(sklearn_digits):
    whole = load_dataset("digits")
    data = load_dataset("digits", validation=200, split_seed=7)
    assert (len(data.train), len(data.validation), len(data.test)) == (1242, 200, 355)

    def rows(*splits):
        return sorted(bytes(image.flatten().tolist()) for split in splits for image in split.images)

    assert rows(data.train, data.validation) == rows(whole.train)
    again = load_dataset("digits", validation=200, split_seed=7)
    other = load_dataset("digits", validation=200, split_seed=8)
    assert torch.equal(again.validation.images, data.validation.images)
    assert not torch.equal(other.validation.images, data.validation.images)
    assert len(data.validation.labels.unique()) == 10


def test_normalisation_is_the_default_for_colour_only():
    habits = {name: DATASET_INFO[name].normalize for name in DATASET_INFO}
    assert habits == {
        "digits": False, "mnist": False, "fashion-mnist": False, "cifar10": True, "imagenet": True,
    }  # fmt: skip
    assert DATASET_INFO["cifar10"].augmentation == PadCropFlip(pad=4, flip=True)
    assert all(len(info.classes) == 10 for name, info in DATASET_INFO.items() if name != "imagenet")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnits", {}, r"unknown data set 'mnits'; did you mean 'mnist'\?"),
        ("Fashion_MNIST", {}, "did you mean 'fashion-mnist'"),
        ("zzz", {}, "choose one of digits, mnist"),
        ("digits", {"dtype": torch.uint8}, "dtype must be a floating-point type, got torch.uint8"),
        ("digits", {"validation": 1442}, r"validation must be in \[0, 1442\).*got 1442"),
        ("digits", {"validation": -1}, "got -1"),
    ],
)
def test_bad_arguments(sklearn_digits, name, options, message):
    with pytest.raises(ValueError, match=message):
        load_dataset(name, **options)


def test_a_training_epoch_is_the_same_on_every_load(sklearn_digits):
    first, second = (
        list(batches(load_dataset("digits").train, 64, seed=0, epoch=0)) for _ in range(2)
    )
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, second, strict=True))


def test_an_absent_package_says_which_extra_brings_it():
    with pytest.raises(DataError, match=r"needs 'no_such_module'.*pip install 'dessilbi\[lab\]'"):
        require("no_such_module", purpose="the digits set", install="dessilbi[lab]")


def test_some_test_images_are_the_same_some_for_every_run():
    whole, some = load_dataset("digits"), load_dataset("digits", test_images=50, validation=100)
    again = load_dataset("digits", test_images=50)
    assert len(some.test) == 50
    assert torch.equal(some.test.images, again.test.images)
    everything = {bytes(image.flatten().tolist()) for image in whole.test.images}
    assert all(bytes(image.flatten().tolist()) in everything for image in some.test.images)
    with pytest.raises(ValueError, match=r"test_images must be in \[1, "):
        load_dataset("digits", test_images=0)
