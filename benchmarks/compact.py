"""Compact models against the masked and the dense ones: equality, latency, ONNX, sparse matrices.

    python benchmarks/compact.py [exact] [speed] [onnx] [sparse] [--seeds N] [--nets ...] [--off]

Filters (rows of every weight but the classifier's) are off at random, independently in each layer.
Statistics of BatchNorm are random, or those of a few steps of training on random images. All times
are CPU times taken in turn within one run (with one thread: others on the machine do not count);
only ratios are to be compared.
"""

from __future__ import annotations

import argparse
import tempfile
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dessilbi import Mask, compact, project
from dessilbi.compaction import difference, export_onnx, run_onnx, side_by_side, sparsify
from dessilbi.compaction.latency import steady_clock
from dessilbi.lab.models import make_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from dessilbi.compaction import Compact

OFF = (0.2, 0.5, 0.8)


class Separable(nn.Module):
    """Inverted residuals as in MobileNetV2: pointwise, depthwise, pointwise."""

    def __init__(self, width: int = 24, blocks: int = 6) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width)
        )
        self.blocks = nn.ModuleList(self.block(width, 6 * width) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    @staticmethod
    def block(width: int, inner: int) -> nn.Module:
        """One inverted residual without its sum."""
        return nn.Sequential(
            nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6(),
            nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False),
            nn.BatchNorm2d(inner), nn.ReLU6(),
            nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


def lab(name: str, side: int, channels: int) -> nn.Module:
    return make_model(name, num_classes=10, in_channels=channels, input_size=side)


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "VGG-16": (lambda: lab("vgg-16", 32, 3), (3, 32, 32)),
    "ResNet-56": (lambda: lab("resnet-56", 32, 3), (3, 32, 32)),
    "LeNet-5": (lambda: lab("lenet-5", 28, 1), (1, 28, 28)),
    "Conv-4": (lambda: lab("conv-4", 32, 3), (3, 32, 32)),
    "separable": (Separable, (3, 32, 32)),
}


def network(name: str, statistics: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    make, shape = NETS[name]
    model = make()
    if statistics == "trained":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for _ in range(5):
            optimizer.zero_grad()
            loss = cross_entropy(model(torch.randn(16, *shape)), torch.randint(10, (16,)))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return model
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, nn.BatchNorm2d):
                for t in (m.running_mean, m.bias):
                    assert t is not None
                    t.copy_(0.3 * torch.randn_like(t))
                for t in (m.running_var, m.weight):
                    assert t is not None
                    t.copy_(0.5 + torch.rand_like(t))
    return model


def filters_off(model: nn.Module, off: float, seed: int) -> Mask:
    generator = torch.Generator().manual_seed(seed)
    weights = {n: p for n, p in model.named_parameters() if p.ndim > 1}
    *names, _ = weights
    return Mask(
        {
            n: (torch.rand(len(weights[n]), generator=generator) >= off)
            .view(-1, *[1] * (weights[n].ndim - 1))
            .expand(weights[n].shape)
            for n in names
        }
    )


def example(name: str, batch: int = 1) -> Tensor:
    return torch.randn(batch, *NETS[name][1], generator=torch.Generator().manual_seed(1))


def exact(args: argparse.Namespace) -> None:
    """Largest relative difference to the masked model, over masks and seeds."""
    print("| network | statistics | float64 | float32 |\n|---|---|---|---|")
    for name in args.nets:
        for statistics in ("random", "trained"):
            worst = {"float64": 0.0, "float32": 0.0}
            for seed in range(args.seeds):
                model = network(name, statistics, seed)
                for off in args.off:
                    for streams in ("keep", "scatter"):
                        small = compact(
                            model, filters_off(model, off, seed), example(name),
                            streams=streams, latency=False,
                        )  # fmt: skip
                        for d in small.report.differences:
                            worst[d.dtype] = max(worst[d.dtype], d.relative)
            print(f"| {name} | {statistics} | {worst['float64']:.1e} | {worst['float32']:.1e} |")


