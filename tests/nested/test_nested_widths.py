"""Widths trained in one run: what a narrow pass computes, and what can be read off after."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch
from nested_nets import OPTIONS, Plain, Remembering, Residual, batch, make_widths, train
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

from dessilbi import DessiLBI, NestedWidths, PathRecorder, SolutionPath, project, split_parameters
from dessilbi.compaction import CompactError, compact
from dessilbi.nested.ranking import density_of
from dessilbi.nested.slicing import Slicer
from dessilbi.path import Mask

NETS = [Plain, Residual]
NEVER_WHOLE = {"full_fraction": 0.0, "min_density": 0.2}


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


# ---------------------------------------------------------------------- a step


def gradients_under(
    net: nn.Module, mask: Mask, x: Tensor, y: Tensor, teacher: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The output of the masked network, and the gradients of its loss."""
    with project(net, mask):
        output = net(x)
        value = cross_entropy(output, y)
        if teacher is not None:
            distance = kl_div(
                log_softmax(output, 1), softmax(teacher.detach(), 1), reduction="batchmean"
            )
            value = 0.5 * value + 0.5 * distance
        named = dict(net.named_parameters())
        return output, dict(zip(named, torch.autograd.grad(value, [*named.values()]), strict=True))


@pytest.mark.parametrize(
    ("kind", "exclude"),
    [(Plain, ()), (Residual, ()), (Unnormed, ("stem",)), (Bare, ()), (Unscaled, ())],
)
def test_a_step_is_that_of_the_masked_networks(
    kind: type[nn.Module], exclude: tuple[str, ...]
) -> None:
    """The large one by its loss, the small one half by the distance to the large one's output."""
    exclude = ("out", *exclude)
    net, opt, nested = make_widths(kind, exclude=exclude, schedule=NEVER_WHOLE)
    train(net, opt, nested, 0, 4)
    twin = kind().double()
    twin.load_state_dict(net.state_dict())
    x, y = batch(4)
    opt.zero_grad()
    output, loss = nested.backward(x, partial(cross_entropy, target=y))
    large, small = nested.budgets
    assert 0.2 <= small < large < 1
    masks = [nested.mask(width) for width in (large, small)]
    teacher, first = gradients_under(twin, masks[0], x, y)
    _, second = gradients_under(twin, masks[1], x, y, teacher)
    torch.testing.assert_close(output, teacher.detach(), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(loss, cross_entropy(teacher, y).detach())
    for name, p in net.named_parameters():
        wanted = first[name] + second[name]
        if name in masks[0].names:
            wanted = first[name] * masks[0][name] + second[name] * masks[1][name]
            assert p.grad is not None
            torch.testing.assert_close(p.grad, wanted, rtol=1e-7, atol=1e-10)
        else:  # columns of channels that are not there: gradients of what is zero
            assert p.grad is not None
            some = p.grad != 0
            torch.testing.assert_close(p.grad[some], wanted[some], rtol=1e-7, atol=1e-10)


def test_what_is_outside_of_a_width_feels_the_coupling_only() -> None:
    net, opt, nested = make_widths(Plain, schedule=NEVER_WHOLE)
    assert isinstance(opt, DessiLBI)
    train(net, opt, nested, 0, 4)
    x, y = batch(4)
    opt.zero_grad()
    nested.backward(x, partial(cross_entropy, target=y))
    mask = nested.mask(nested.budgets[0])
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    momenta = {n: opt.state[p]["momentum_buffer"].clone() for n, p in net.named_parameters()}
    pulled = {n: p.detach() - opt.gamma(p) for n, p in opt.twins()}
    opt.step()
    for name in ("one.weight", "two.weight", "hidden.weight", "norm.weight", "norm.bias"):
        p, outside = net.get_parameter(name), ~mask[name]
        assert outside.any()
        assert torch.equal(opt.state[p]["momentum_buffer"][outside], momenta[name][outside])
        wanted = before[name]
        if name in pulled:  # no gradient and no decay there, and the pull towards Gamma
            wanted = wanted - OPTIONS["lr"] * pulled[name] / OPTIONS["nu"]
            assert not torch.equal(p[outside], before[name][outside])
        torch.testing.assert_close(p[outside], wanted[outside], rtol=1e-12, atol=1e-14)
        assert not torch.equal(p[~outside], before[name][~outside])


def test_the_networks_own_forward_runs_with_its_hooks() -> None:
    """For branches, too: what a loss reads of the network is of the pass that it is made for."""
    torch.manual_seed(0)
    net = Remembering().double()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    nested = NestedWidths(net, opt, 10, batch(0)[0], distill=0.0)
    calls: list[int] = []
    for step in range(10):
        x, y = batch(step)
        opt.zero_grad()
        with torch.no_grad():
            net(-x)  # an evaluation in between
        if step == 2:
            net.two.register_forward_hook(lambda *_: calls.append(1))
        calls.clear()
        before = deepcopy(net.state_dict())
        widths: list[int] = []

        def loss(output: Tensor, y: Tensor = y, widths: list[int] = widths) -> Tensor:
            widths.append(net.h.shape[1])
            return cross_entropy(output, y) + net.h.square().mean()

        nested.backward(x, loss)
        assert len(widths) == len(nested.budgets)
        assert len(set(widths)) == len(widths), "narrow passes store narrow values"
        assert len(calls) == (len(widths) if step >= 2 else 0)
        if nested.budgets == (1.0,) or "branches/2/out.weight" in nested.state_dict():
            alone = Remembering().double()  # nobody else moves the whole network
            alone.load_state_dict(before)
            value = cross_entropy(alone(x), y) + alone.h.square().mean()
            grads = torch.autograd.grad(value, list(alone.parameters()))
            for p, grad in zip(net.parameters(), grads, strict=True):
                torch.testing.assert_close(p.grad, grad)
        opt.step()
    assert nested.network(0.5)(x).shape == (16, 4)


def test_statistics_follow_the_whole_network() -> None:
    net, opt, nested = make_widths(Plain, schedule=NEVER_WHOLE, seed=1)  # 0 begins with the whole
    before = {name: b.clone() for name, b in net.named_buffers()}
    train(net, opt, nested, 0, 3)
    assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())
    net, opt, nested = make_widths(Plain, schedule={"full_fraction": 1.0})
    train(net, opt, nested, 0, 3)
    assert all(not torch.equal(b, before[name]) for name, b in net.named_buffers())


