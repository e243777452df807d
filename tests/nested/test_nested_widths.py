"""Widths trained in one run: what a narrow pass computes, and what can be read off after."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dessilbi.lean import Program
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

from compilers import needs_compiler
from dessilbi import DessiLBI, NestedWidths, PathRecorder, SolutionPath, project, split_parameters
from dessilbi.compaction import CompactError, compact
from dessilbi.nested.levels import density_of, level_of
from dessilbi.nested.slicing import Narrow
from dessilbi.path import Mask

OPTIONS: dict[str, Any] = {
    "lr": 0.1,
    "nu": 5.0,
    "lambd": 0.05,
    "momentum": 0.9,
    "weight_decay": 1e-3,
}
EARLY: dict[str, Any] = {
    "begin": 0.0,
    "descended": 0.0,
    "settled": 1.0,
    "full": 0.2,
    "small": 1.0,
    "refresh": 3,
    "lowest": 0.1,
    "parted": (1.0, 1.0),
}
"""Every width from the first step on, and no ladder."""


class Plain(nn.Module):
    """Two convolutions with BatchNorm, flattened into a linear layer and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.two = nn.Conv2d(8, 6, 3)
        self.hidden, self.out = nn.Linear(6 * 4, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.two(self.norm(self.one(x)).relu()).relu().flatten(1)
        return self.out(self.hidden(x).relu())


class Residual(nn.Module):
    """A stream that two convolutions write to, each with its BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 5, 3, padding=1)
        self.back, self.back_norm = nn.Conv2d(5, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_norm(self.stem(x)).relu()
        x = (x + self.back_norm(self.back(self.inner(x).relu()))).relu()
        return self.out(x.mean((2, 3)))


class Bare(nn.Module):
    """Nothing but filters and neurons."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 8, 3, bias=False), nn.Conv2d(8, 6, 3, bias=False)
        self.out = nn.Linear(6, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.two(self.one(x).relu()).relu().mean((2, 3)))


class Unnormed(Residual):
    """Nothing behind a filter that would switch it off with it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem_norm, self.back_norm = nn.Identity(), nn.Identity()


class Unscaled(Plain):
    """BatchNorm has statistics only."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8, affine=False)


NETS = [Plain, Residual]


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 1, 6, 6, dtype=torch.float64, generator=generator)
    return x, torch.randint(4, (16,), generator=generator)


def make(
    kind: type[nn.Module], steps: int = 12, exclude: tuple[str, ...] = ("out",), **options: Any
) -> tuple[nn.Module, DessiLBI, NestedWidths]:
    torch.manual_seed(0)
    net = kind().double()
    groups = split_parameters(net, {"*": {"penalty": "group_lasso"}}, exclude=exclude)
    opt = DessiLBI(groups, **OPTIONS)
    return net, opt, NestedWidths(net, opt, steps, batch(0)[0], **(EARLY | options))


def train(net: nn.Module, opt: DessiLBI, nested: NestedWidths, start: int, stop: int) -> None:
    for step in range(start, stop):
        x, y = batch(step)
        opt.zero_grad()
        nested.backward(x, lambda output, y=y: cross_entropy(output, y))
        opt.step()


@pytest.mark.parametrize(
    ("kind", "exclude"),
    [(Plain, ()), (Residual, ()), (Unnormed, ("stem",)), (Bare, ()), (Unscaled, ())],
)
def test_a_narrow_pass_is_the_pass_of_the_masked_network(
    kind: type[nn.Module], exclude: tuple[str, ...]
) -> None:
    net, opt, nested = make(kind, exclude=("out", *exclude))
    train(net, opt, nested, 0, 7)
    x, y = batch(99)
    for density in (0.1, 0.3, 0.6):
        mask = nested.mask(density)
        assert 0 < mask.density < 1
        with project(net, mask):  # the statistics of the batch: training mode
            expected = net(x)
            loss = cross_entropy(expected, y)
            gradients = torch.autograd.grad(loss, list(net.parameters()))
        level_cut = nested._cut(nested_level(nested, density))
        output, weights = nested._narrow.forward(level_cut, x)
        torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-10)
        found = torch.autograd.grad(cross_entropy(output, y), list(weights.values()))
        opt.zero_grad()
        nested._narrow.add_gradients(level_cut, dict(zip(weights, found, strict=True)))
        for (name, p), g in zip(net.named_parameters(), gradients, strict=True):
            inside = nested._narrow.used(level_cut, name)
            assert p.grad is not None
            torch.testing.assert_close(p.grad[inside], g[inside], rtol=1e-7, atol=1e-10)
            assert not p.grad[~inside].any(), "what is not there has no gradient"


