import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dessilbi.lab.data import PadCropFlip, ResizedCropFlip, TensorSplit, batches, count_batches
from dessilbi.lab.data.splits import Pixels


def split_of(count, side=6):
    """Labels are image numbers, so a test sees which image went where."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, 2, side, side)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return TensorSplit(images, torch.arange(count), Pixels(255, torch.float32))


def collect(*args, **kwargs):
    return list(batches(*args, **kwargs))


def assert_same(left, right):
    assert len(left) == len(right)
    for (x, y), (u, v) in zip(left, right, strict=True):
        assert torch.equal(x, u)
        assert torch.equal(y, v)


def test_an_epoch_shows_every_image_once_with_its_own_pixels():
    split = split_of(23)
    epoch = collect(split, 5, seed=1, epoch=0)
    assert [len(y) for _, y in epoch] == [5, 5, 5, 5, 3]
    numbers = torch.cat([y for _, y in epoch])
    assert sorted(numbers.tolist()) == list(range(23))
    assert numbers.tolist() != list(range(23))
    assert torch.equal(torch.cat([x for x, _ in epoch]), split.images[numbers].float() / 255)


def test_without_shuffle_the_order_is_kept():
    epoch = collect(split_of(9), 4, seed=0, epoch=0, shuffle=False)
    assert torch.cat([y for _, y in epoch]).tolist() == list(range(9))


def test_order_depends_on_seed_and_epoch_only():
    split = split_of(50)

    def order(**key):
        return torch.cat([y for _, y in batches(split, 7, **key)]).tolist()

    first = order(seed=0, epoch=0)
    torch.manual_seed(99)
    torch.rand(5)
    assert order(seed=0, epoch=0) == first
    assert order(seed=0, epoch=1) != first
    assert order(seed=1, epoch=0) != first


def test_the_global_generator_is_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    collect(split_of(20), 5, seed=0, epoch=0, augment=PadCropFlip(pad=2))
    assert torch.equal(torch.get_rng_state(), before)


@settings(max_examples=25, deadline=None)
@given(start=st.integers(0, 6), epoch=st.integers(0, 5), drop_last=st.booleans())
def test_an_epoch_resumes_bit_for_bit(start, epoch, drop_last):
    split, augment = split_of(26), PadCropFlip(pad=2)
    options = {"seed": 4, "epoch": epoch, "augment": augment, "drop_last": drop_last}
    whole = collect(split, 4, **options)
    start = min(start, len(whole))
    assert_same(collect(split, 4, start=start, **options), whole[start:])


@settings(max_examples=25, deadline=None)
@given(world=st.integers(1, 4), batch_size=st.integers(4, 9), count=st.integers(16, 40))
def test_ranks_together_see_the_batches_of_one_process(world, batch_size, count):
    if count % batch_size:
        count += batch_size - count % batch_size
    split, options = split_of(count), {"seed": 0, "epoch": 2, "augment": PadCropFlip(pad=1)}
    alone = collect(split, batch_size, **options)
    shares = [
        collect(split, batch_size, rank=rank, world_size=world, **options) for rank in range(world)
    ]
    joined = [
        (torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))
        for parts in zip(*shares, strict=True)
    ]
    assert_same(joined, alone)
    for parts in zip(*shares, strict=True):
        sizes = [len(y) for _, y in parts]
        assert max(sizes) - min(sizes) <= 1


def test_an_images_augmentation_does_not_depend_on_the_batch_size():
    split, options = split_of(12), {"seed": 0, "epoch": 1, "augment": PadCropFlip(pad=2)}

    def by_number(batch_size):
        return {
            int(n): image
            for x, y in batches(split, batch_size, **options)
            for image, n in zip(x, y, strict=True)
        }

    small, large = by_number(3), by_number(12)
    assert all(torch.equal(small[n], large[n]) for n in range(12))


def test_augmentation_changes_with_the_epoch_and_pads_with_black():
    split, augment = split_of(200), PadCropFlip(pad=3)
    epochs = [
        next(batches(split, 200, seed=0, epoch=e, shuffle=False, augment=augment))[0]
        for e in (0, 1)
    ]
    assert not torch.equal(*epochs)
    pixels = Pixels.normalized(255, torch.float32, (0.5, 0.5), (0.25, 0.25), torch.device("cpu"))
    bright = TensorSplit(torch.full_like(split.images, 255), split.labels, pixels)
    x, _ = next(batches(bright, 200, seed=0, epoch=0, augment=augment))
    torch.testing.assert_close(x.unique(), torch.tensor([-2.0, 2.0]))  # black and white, normalised


def test_counting():
    assert count_batches(10, 3) == 4
    assert count_batches(10, 3, drop_last=True) == 3
    assert len(collect(split_of(10), 3, seed=0, epoch=0, drop_last=True)) == 3
    assert collect(split_of(2), 3, seed=0, epoch=0, drop_last=True) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"rank": 2, "world_size": 2}, r"rank must be in \[0, world_size\), got 2 of 2"),
        ({"start": 4}, r"start must be in \[0, 3\], the epoch's batches, got 4"),
        ({"world_size": 4}, "a batch of 2 images has no share for each of 4 ranks; set drop_last"),
        ({"seed": -1}, "seed and epoch must be >= 0"),
    ],
)
def test_bad_arguments_are_refused_at_the_call(options, message):
    options = {"batch_size": 4, "seed": 0, "epoch": 0} | options
    with pytest.raises(ValueError, match=message):
        batches(split_of(10), **options)


def test_an_augmentation_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="PadCropFlip"):
        next(batches(split_of(4), 2, seed=0, epoch=0, augment=ResizedCropFlip()))


def test_images_and_labels_must_match():
    with pytest.raises(ValueError, match="got 3 and 2"):
        TensorSplit(torch.zeros(3, 1, 2, 2), torch.zeros(2), Pixels(255, torch.float32))


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_of_a_pixel_lie_side_by_side_which_no_value_shows(channels):
    raw = torch.randint(256, (4, channels, 5, 6), dtype=torch.uint8)
    values = Pixels(255, torch.float64)(raw)
    assert values.stride() == (30 * channels, 1, 6 * channels, channels)
    assert torch.equal(values, raw.double() / 255)