def test_every_width_is_drawn_and_none_below_the_smallest() -> None:
    schedule = {"ramp_start": 0.1, "ramp_end": 0.3, "full_fraction": 0.5, "min_density": 0.1}
    net, opt, nested = make_widths(Bare, steps=400, schedule=schedule, small_fraction=0.75)
    widths = []
    for step in range(400):
        train(net, opt, nested, step, step + 1)
        widths.append(nested.budgets)
    assert all(drawn == (1.0,) for drawn in widths[:40])
    late = widths[120:]
    assert min(min(drawn) for drawn in late) == pytest.approx(0.1, rel=0.02)
    assert 0.45 < sum(drawn[0] == 1 for drawn in late) / len(late) < 0.55
    assert 0.7 < sum(len(drawn) == 2 for drawn in late) / len(late) < 0.8
    seen = sorted(width for drawn in late for width in drawn)
    assert max(b / a for a, b in itertools.pairwise(seen)) < 1.1, "no gap"


# ---------------------------------------------------------------------- what came of it


@pytest.mark.parametrize("kind", [*NETS, Unnormed, Bare, Unscaled])
def test_a_network_of_a_width_is_a_smaller_one_of_the_same_class(kind: type[nn.Module]) -> None:
    net, opt, nested = make_widths(kind)
    train(net, opt, nested, 0, 8)
    inputs = [batch(20)[0], batch(21)[0]]
    for width in (0.2, 0.5, 0.7):
        mask = nested.mask(width)
        small = nested.network(width, inputs)
        assert type(small) is kind
        wide = nested.network(width, inputs, small=False)
        x = batch(22)[0]
        torch.testing.assert_close(small(x), wide(x), rtol=1e-9, atol=1e-10)
        for name in mask.names:
            p, q = small.get_parameter(name), wide.get_parameter(name)
            assert q.shape == net.get_parameter(name).shape
            assert not q[~mask[name]].any()
            if p.ndim > 1:
                assert len(p) == int(mask[name].flatten(1).any(1).sum())
        for module in small.modules():
            if isinstance(module, nn.Linear):
                assert (module.out_features, module.in_features) == module.weight.shape
            if isinstance(module, nn.Conv2d):
                assert (module.out_channels, module.in_channels) == module.weight.shape[:2]
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.num_features == len(module.running_mean)
        torch.testing.assert_close(compact(wide, mask, x).model(x), small(x), rtol=1e-9, atol=1e-10)
    assert nested.mask(0.2).issubset(nested.mask(0.5))