def nested_level(nested: NestedWidths, density: float) -> int:
    return level_of(density, nested.lowest)


@pytest.mark.parametrize("kind", NETS)
def test_channels_that_are_added_leave_together_at_every_width(kind: type[nn.Module]) -> None:
    net, opt, nested = make(kind)
    train(net, opt, nested, 0, 5)
    for density in (0.1, 0.2, 0.4, 0.7, 0.9):
        mask = nested.mask(density)
        small = compact(net.eval(), mask, batch(0)[0]).model
        if kind is Residual:
            assert torch.equal(
                mask["stem.weight"].flatten(1).any(1), mask["back.weight"].flatten(1).any(1)
            )
            # A channel less everywhere: no indexed sums were needed.
            assert small.get_submodule("stem").out_channels == int(mask["stem_norm.bias"].sum())
    assert nested.mask(0.2).issubset(nested.mask(0.4))


def test_a_step_by_hand() -> None:
    net, opt, nested = make(Plain, full=0.0, lowest=0.2)
    twin, other, again = make(Plain, full=0.0, lowest=0.2)
    train(net, opt, nested, 0, 4)
    train(twin, other, again, 0, 4)
    x, y = batch(4)
    opt.zero_grad()
    output, loss = nested.backward(x, lambda o: cross_entropy(o, y))
    large, small = nested.budgets
    assert 0.2 <= small < large < 1
    with project(twin, nested.mask(large)):
        teacher = twin(x)
        value = cross_entropy(teacher, y)
        first = torch.autograd.grad(value, list(twin.parameters()))
    torch.testing.assert_close((output, loss), (teacher.detach(), value.detach()))
    with project(twin, nested.mask(small)):
        taught = twin(x)
        distance = kl_div(
            log_softmax(taught, 1), softmax(teacher.detach(), 1), reduction="batchmean"
        )
        value = 0.5 * cross_entropy(taught, y) + 0.5 * distance
        second = torch.autograd.grad(value, list(twin.parameters()))
    cuts = [nested._cut(nested_level(nested, width)) for width in (large, small)]
    for (name, p), one, two in zip(net.named_parameters(), first, second, strict=True):
        where = [nested._narrow.used(cut, name) for cut in cuts]
        torch.testing.assert_close(p.grad, one * where[0] + two * where[1], rtol=1e-7, atol=1e-10)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    momenta = {n: opt.state[p]["momentum_buffer"].clone() for n, p in net.named_parameters()}
    pulled = {n: p.detach() - opt.gamma(p) for n, p in nested._params.items()}
    (lr,), (nu,) = ({group[key] for group in opt.param_groups} for key in ("lr", "nu"))
    opt.step()
    for name, p in nested._params.items():
        outside = ~nested._narrow.used(cuts[0], name)
        assert outside.any()
        assert torch.equal(opt.state[p]["momentum_buffer"][outside], momenta[name][outside])
        # No gradient and no decay there, and the pull towards Gamma all the same.
        wanted = before[name] - lr * pulled[name] / nu
        torch.testing.assert_close(p[outside], wanted[outside], rtol=1e-12, atol=1e-14)
        assert not torch.equal(p[outside], before[name][outside])
    for name in ("one.bias", "norm.weight", "norm.bias", "two.bias", "out.weight"):
        p = net.get_parameter(name)
        outside = ~nested._narrow.used(cuts[0], name)
        assert outside.any()
        assert torch.equal(opt.state[p]["momentum_buffer"][outside], momenta[name][outside])
        assert torch.equal(p[outside], before[name][outside]), "without a twin nothing pulls"
        assert not torch.equal(p, before[name])


def test_parameters_of_another_optimizer_are_left_to_it() -> None:
    torch.manual_seed(0)
    net = Plain().double()
    hers = [p for name, p in net.named_parameters() if not name.startswith("norm")]
    groups = split_parameters(net, {"*": {"penalty": "group_lasso"}}, exclude=("out",))
    for group in groups:
        group["params"] = [(n, p) for n, p in group["params"] if not n.startswith("norm")]
    opt = DessiLBI(groups, **OPTIONS)
    assert sum(len(g["params"]) for g in opt.param_groups) == len(hers)
    nested = NestedWidths(net, opt, 6, batch(0)[0], **EARLY | {"full": 0.0})
    train(net, opt, nested, 0, 6)