def speed(args: argparse.Namespace) -> None:
    """CPU time of the dense model over that of the compact one."""
    print(
        "| network | filters off | seed | parameters | multiply-adds | batch 1 | batch 128 | "
        "batch 128, both channels-last | scattered sums |\n|---|---|---|---|---|---|---|---|---|"
    )
    for name in args.nets:
        for off in args.off:
            for seed in range(args.seeds):
                model = network(name, "random", seed).eval()
                small = compact(model, filters_off(model, off, seed), example(name))
                ratios = [
                    f"{ratio:.2f}"
                    for batch in (1, 128)
                    for ratio in against_dense(small, model, example(name, batch))
                ]
                size, cut = small.report.dense, small.report.compact
                print(
                    f"| {name} | {off:.0%} | {seed} | {size.parameters / cut.parameters:.1f} "
                    f"| {size.macs / cut.macs:.1f} | {ratios[0]} | {ratios[2]} | {ratios[3]} "
                    f"| {len(small.report.scattered)} |",
                    flush=True,
                )


def against_dense(small: Compact, dense: nn.Module, x: Tensor) -> tuple[float, float]:
    """Ratios to the dense model as it is, and with both in channels-last memory format."""
    last: list[nn.Module] = [
        deepcopy(m).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for m in (dense, small.model)
    ]
    calls = [partial(m, x) for m in (dense, small.model, *last)]
    times = side_by_side(calls, repetitions=9, seconds=20, clock=steady_clock)
    one, ours, other, ours_last = (t.median for t in times)
    return one / ours, other / ours_last


def onnx(args: argparse.Namespace) -> None:
    """Files and latency in onnxruntime."""
    print(
        "| network | filters off | file, dense : compact | parameters | batch 1 | batch 128 | "
        "to masked, float32 |\n|---|---|---|---|---|---|---|"
    )
    for name, off in (("VGG-16", 0.8), ("ResNet-56", 0.5), ("separable", 0.5)):
        if name not in args.nets:
            continue
        model = network(name, "random", 0).eval()
        mask = filters_off(model, off, 0)
        small = compact(model, mask, example(name), latency=False)
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            dense_file, small_file = Path(folder) / "dense.onnx", Path(folder) / "small.onnx"
            sizes = (
                export_onnx(model, dense_file, example(name)),
                export_onnx(small.model, small_file, example(name)),
            )
            dense, ours = run_onnx(dense_file), run_onnx(small_file)
            ratios = []
            for batch in (1, 128):
                x = example(name, batch)
                a, b = side_by_side([partial(dense, x), partial(ours, x)], clock=steady_clock)
                ratios.append(a.median / b.median)
            with project(model, mask):
                gap = difference(ours, model, [(example(name, 8),)], "random").relative
        r = small.report
        print(
            f"| {name} | {off:.0%} | {sizes[0] / sizes[1]:.1f} | "
            f"{r.dense.parameters / r.compact.parameters:.1f} | {ratios[0]:.2f} | {ratios[1]:.2f} "
            f"| {gap:.1e} |",
            flush=True,
        )


def sparse(args: argparse.Namespace) -> None:
    """Linear layers with single weights off: the time of the dense product over the sparse ones."""
    print(
        "| layer | density | batch 1: torch CSR | scipy | batch 128: torch CSR | scipy | chosen |\n"
        "|---|---|---|---|---|---|---|"
    )
    model = nn.Sequential(nn.Linear(784, 300), nn.Linear(300, 100), nn.Linear(4096, 4096))
    for density in (0.01, 0.05, 0.1, 0.3):
        mask = Mask.random(
            model,
            layer_densities={f"{i}.weight": density for i in range(3)},
            generator=torch.Generator().manual_seed(0),
        )
        with project(model, mask):
            _, report = sparsify(model)
        for layer in report.layers:
            cells = [
                f"{layer.times[batch]['dense'].median / layer.times[batch][way].median:.2f}"
                for batch in (1, 128)
                for way in ("csr", "scipy")
            ]
            chosen = ", ".join(f"{b}: {way}" for b, way in layer.ways.items())
            shape = " x ".join(map(str, layer.shape[::-1]))
            print(f"| {shape} | {density:.0%} | {' | '.join(cells)} | {chosen} |", flush=True)


PARTS = {"exact": exact, "speed": speed, "onnx": onnx, "sparse": sparse}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--nets", nargs="*", default=list(NETS), help=", ".join(NETS))
    parser.add_argument("--off", nargs="*", type=float, default=OFF)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} thread(s), seeds 0 to {args.seeds - 1}")
    for name in args.parts or PARTS:
        if name not in PARTS:
            parser.error(f"PART must be one of {', '.join(PARTS)}, got {name!r}")
        print(f"\n{name}\n")
        PARTS[name](args)


if __name__ == "__main__":
    main()
