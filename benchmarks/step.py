"""Time and memory of one optimizer step, all contenders in one run.

    python benchmarks/step.py [--rounds 15] [--networks vgg-16,resnet-56] [--json out.json]

Two figures each: CPU time on one thread, and wall time on all threads. The contenders take turns,
round after round, and a ratio is the median over rounds of the ratio within a round: machines are
shared, so only ratios within a run mean anything.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dessilbi import DessiLBI, SplitLBI
from dessilbi.optim import _fused
from dessilbi.optim._reference import Reference
from dessilbi.optim.prox import resolve_penalty

if TYPE_CHECKING:
    from collections.abc import Callable

LOOP, ADAM, ADAMW = "literal loop", "Adam fused", "AdamW fused"
SETTINGS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}


def vgg_16() -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = []
    channels = 3
    for width in [64, 64, 128, 128] + 3 * [256] + 6 * [512]:
        shapes += [(width, channels, 3, 3), (width,), (width,)]
        channels = width
    return [*shapes, (10, 512), (10,)]


def resnet_56() -> list[tuple[int, ...]]:
    return _basic_resnet(stem=(16, 3, 3, 3), widths=(16, 32, 64), blocks=(9, 9, 9), classes=10)


def resnet_18() -> list[tuple[int, ...]]:
    return _basic_resnet((64, 3, 7, 7), (64, 128, 256, 512), (2, 2, 2, 2), classes=1000)


def _basic_resnet(
    stem: tuple[int, ...], widths: tuple[int, ...], blocks: tuple[int, ...], classes: int
) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = [stem, stem[:1], stem[:1]]
    channels = stem[0]
    for width, count in zip(widths, blocks, strict=True):
        for _ in range(count):
            shapes += [(width, channels, 3, 3), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            if channels != width:
                shapes += [(width, channels, 1, 1), (width,), (width,)]
            channels = width
    return [*shapes, (classes, channels), (classes,)]


def transformer_100m() -> list[tuple[int, ...]]:
    """The blocks and embeddings of a GPT of 12 layers, 768 wide, with a vocabulary of 20,000."""
    wide = 768
    shapes: list[tuple[int, ...]] = [(20_000, 768), (1024, 768)]
    for _ in range(12):
        shapes += [(wide,), (wide,), (3 * wide, wide), (3 * wide,), (wide, wide), (wide,)]
        shapes += [(wide,), (wide,), (4 * wide, wide), (4 * wide,), (wide, 4 * wide), (wide,)]
    return shapes


NETWORKS = {
    "vgg-16": vgg_16,
    "resnet-56": resnet_56,
    "resnet-18": resnet_18,
    "transformer-100m": transformer_100m,
}


@dataclass
class Contender:
    """Something whose step is timed."""

    step: Callable[[], object]
    state_bytes: int | None = None


def contenders(shapes: list[tuple[int, ...]], chosen: list[str] | None) -> dict[str, Contender]:
    """The optimizers, each on its own copy of the parameters, with one step done."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(s, generator=generator) * 0.05 for s in shapes]
    grads = [torch.randn(s, generator=generator) * 0.01 for s in shapes]

    def of(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> Contender:
        params = [nn.Parameter(w.clone()) for w in weights]
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone()
        opt = make(params)
        opt.step()
        tensors = [t for s in opt.state.values() for t in s.values() if isinstance(t, Tensor)]
        return Contender(opt.step, sum(t.nbytes for t in tensors))

    def literal() -> Contender:
        states = [
            Reference(w.clone(), penalty=resolve_penalty("auto", w.ndim), **SETTINGS)  # type: ignore[arg-type]
            for w in weights
        ]

        def step() -> None:
            for state, grad in zip(states, grads, strict=True):
                state.step(grad)

        step()
        return Contender(step)

    def dessilbi(**how: bool) -> Contender:
        return of(lambda ps: DessiLBI(ps, **SETTINGS, **how))  # type: ignore[arg-type]

    def dessilbi_compiled() -> Contender:
        contender = dessilbi(fused=True)
        native_step = contender.step

        def step() -> None:
            original, _fused.native = _fused.native, _fused.compiled
            try:
                native_step()
            finally:
                _fused.native = original

        step()
        return Contender(step, contender.state_bytes)

    def adamw(ps: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(ps, fused=True)

    sgd = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
    table: dict[str, Callable[[], Contender]] = {
        LOOP: literal,
        "SGD": lambda: of(lambda ps: torch.optim.SGD(ps, **sgd)),  # type: ignore[arg-type]
        "SGD foreach": lambda: of(lambda ps: torch.optim.SGD(ps, **sgd, foreach=True)),  # type: ignore[arg-type]
        "SGD fused": lambda: of(lambda ps: torch.optim.SGD(ps, **sgd, fused=True)),  # type: ignore[arg-type]
        "Adam": lambda: of(lambda ps: torch.optim.Adam(ps)),
        "Adam foreach": lambda: of(lambda ps: torch.optim.Adam(ps, foreach=True)),
        ADAM: lambda: of(lambda ps: torch.optim.Adam(ps, fused=True)),
        ADAMW: lambda: of(adamw),
        "SplitLBI of it": lambda: of(lambda ps: SplitLBI(adamw(ps))),
        "SplitLBI of it, fused": lambda: of(lambda ps: SplitLBI(adamw(ps), fused=True)),
        "DessiLBI": lambda: dessilbi(),
        "DessiLBI foreach": lambda: dessilbi(foreach=True),
        "DessiLBI fused": lambda: dessilbi(fused=True),
    }
    if sum(len(s) > 1 for s in shapes) < 40:  # compiling hundreds of tensors takes minutes
        table["DessiLBI torch.compile"] = dessilbi_compiled
    return {name: make() for name, make in table.items() if chosen is None or name in chosen}


def measure(
    table: dict[str, Contender], clock: Callable[[], float], rounds: int
) -> dict[str, list[float]]:
    """Seconds a step, each contender once a round; short steps are repeated within a round."""
    repeats = {}
    for name, contender in table.items():
        contender.step()
        start = clock()
        contender.step()
        repeats[name] = max(1, min(50, int(0.02 / max(clock() - start, 1e-4))))
    times: dict[str, list[float]] = {name: [] for name in table}
    for _ in range(rounds):
        for name, contender in table.items():
            start = clock()
            for _ in range(repeats[name]):
                contender.step()
            times[name].append((clock() - start) / repeats[name])
    return times


def ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    """Median over rounds of the ratio within a round."""
    pairs = zip(times[name], times[base], strict=True)
    return statistics.median(a / b for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--contenders", help="only these, by name, with semicolons between")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    unknown = set(args.networks.split(",")) - set(NETWORKS)
    if unknown:
        parser.error(f"unknown network {sorted(unknown)}; choose from {sorted(NETWORKS)}")

    threads = os.cpu_count() or 1
    print(f"torch {torch.__version__}, {threads} cores, {args.rounds} rounds, float32,")
    print("momentum 0.9, weight decay 1e-4; ratios are medians within a round")
    results = {}
    for network in args.networks.split(","):
        shapes = NETWORKS[network]()
        count = sum(torch.Size(s).numel() for s in shapes)
        table = contenders(shapes, args.contenders and args.contenders.split(";"))
        torch.set_num_threads(1)
        cpu = measure(table, time.process_time, args.rounds)
        torch.set_num_threads(threads)
        wall = measure(table, time.perf_counter, args.rounds)
        print(f"\n{network}: {count / 1e6:.2f} M parameters in {len(shapes)} tensors")
        bases = [name for name in (LOOP, ADAM, ADAMW) if name in table]
        columns = "".join(f"{'x ' + name:>15}" for name in bases)
        print(f"{'':24}{'CPU ms':>9}{columns}{'wall ms':>10}{'state MB':>10}")
        rows = {}
        for name, contender in table.items():
            row = {
                "cpu_ms": statistics.median(cpu[name]) * 1e3,
                **{f"x {base}": ratio(cpu, name, base) for base in bases},
                "wall_ms": statistics.median(wall[name]) * 1e3,
                "state_bytes": contender.state_bytes,
            }
            rows[name] = row
            state = "" if contender.state_bytes is None else f"{contender.state_bytes / 1e6:.1f}"
            print(
                f"{name:24}{row['cpu_ms']:9.2f}"
                + "".join(f"{row[f'x {base}']:15.2f}" for base in bases)
                + f"{row['wall_ms']:10.2f}{state:>10}"
            )
        results[network] = rows
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