def trained_path(
    net: nn.Module, opt: DessiLBI, nested: NestedWidths, folder: Path, steps: int = 6
) -> SolutionPath:
    """The path of some steps, as it comes back from its file."""
    recorder = PathRecorder(net, opt, nested=nested)
    train(net, opt, nested, 0, steps)
    recorder.record(1)
    recorder.path.save(folder / "path.safetensors")
    return SolutionPath.load(folder / "path.safetensors")


@pytest.mark.parametrize("kind", [Plain, Residual, Bare])
def test_a_budget_of_the_path_is_a_network_that_was_trained(
    kind: type[nn.Module], tmp_path: Path
) -> None:
    net, opt, nested = make_widths(kind)
    assert isinstance(opt, DessiLBI)
    path = trained_path(net, opt, nested, tmp_path)
    assert nested.budget_ranks is not None
    ranks = sorted({int(rank) for some in nested.budget_ranks.values() for rank in some})
    trained = [nested.mask(density_of(rank, 0.1)) for rank in ranks]
    names = [layer.name for layer in path.layers]

    def density(mask: Mask) -> float:
        return Mask({name: mask[name] for name in names}).density

    found = [path.mask(density=share / 100) for share in range(101)]
    for share, mask in enumerate(found):
        assert mask in trained
        assert density(mask) <= share / 100 or mask == trained[0], "the smallest is the floor"
    assert all(a.issubset(b) for a, b in itertools.pairwise(found))
    assert (found[0], found[100]) == (trained[0], trained[-1])
    assert len({density(mask) for mask in found}) > 4
    norms = {"norm": "one"} if kind is Plain else {"stem_norm": "stem", "back_norm": "back"}
    for norm, conv in norms.items() if kind is not Bare else ():
        alive = found[50][f"{conv}.weight"].flatten(1).any(1)
        assert torch.equal(found[50][f"{norm}.bias"], alive)
        assert torch.equal(found[50][f"{norm}.weight"], alive)


# ---------------------------------------------------------------------- layouts


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
    shape = (2, channels, 6, 6)
    strides = (36 * channels, 1, 6 * channels, channels)  # last, also of a single channel
    last = torch.empty_strided(shape, strides).copy_(torch.rand(shape))
    slicer = Slicer(Strided(kernel, channels), last)
    cut = slicer.cut([torch.arange(one.channels) < kept for one in slicer.sets])
    (x,) = cut.arguments((last,))
    assert x.is_contiguous() is plain or channels == 1
    assert (x.stride() != last.stride()) is plain


def test_nothing_is_written_beyond_its_memory() -> None:
    guard = "libc_malloc_debug.so.0"  # of the GNU C library: ends a process that spoils its heap
    try:
        ctypes.CDLL(guard)
    except OSError:
        pytest.skip(f"no {guard} here")
    code = f"""
import sys
import torch
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}
from dessilbi import NestedWidths
from {__name__} import Strided
torch.set_num_threads(1)
x = torch.rand(8, 3, 8, 8).contiguous(memory_format=torch.channels_last)
net = Strided(1, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
nested = NestedWidths(net, opt, 20, x, widths=[k / 32 for k in range(4, 9)])
for _ in range(20):
    opt.zero_grad()
    nested.backward(x, lambda output: output.sum())
    opt.step()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_PRELOAD": guard, "MALLOC_CHECK_": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------- what stays whole


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
        self.one, self.up = nn.Conv2d(1, 8, 3), nn.ConvTranspose2d(8, 6, 2)
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.up(self.one(x).relu()).relu().mean((2, 3)))


class Named(nn.Module):
    """Names a size in its code."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.out = nn.Conv2d(1, 8, 3), nn.Linear(8 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.one(x).relu().view(-1, 8 * 16))


