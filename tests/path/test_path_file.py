from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from path_problems import make, recorded, same
from safetensors.torch import save_file

from dessilbi import DessiLBI, split_parameters
from dessilbi.path import FormatError, Mask, PathRecorder, SolutionPath
from dessilbi.path import _file as tensor_file
from dessilbi.path._supports import SupportSequence, decode, encode


@pytest.fixture(scope="module")
def path():
    return recorded()


@pytest.fixture
def file(path, tmp_path):
    path.save(tmp_path / "path.safetensors")
    return tmp_path / "path.safetensors"


def test_round_trip_is_exact(path, file, tmp_path):
    loaded = SolutionPath.load(file)
    assert same(loaded, path)
    for order in ("entry", "magnitude", "dual", "gamma"):
        assert loaded.mask(density=0.3, order=order) == path.mask(density=0.3, order=order)
    size = loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == file.read_bytes()
    assert size == file.stat().st_size
    assert [f.name for f in tmp_path.iterdir() if f.name.startswith(".")] == []


def test_an_empty_path_can_be_kept(tmp_path):
    net, opt = make()
    PathRecorder(net, opt).path.save(tmp_path / "p")
    loaded = SolutionPath.load(tmp_path / "p")
    assert loaded.epochs == ()
    with pytest.raises(ValueError, match="has none; call record"):
        loaded.mask(density=0.5)


def test_a_cut_path_says_that_it_cannot_rank(path):
    with pytest.raises(ValueError, match="was cut at one; call record"):
        path.truncated(epoch=3).mask(density=0.5)
    assert path.truncated(epoch=3).mask(epoch=3) == path.mask(epoch=3)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_truncated_files_are_refused(file, share):
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(FormatError, match="damaged or not a safetensors file"):
        SolutionPath.load(file)


def test_every_flipped_byte_is_noticed(file):
    content = file.read_bytes()
    places = np.random.default_rng(0).choice(len(content), 300, replace=False)
    for place in [*range(0, 200, 5), *places.tolist()]:
        broken = bytearray(content)
        broken[place] ^= 0x10
        file.write_bytes(bytes(broken))
        with pytest.raises(FormatError, match=str(file.name)):
            SolutionPath.load(file)


def test_foreign_files_are_refused(path, file, tmp_path):
    other = tmp_path / "other.safetensors"
    save_file({"w": torch.zeros(3, dtype=torch.bfloat16)}, other)
    with pytest.raises(FormatError, match="of something else, not a dessilbi-path file"):
        SolutionPath.load(other)
    path.mask(epoch=1).save(other)
    with pytest.raises(FormatError, match="is a dessilbi-mask file, not a dessilbi-path file"):
        SolutionPath.load(other)
    with pytest.raises(FormatError, match="is a dessilbi-path file, not a dessilbi-mask file"):
        Mask.load(file)
    other.write_text("hello")
    with pytest.raises(FormatError, match="not a safetensors file"):
        SolutionPath.load(other)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        SolutionPath.load(tmp_path / "nothing")


def test_newer_versions_are_refused(tmp_path):
    tensor_file.write(tmp_path / "p", "dessilbi-path", 2, {}, {})
    with pytest.raises(FormatError, match="version 2; this dessilbi reads versions up to 1"):
        SolutionPath.load(tmp_path / "p")
    tensor_file.write(tmp_path / "p", "dessilbi-path", 1, {}, {})
    with pytest.raises(FormatError, match="its parts do not fit together"):
        SolutionPath.load(tmp_path / "p")


def test_the_header_says_what_it_is(file):
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["dessilbi"])
    assert (header["format"], header["version"]) == ("dessilbi-path", 1)


def test_a_failed_write_leaves_the_old_file(path, file, monkeypatch):
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        path.save(file)
    assert file.read_bytes() == before
    assert [f.name for f in file.parent.iterdir()] == [file.name]


@given(st.integers(0, 2000), st.floats(0, 1), st.integers(0, 100))
def test_flips_survive_encoding(size, rate, seed):
    flips = np.flatnonzero(np.random.default_rng(seed).random(size) < rate)
    assert np.array_equal(decode(encode(flips, size), size), flips)


def test_distances_of_any_length():
    for flips in ([], [0], [254], [255], [256], [0, 255], [509, 510], [509, 765, 2000]):
        assert decode(encode(np.array(flips, dtype=np.int64), 10**6), 10**6).tolist() == flips


def test_supports_can_be_read_in_any_order():
    rng = np.random.default_rng(0)
    supports = [rng.random(50) < rate for rate in (0, 0.02, 0.5, 0.52, 1, 0.1)]
    kept = SupportSequence(50)
    for bits in supports:
        kept.append(bits)
    for place in (5, 0, 3, 3, 4, 1, 2):
        assert np.array_equal(kept.at(place), supports[place])
    kept.append(supports[2])
    assert np.array_equal(kept.at(6), supports[2])


def test_a_path_that_begins_with_a_support_can_be_continued(tmp_path):
    """Of a rewound network, whose optimizer goes on: killed before the first step, too."""
    net, opt = make()
    for p in net.parameters():
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    with PathRecorder(net, opt) as first:
        while not first.path.event_log.activity(first.path.groups).any():
            opt.step()
    inside = first.path.event_log.activity(first.path.groups)
    with PathRecorder(net, opt) as rec:
        rec.record(0)
        rec.path.save(tmp_path / "p")
    loaded = SolutionPath.load(tmp_path / "p")
    assert (loaded.event_log.activity(loaded.groups) == inside).all()
    for layer in loaded.layers:
        if layer.exact:
            entered = loaded.entry_steps(layer.name).numpy()
            assert (entered[inside[layer.slice]] == 0).all(), "from the beginning"
    again = PathRecorder(net, opt, loaded)
    opt.step()
    assert again.step == 1


def test_which_layers_are_tied_is_kept(tmp_path):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.read, self.write = (torch.nn.Conv2d(4, 4, 1) for _ in range(3))

        def forward(self, x):
            x = self.stem(x)
            return x + self.write(self.read(x).relu())

    net = torch.nn.Sequential(Block(), torch.nn.Flatten(), torch.nn.Linear(16, 2))
    x = torch.ones(1, 4, 2, 2)
    opt = DessiLBI(split_parameters(net, tied=True, example_input=x))
    rec = PathRecorder(net, opt)
    rec.record(0)
    rec.path.save(tmp_path / "p")
    wanted = {"0.stem.weight": "0.stem.weight", "0.write.weight": "0.stem.weight"}
    for path in (rec.path, SolutionPath.load(tmp_path / "p")):
        assert {one.name: one.tied for one in path.layers if one.tied} == wanted
