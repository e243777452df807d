"""What recording a path costs: CPU time of the hook against a training step, and size of the file.

    python benchmarks/path.py [--rounds 15] [--networks lenet-5,resnet-56,vgg-16] [--json out.json]

One thread. Steps (forward, backward, optimizer) with and without the recorder take turns, and the
ratio is the median over pairs of the ratio within a pair; it moves by as much as the machine is
busy with other things. The hook alone, over the step without it, is the finer figure.

Files are those of VGG-16 after 160 marked epochs: by filter as in the paper, with every filter
entering or leaving 16 times; and with every weight by element, where the size follows from
the share of weights that change between two epochs. (LeNet-300-100 on the digits: 0.3 % an epoch
on average at nu 10, lambd 0.3; 1.3 % at nu 100, lambd 0.03.)
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from dessilbi import DessiLBI, split_parameters
from dessilbi.lab.models import make_model
from dessilbi.path import PathRecorder, SolutionPath

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

EPOCHS, STEPS_AN_EPOCH = 160, 391
NETWORKS = {"lenet-5": (128, 1, 28), "resnet-56": (128, 3, 32), "vgg-16": (64, 3, 32)}
"""Batch size, channels and pixels a side."""
LARGEST_SHARE, LARGEST_FILE = 0.02, 100e6


def problem(network: str) -> tuple[nn.Module, DessiLBI, Callable[[], None]]:
    """A model, its optimizer and one whole training step."""
    images, channels, side = NETWORKS[network]
    torch.manual_seed(0)
    model = make_model(network, num_classes=10, in_channels=channels, input_size=side)
    opt = DessiLBI(split_parameters(model), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    x, y = torch.randn(images, channels, side, side), torch.randint(10, (images,))

    def step() -> None:
        opt.zero_grad()
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        opt.step()

    return model, opt, step


def seconds(action: Callable[[], object], repeats: int) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    for _ in range(repeats):
        action()
    return (time.process_time() - start) / repeats


def cost(network: str, rounds: int) -> dict[str, float]:
    """Step without and with the recorder, the hook alone, and a mark."""
    model, opt, step = problem(network)
    for _ in range(2):
        step()
    pairs = rounds * max(1, min(20, int(0.5 / seconds(step, 1))))
    plain, ratios, hooks = [], [], []
    for turn in range(pairs):
        times: dict[bool, float] = {}
        for watched in (False, True) if turn % 2 else (True, False):
            if not watched:
                times[watched] = seconds(step, 1)
                continue
            with PathRecorder(model, opt) as recorder:
                recorder._after_step(opt, (), {})  # notes who is inside at the start
                times[watched] = seconds(step, 1)
                hooks.append(seconds(lambda r=recorder: r._after_step(opt, (), {}), 5))  # type: ignore[misc]
        plain.append(times[False])
        ratios.append(times[True] / times[False])
    with PathRecorder(model, opt) as recorder:
        mark = seconds(lambda: recorder.record(1), 1)
    return {
        "step_ms": statistics.median(plain) * 1e3,
        "ratio": statistics.median(ratios),
        "hook_ms": statistics.median(hooks) * 1e3,
        "share": statistics.median(hooks) / statistics.median(plain),
        "mark_ms": mark * 1e3,
    }


def vgg_path(penalty: str | None, churn: float) -> SolutionPath:
    """A path of VGG-16: each epoch a share ``churn`` of all groups enters or leaves."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    model = make_model("vgg-16", num_classes=10, in_channels=3, input_size=32)
    patterns = None if penalty is None else {"*": {"penalty": penalty}}
    opt = DessiLBI(split_parameters(model, patterns), lr=0.1)
    recorder = PathRecorder(model, opt)
    path, inside = recorder.path, np.zeros(recorder.path.groups, dtype=np.bool_)
    watched = np.concatenate([np.full(layer.groups, layer.exact) for layer in path.layers])
    for _, p in opt.twins():
        opt.state[p]["v"] = torch.rand_like(p)
    recorder.record(0, loss=1.0)
    for epoch in range(1, EPOCHS):
        flips = np.sort(rng.choice(path.groups, int(churn * path.groups), replace=False))
        inside[flips] ^= True
        exact = flips[watched[flips]]
        for one in exact:  # several steps an epoch, as it would be
            path.step += STEPS_AN_EPOCH // len(exact)
            path.event_log.append(path.step, np.array([one]), inside[[one]])
        path.step = epoch * STEPS_AN_EPOCH
        path.supports.append(inside)
        path.snapshots.append(replace(path.snapshots[0], epoch=epoch, step=path.step))
    return path


def sizes() -> dict[str, dict[str, float]]:
    """Files of VGG-16 over 160 epochs."""
    cases: dict[str, tuple[str | None, float]] = {
        "by filter, 10 % of the filters change an epoch": (None, 0.1)
    }
    for churn in (0.003, 0.013, 0.02):
        cases[f"by element, {churn:.1%} of the weights change an epoch"] = ("lasso", churn)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (penalty, churn) in cases.items():
            path, file = vgg_path(penalty, churn), Path(folder) / "path.safetensors"
            save = seconds(lambda p=path, f=file: p.save(f), 1)  # type: ignore[misc]
            load = seconds(lambda f=file: SolutionPath.load(f), 1)  # type: ignore[misc]
            found[name] = {
                "groups": path.groups,
                "megabytes": file.stat().st_size / 1e6,
                "supports_megabytes": sum(map(len, path.supports.blobs)) / 1e6,
                "save_seconds": save,
                "load_seconds": load,
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--networks", default=",".join(NETWORKS), help="may be empty")
    parser.add_argument("--no-sizes", action="store_true")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    networks = [name for name in args.networks.split(",") if name]
    unknown = set(networks) - set(NETWORKS)
    if unknown:
        parser.error(f"unknown network {sorted(unknown)}; choose from {sorted(NETWORKS)}")
    torch.set_num_threads(1)

    print(f"torch {torch.__version__}, one thread, {args.rounds} rounds, fused optimizer, float32")
    print(
        f"{'':12}{'step ms':>10}{'with / without':>16}{'hook ms':>10}{'hook / step':>13}"
        f"{'mark ms':>9}"
    )
    costs = {}
    for network in networks:
        costs[network] = c = cost(network, args.rounds)
        verdict = "" if c["share"] < LARGEST_SHARE else f"  above {LARGEST_SHARE:.0%}!"
        print(
            f"{network:12}{c['step_ms']:10.1f}{c['ratio']:16.4f}{c['hook_ms']:10.3f}"
            f"{c['share']:13.2%}{c['mark_ms']:9.1f}{verdict}"
        )
    files = {} if args.no_sizes else sizes()
    if files:
        print(
            f"\nVGG-16, {EPOCHS} epochs{'':37}{'MB':>8}{'supports':>10}{'save s':>8}{'load s':>8}"
        )
    for name, f in files.items():
        verdict = "" if f["megabytes"] < LARGEST_FILE / 1e6 else "  above 100 MB!"
        print(
            f"{name:53}{f['megabytes']:8.1f}{f['supports_megabytes']:10.1f}{f['save_seconds']:8.2f}"
            f"{f['load_seconds']:8.2f}{verdict}"
        )
    if args.json:
        args.json.write_text(json.dumps({"cost": costs, "files": files}, indent=1))


if __name__ == "__main__":
    main()