def rows(mask: Mask, name: str) -> int:
    return int(mask[name].flatten(1).any(1).sum())


def test_depthwise_convolutions_keep_their_channels() -> None:
    net, opt, nested = make_widths(Depthwise)
    train(net, opt, nested, 0, 6)
    mask = nested.mask(0.1)
    assert mask["one.weight"].all()
    assert mask["deep.weight"].all()
    assert not mask["two.weight"].all()


def test_a_layer_that_is_never_cut_takes_nothing_from_the_others() -> None:
    net, opt, nested = make_widths(Wide, exclude=())
    assert isinstance(opt, DessiLBI)
    recorder = PathRecorder(net, opt, nested=nested)
    train(net, opt, nested, 0, 3)
    recorder.record(1)
    mask = nested.mask(0.5)
    assert [rows(mask, f"{name}.weight") for name in ("one", "two", "out")] == [20, 20, 100]
    for density in (0.05, 0.3, 0.7, 0.9):
        assert recorder.path.mask(density=density)["out.weight"].all()


def test_filters_that_are_never_cut_beside_some_that_are() -> None:
    net, opt, nested = make_widths(Half)
    train(net, opt, nested, 0, 3)
    for density in (0.1, 0.5):
        mask = nested.mask(density)
        assert mask["two.weight"][0].all(), "it is added to an input"
        first, second = (mask[f"{name}.weight"].flatten(1).any(1) for name in ("one", "two"))
        assert torch.equal(first, second[1:])
    assert rows(nested.mask(0.5), "one.weight") == 2
    assert rows(nested.mask(0.1), "one.weight") == 1


def test_a_layer_that_is_not_ranked_keeps_its_filters_and_those_added_to_them() -> None:
    net, opt, nested = make_widths(Residual, exclude=("out", "stem"))
    before = net.get_parameter("stem.weight").detach().clone()
    train(net, opt, nested, 0, 6)
    assert net.get_parameter("stem.weight").detach().ne(before).all()
    mask = nested.mask(0.1)
    assert mask["back.weight"].all()
    assert set(nested.dependents or {}) == {"inner.bias"}
    assert rows(mask, "inner.weight") == 1


def test_what_cannot_be_made_narrower_is_refused_with_a_reason() -> None:
    with pytest.raises(CompactError, match=r"does not run with fewer channels.*flatten\(1\)"):
        Slicer(Named(), torch.zeros(2, 1, 6, 6))
    sigmoid = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2))
    with pytest.raises(CompactError, match="Activations must be 0 at 0"):
        Slicer(sigmoid, torch.zeros(2, 4))
    net = Plain()
    opt = DessiLBI(split_parameters(net), **OPTIONS)
    with pytest.raises(ValueError, match=r"'hidden\.weight' enters Gamma weight by weight"):
        NestedWidths(net, opt, 10, torch.zeros(2, 1, 6, 6))
    assert not opt._optimizer_step_post_hooks  # nothing is left behind
    with pytest.raises(
        ValueError, match=r"'up\.weight' enters Gamma by slices along dimension 1; .*: exclude it"
    ):
        make_widths(Up)
    with pytest.raises(ValueError, match="no layer that is ranked can be made narrower"):
        make_widths(Residual, exclude=("out", "stem", "inner"))
    for options in ({"distill": 2.0}, {"small_fraction": -1}):
        with pytest.raises(ValueError, match=r"must lie in \[0, 1\], got"):
            make_widths(Plain, **options)
    nested = make_widths(Plain)[2]
    for use in (nested.mask, nested.network):
        with pytest.raises(RuntimeError, match="nothing is ranked yet"):
            use(0.5)
        with pytest.raises(ValueError, match="density must lie in"):
            use(0.0)
