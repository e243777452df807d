"""Texts: characters as numbers, in windows."""

import gzip
import random
import warnings

import pytest
import torch

from dessilbi.lab.data import DataError, PadCropFlip, batches, load_dataset
from dessilbi.lab.data.load import dataset_info

TEXT = random.Random(0).randbytes(1000)
"""Each window of it is another one."""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my.txt").write_bytes(TEXT)
    return tmp_path


def epoch_of(data, *, epoch=0, augment=True, split="train", **more):
    options = {"seed": 3, "epoch": epoch, "augment": data.augmentation if augment else None}
    return list(batches(getattr(data, split), 5, **{**options, **more}))


def test_a_label_is_the_character_that_follows(folder):
    data = load_dataset("my.txt", data_dir=folder, context=8)
    for x, y in epoch_of(data):
        assert x.dtype == y.dtype == torch.int64
        assert x.shape == y.shape
        assert torch.equal(x[:, 1:], y[:, :-1])
        for window, following in zip(x.tolist(), y[:, -1].tolist(), strict=True):
            assert bytes([*window, following]) in TEXT[:900]


def test_the_last_tenth_is_evaluated_on_in_windows_that_meet(folder):
    data = load_dataset("my.txt", data_dir=folder, context=8)
    assert data.validation is data.test
    read = epoch_of(data, augment=False, split="test", shuffle=False)
    x, y = (torch.cat(parts).flatten() for parts in zip(*read, strict=True))
    assert bytes(x.tolist()) == TEXT[900:996]
    assert bytes(y.tolist()) == TEXT[901:997]


def test_a_text_that_ends_with_a_window_needs_one_more_character(folder):
    (folder / "even.txt").write_bytes(bytes(range(160)))
    for context, windows in ((8, 1), (15, 1), (5, 3)):  # the last tenth has 16 characters
        data = load_dataset("even.txt", data_dir=folder, context=context)
        assert len(data.test) == windows


def test_which_windows_a_batch_holds_follows_from_seed_and_epoch(folder):
    data = load_dataset("my.txt", data_dir=folder, context=8, images=20)
    first = epoch_of(data)
    again = epoch_of(load_dataset("my.txt", data_dir=folder, context=8, images=20))
    assert [len(y) for _, y in first] == [5, 5, 5, 5]
    assert all(torch.equal(a, b) for a, b in zip(first[2], again[2], strict=True))
    (x, _), *_ = epoch_of(data, start=3)
    assert torch.equal(x, first[3][0])
    assert not torch.equal(epoch_of(data, epoch=1)[0][0], first[0][0])


def test_random_windows_come_from_everywhere_and_share_a_batch_among_ranks(folder):
    data = load_dataset("my.txt", data_dir=folder, context=8, images=20)
    starts = set()
    for epoch in range(300):
        for x, _ in epoch_of(data, epoch=epoch):
            starts |= {TEXT.index(bytes(window)) for window in x.tolist()}
    assert starts <= set(range(892))
    assert len(starts) > 880
    whole = epoch_of(data)
    parts = [epoch_of(data, rank=rank, world_size=2) for rank in (0, 1)]
    for together, *shares in zip(whole, *parts, strict=True):
        assert torch.equal(together[1], torch.cat([y for _, y in shares]))


def test_without_augmentation_each_window_is_read_once(folder):
    data = load_dataset("my.txt", data_dir=folder, context=8)
    found = torch.cat([x for x, _ in epoch_of(data, augment=False)])
    assert sorted(map(bytes, found.tolist())) == sorted(TEXT[i : i + 8] for i in range(0, 892, 8))


def shakespeare(folder, content=b"Before we proceed any further, hear me speak.\n" * 40):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "input.txt.gz").write_bytes(gzip.compress(content))
    return content


@pytest.mark.filterwarnings("ignore:.*cannot be compared")
def test_tinyshakespeare_is_known_by_its_65_characters(tmp_path):
    content = shakespeare(tmp_path / "tinyshakespeare")
    data = load_dataset("tinyshakespeare", data_dir=tmp_path, context=16)
    assert data.classes == dataset_info("tinyshakespeare").classes
    assert list(data.classes) == sorted(data.classes)
    assert len(data.classes) == 65
    text = "".join(data.classes[i] for i in [*data.train.tokens, *data.test.tokens])
    assert text.encode() == content
    assert data.source.endswith("input.txt.gz")


def test_another_text_by_the_name_of_tinyshakespeare_is_no_news(tmp_path):
    shakespeare(tmp_path)
    with pytest.warns(UserWarning, match=r"other characters; the published set has 1,115,394"):
        load_dataset("tinyshakespeare", data_dir=tmp_path)
    shakespeare(tmp_path, "Überall".encode() * 400)
    with pytest.raises(DataError, match=r"is not tinyshakespeare: it holds .*--data.name my.txt"):
        load_dataset("tinyshakespeare", data_dir=tmp_path)


def test_a_missing_text_names_the_places(tmp_path):
    with pytest.raises(DataError, match=r"(?s)tinyshakespeare was not found.*input.txt\[.gz\]"):
        load_dataset("tinyshakespeare", data_dir=tmp_path)
    with pytest.raises(DataError, match=r"(?s)mine.txt was not found.*--data-dir"):
        load_dataset("mine.txt", data_dir=tmp_path)


def test_a_damaged_file_is_not_read_in_part(tmp_path):
    (tmp_path / "my.txt.gz").write_bytes(gzip.compress(TEXT)[:-20])
    with pytest.raises(DataError, match="cannot be read"):
        load_dataset("my.txt", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"context": 100}, DataError, "1,000 characters: too few for a window of 100"),
        ({"context": 0}, ValueError, "context must be >= 1, got 0"),
        ({"validation": 5}, ValueError, "validation is for images, got 5"),
        ({"normalize": True}, ValueError, "normalize is for images"),
        ({"images": 9_999}, ValueError, r"images must be in \[1, "),
    ],
)
def test_options_that_do_not_fit_a_text(folder, options, error, message):
    with pytest.raises(error, match=message):
        load_dataset("my.txt", data_dir=folder, **options)


def test_a_text_is_not_cropped_like_an_image(folder):
    data = load_dataset("my.txt", data_dir=folder, context=8)
    with pytest.raises(TypeError, match="this set takes augment=RandomWindows"):
        next(batches(data.train, 5, seed=0, epoch=0, augment=PadCropFlip()))


def test_a_text_has_no_layout(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_dataset("my.txt", data_dir=folder, context=8)
    assert data.is_text
    assert data.laid_out(channels_last=False).train is data.train