def test_statistics_follow_the_whole_network() -> None:
    net, opt, nested = make(Plain, full=0.0, seed=1)  # with seed 0 the first step is whole
    before = {name: b.clone() for name, b in net.named_buffers()}
    train(net, opt, nested, 0, 3)
    assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())
    net, opt, nested = make(Plain, full=1.0)
    train(net, opt, nested, 0, 3)
    assert not torch.equal(net.norm.running_mean, before["norm.running_mean"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", NETS)
def test_a_resumed_training_goes_on_as_if_it_had_not_stopped(kind: type[nn.Module]) -> None:
    net, opt, nested = make(kind)
    train(net, opt, nested, 0, 8)
    first, begun, half = make(kind)
    train(first, begun, half, 0, 5)
    second, opt2, resumed = make(kind)
    second.load_state_dict(first.state_dict())
    opt2.load_state_dict(begun.state_dict())
    resumed.load_state_dict(half.state_dict())
    train(second, opt2, resumed, 5, 8)
    for p, q in zip(net.parameters(), second.parameters(), strict=True):
        assert torch.equal(p, q)


def trained_path(net: nn.Module, opt: DessiLBI, nested: NestedWidths, folder: Path) -> SolutionPath:
    """The path of six steps, as it comes back from its file."""
    recorder = PathRecorder(net, opt)
    train(net, opt, nested, 0, 6)
    recorder.record(1, levels=nested.levels, followers=nested.followers)
    recorder.path.save(folder / "path.safetensors")
    path = SolutionPath.load(folder / "path.safetensors")
    assert path.mask(density=0.5) == recorder.path.mask(density=0.5)
    return path


@pytest.mark.parametrize("kind", NETS)
def test_the_path_gives_the_networks_that_were_trained(
    kind: type[nn.Module], tmp_path: Path
) -> None:
    net, opt, nested = make(kind)
    path = trained_path(net, opt, nested, tmp_path)
    mask = path.mask(density=0.5)
    norms = {"norm": "one"} if kind is Plain else {"stem_norm": "stem", "back_norm": "back"}
    for norm, conv in norms.items():
        alive = mask[f"{conv}.weight"].flatten(1).any(1)
        assert torch.equal(mask[f"{norm}.bias"], alive)
        assert torch.equal(mask[f"{norm}.weight"], alive)
    with project(net.eval(), mask):
        expected = net(batch(0)[0])
    small = compact(net, mask, batch(0)[0]).model
    torch.testing.assert_close(small(batch(0)[0]), expected, rtol=1e-9, atol=1e-10)
    assert path.mask(epoch=1).names == tuple(layer.name for layer in path.layers)
    # The widest network is the whole one.
    whole = nested.mask(1.0)
    assert all(bool(t.all()) for t in whole.tensors.values())


@pytest.mark.parametrize("kind", [Plain, Residual, Bare])
def test_a_budget_is_a_network_that_was_trained(kind: type[nn.Module], tmp_path: Path) -> None:
    net, opt, nested = make(kind)
    path = trained_path(net, opt, nested, tmp_path)
    assert nested.levels is not None
    levels = sorted({int(level) for some in nested.levels.values() for level in some})
    trained = [nested.mask(density_of(level, nested.lowest)) for level in levels]
    weights = [layer.name for layer in path.layers]

    def density(mask: Mask) -> float:
        return Mask({name: mask[name] for name in weights}).density

    found = [path.mask(density=share / 100) for share in range(101)]
    for share, mask in enumerate(found):
        assert mask in trained
        assert density(mask) <= share / 100 or mask == trained[0], "the smallest is the floor"
    assert all(a.issubset(b) for a, b in itertools.pairwise(found))
    assert found[0] == trained[0]
    assert found[100] == trained[-1]
    assert len({density(mask) for mask in found}) > 4
    assert path.mask(density=0.0, floor=0).kept == 0
    for floor in range(1, 9):
        assert path.mask(density=0.3, floor=floor) in trained
    total = sum(layer.numel for layer in path.layers)
    assert path.mask(parameters=total // 2) == found[50]


def test_every_width_is_drawn_and_none_below_the_lowest() -> None:
    _net, _opt, nested = make(
        Plain, steps=400, begin=0.1, descended=0.3, full=0.5, small=0.75, lowest=0.1
    )
    widths = []
    for step in range(400):
        nested._step = step
        nested._drawn = nested._widths()
        widths.append(nested.budgets)
    assert all(drawn == (1.0,) for drawn in widths[:40])
    late = widths[120:]
    assert min(min(drawn) for drawn in late) == pytest.approx(0.1, rel=0.02)
    assert 0.45 < sum(drawn[0] == 1 for drawn in late) / len(late) < 0.55
    assert 0.7 < sum(len(drawn) == 2 for drawn in late) / len(late) < 0.8
    seen = sorted(width for drawn in late for width in drawn)
    ratios = [b / a for a, b in itertools.pairwise(seen)]
    assert max(ratios) < 1.1, "no gap"


class Strided(nn.Module):
    """A strided convolution of 1x1 or 3x3."""

    def __init__(self, kernel: int, channels: int = 1) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels, 32, 3, padding=1)
        self.two = nn.Conv2d(32, 16, kernel, stride=2, padding=kernel // 2)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.two(self.one(x)).mean((2, 3)))


@pytest.mark.parametrize(
    ("kernel", "kept", "plain"),
    [(1, 8, True), (1, 16, False), (3, 8, False), (3, 7, True)],
    ids=["oneDNN would spoil the memory", "wide enough", "3x3 are sound", "few are faster so"],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_narrow_passes_that_need_it_are_given_channels_first(
    kernel: int, kept: int, plain: bool, channels: int
) -> None:
    net = Strided(kernel, channels)
    shape = (2, channels, 6, 6)
    strides = (36 * channels, 1, 6 * channels, channels)  # last, also of a single channel
    last = torch.empty_strided(shape, strides).copy_(torch.rand(shape))
    narrow = Narrow(net, last)
    seen: list[Tensor] = []
    net.two.register_forward_pre_hook(lambda _, inputs: seen.extend(inputs))
    narrow.forward(narrow.cut([torch.arange(one.channels) < kept for one in narrow.sets]), last)
    assert [(x.shape[1], x.is_contiguous()) for x in seen] == [(kept, plain)]


@needs_compiler
@pytest.mark.parametrize("kept", [1, 7, 16, 32])
def test_a_narrow_pass_by_the_kernels_is_torchs(kept: int) -> None:
    net = Strided(3, 3).double()
    x = torch.rand(9, 3, 6, 6, dtype=torch.float64)
    narrow = Narrow(net, x)
    cut = narrow.cut([torch.arange(one.channels) < kept for one in narrow.sets])
    program = Program(net)
    names = list(narrow.params)
    done = program.run(program.enter(x), narrow.weights(cut), names)
    by_torch, leaves = narrow.forward(cut, x)
    torch.testing.assert_close(done.output, by_torch)
    wanted = torch.autograd.grad(by_torch.square().sum(), [*leaves.values()])
    found = done.backward(2 * done.output)
    for name, gradient in zip(leaves, wanted, strict=True):
        torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize("lean", [True, False])
def test_nothing_is_written_beyond_its_memory(lean: bool) -> None:
    guard = "libc_malloc_debug.so.0"  # of the GNU C library: ends a process that spoils its heap
    try:
        ctypes.CDLL(guard)
    except OSError:
        pytest.skip(f"no {guard} here")
    code = f"""
import sys
import torch
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}
from dessilbi.nested.slicing import Narrow
from dessilbi.lean import Program
from {__name__} import Strided
torch.set_num_threads(1)
x = torch.rand(8, 3, 8, 8).contiguous(memory_format=torch.channels_last)
net = Strided(1, 3)
narrow = Narrow(net, x)
for kept in range(2, 9):
    cut = narrow.cut([torch.arange(one.channels) < kept for one in narrow.sets])
    if {lean}:
        program = Program(net)
        done = program.run(program.enter(x), narrow.weights(cut), list(narrow.params))
        done.backward(torch.ones_like(done.output))
        continue
    output, weights = narrow.forward(cut, x)
    torch.autograd.grad(output.sum(), list(weights.values()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_PRELOAD": guard, "MALLOC_CHECK_": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


class Depthwise(nn.Module):
    """Groups are counted by the layer, so these channels stay."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.deep = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, groups=8)
        self.two, self.out = nn.Conv2d(8, 6, 1), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.two(self.deep(self.one(x).relu()).relu()).relu().mean((2, 3)))


class Wide(nn.Module):
    """Its classifier has more weights than all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(36, 40), nn.Linear(40, 40)
        self.out = nn.Linear(40, 100)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.two(self.one(x.flatten(1)).relu()).relu())


class Half(nn.Module):
    """The first half of a layer's outputs is added to the network's inputs, which stay."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 5, 3, padding=1), nn.Conv2d(1, 6, 3, padding=1)
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, self.one(x)], 1) + self.two(x)
        return self.out(x.relu().mean((2, 3)))


class Up(nn.Module):
    """A transposed convolution, whose filters lie along dimension 1."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.up, self.out = (
            nn.Conv2d(1, 8, 3),
            nn.ConvTranspose2d(8, 6, 2),
            nn.Linear(6, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.up(self.one(x).relu()).relu().mean((2, 3)))


class Named(nn.Module):
    """Names a size in its code."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.out = nn.Conv2d(1, 8, 3), nn.Linear(8 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.one(x).relu().view(-1, 8 * 16))


def test_depthwise_convolutions_keep_their_channels() -> None:
    net, opt, nested = make(Depthwise)
    train(net, opt, nested, 0, 6)
    mask = nested.mask(0.1)
    assert mask["one.weight"].all()
    assert mask["deep.weight"].all()
    assert not mask["two.weight"].all()


def rows(mask: Mask, name: str) -> int:
    return int(mask[name].flatten(1).any(1).sum())


def test_a_layer_that_is_never_cut_takes_nothing_from_the_others() -> None:
    net, opt, nested = make(Wide, exclude=())
    recorder = PathRecorder(net, opt)
    train(net, opt, nested, 0, 3)
    recorder.record(1, levels=nested.levels, followers=nested.followers)
    mask = nested.mask(0.5)
    assert [rows(mask, f"{name}.weight") for name in ("one", "two", "out")] == [20, 20, 100]
    for density in (0.05, 0.3, 0.7, 0.9):
        assert recorder.path.mask(density=density)["out.weight"].all()


def test_filters_that_are_never_cut_beside_some_that_are() -> None:
    net, opt, nested = make(Half)
    train(net, opt, nested, 0, 3)
    for density in (0.1, 0.5):
        mask = nested.mask(density)
        assert mask["two.weight"][0].all(), "it is added to an input"
        first, second = (mask[f"{name}.weight"].flatten(1).any(1) for name in ("one", "two"))
        assert torch.equal(first, second[1:])
    assert rows(nested.mask(0.5), "one.weight") == 2
    assert rows(nested.mask(0.1), "one.weight") == 1


def test_a_layer_without_a_twin_keeps_its_filters_and_those_added_to_them() -> None:
    net, opt, nested = make(Residual, exclude=("out", "stem"))
    before = net.get_parameter("stem.weight").detach().clone()
    train(net, opt, nested, 0, 6)
    assert net.get_parameter("stem.weight").detach().ne(before).all()
    mask = nested.mask(0.1)
    assert mask["back.weight"].all()
    assert set(nested.followers) == {"inner.bias"}
    assert rows(mask, "inner.weight") == 1


def test_what_cannot_be_cut_is_refused_with_a_reason() -> None:
    with pytest.raises(CompactError, match=r"does not run with fewer channels.*flatten\(1\)"):
        Narrow(Named(), torch.zeros(2, 1, 6, 6))
    sigmoid = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2))
    with pytest.raises(CompactError, match="Activations must be 0 at 0"):
        Narrow(sigmoid, torch.zeros(2, 4))
    net = Plain()
    opt = DessiLBI(split_parameters(net), **OPTIONS)
    with pytest.raises(ValueError, match=r"'hidden\.weight' enters Gamma weight by weight"):
        NestedWidths(net, opt, 10, torch.zeros(2, 1, 6, 6))
    assert not opt._optimizer_step_post_hooks  # nothing is left behind
    with pytest.raises(
        ValueError, match=r"'up\.weight' enters Gamma by slices along dimension 1; .*: exclude it"
    ):
        make(Up)
    with pytest.raises(ValueError, match="no layer with a twin can be made narrower"):
        make(Residual, exclude=("out", "stem", "inner"))
    with pytest.raises(ValueError, match="teach must lie in"):
        make(Plain, teach=2.0)
    with pytest.raises(RuntimeError, match="nothing is ranked yet"):
        make(Plain)[2].mask(0.5)
