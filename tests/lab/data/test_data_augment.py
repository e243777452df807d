import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dessilbi.lab.data.augment import PadCropFlip, ResizedCropFlip, seeded


def naive(images, draws, pad):
    """One image at a time, as a transform library would do it."""
    out = []
    for image, (top, left, mirrored) in zip(images, draws.tolist(), strict=True):
        channels, height, width = image.shape
        canvas = torch.zeros(channels, height + 2 * pad, width + 2 * pad, dtype=image.dtype)
        canvas[:, pad : pad + height, pad : pad + width] = image
        crop = canvas[:, top : top + height, left : left + width]
        out.append(crop.flip(2) if mirrored else crop)
    return torch.stack(out)


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 9),
    channels=st.integers(1, 3),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    pad=st.integers(0, 4),
    dtype=st.sampled_from([torch.uint8, torch.float32]),
    seed=st.integers(0, 2**31),
)
def test_equals_a_loop_over_images(count, channels, height, width, pad, dtype, seed):
    augment = PadCropFlip(pad=pad)
    images = torch.randint(
        0, 256, (count, channels, height, width), generator=torch.Generator().manual_seed(seed)
    ).to(dtype)
    draws = augment.draw(count, torch.Generator().manual_seed(seed))
    result = augment(images, draws)
    assert result.dtype == dtype
    assert result.is_contiguous()
    assert torch.equal(result, naive(images, draws, pad))


def test_images_that_are_not_contiguous_are_read_by_their_shape():
    augment = PadCropFlip(pad=2)
    images = torch.arange(2 * 5 * 4 * 3).view(2, 5, 4, 3).permute(0, 3, 1, 2)
    draws = augment.draw(2, torch.Generator().manual_seed(1))
    assert torch.equal(augment(images, draws), naive(images, draws, 2))


def test_draws_cover_every_shift_evenly_and_flip_half():
    draws = PadCropFlip(pad=4).draw(90_000, torch.Generator().manual_seed(0))
    for column in (0, 1):
        counts = draws[:, column].bincount(minlength=9)
        assert len(counts) == 9
        assert (counts - 10_000).abs().max() < 500  # five standard deviations
    assert abs(draws[:, 2].double().mean().item() - 0.5) < 0.01


def test_flip_can_be_turned_off_and_pad_is_checked():
    assert PadCropFlip(flip=False).draw(100, torch.Generator())[:, 2].sum() == 0
    with pytest.raises(ValueError, match=r"pad must be >= 0, got -1"):
        PadCropFlip(pad=-1)


def test_a_generator_belongs_to_seed_epoch_and_purpose():
    def numbers(*key):
        return tuple(torch.randint(0, 2**40, (4,), generator=seeded(*key)).tolist())

    keys = [(s, e, p) for s in range(4) for e in range(4) for p in range(2)]
    assert len({numbers(*key) for key in keys}) == len(keys)
    assert numbers(3, 2, 1) == numbers(3, 2, 1)
    with pytest.raises(ValueError, match="seed=-1"):
        seeded(-1, 0, 0)


def test_imagenet_draws_are_one_seed_an_image():
    draws = ResizedCropFlip().draw(50, torch.Generator().manual_seed(0))
    assert draws.shape == (50, 1)
    assert len(set(draws.flatten().tolist())) == 50
