"""What the training loop adds to bare training, and what DessiLBI adds to SGD.

    python benchmarks/epoch.py [--data-dir DIR] [--rounds 25] [--images 2560] [--json out.json]

CPU time on one thread; the contenders take turns and a ratio is the median over rounds of the ratio
within a round. LeNet-5 on MNIST, batch 128: the loop of `dessilbi train` with progress and recorder
on, the bare forward-backward-step loop on tensors in memory, and the usual DataLoader that
transforms image by image. Then whole training steps of VGG-16 at batch 64 (the paper's cost table),
with peak memory.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dessilbi import DessiLBI, split_parameters
from dessilbi.lab.data import TensorSplit
from dessilbi.lab.models import make_model
from dessilbi.lab.run.config import Config, DataConfig, ModelConfig, OptimizerConfig
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.distributed import World
from dessilbi.lab.training.loop import train_epoch
from dessilbi.lab.training.optimizers import make_optimizer
from dessilbi.lab.training.state import Training
from dessilbi.lab.training.terminal import TerminalDisplay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

BATCH = 128


def lenet_5(data_dir: Path | None, images: int, rounds: int) -> dict[str, list[float]]:
    """Seconds for one epoch, by contender."""
    from rich.console import Console

    config = Config(
        data=DataConfig(name="mnist", validation=60000 - images),
        model=ModelConfig(name="lenet-5", init="default"),
        optimizer=OptimizerConfig(momentum=0.9, weight_decay=1e-4, nu=10.0, lambd=1.0, lr=0.01),
        epochs=10_000,
        batch_size=BATCH,
    )
    with tempfile.TemporaryDirectory() as folder:
        place = RunOptions(runs=Path(folder), data_dir=data_dir)
        run = RunDir.of(config, place.runs)
        screen = TerminalDisplay(Console(file=io.StringIO(), force_terminal=True))
        trainer = Training.make(config, place, run, torch.device("cpu"), World(), screen)
        trainer.begin()
        assert isinstance(trainer.data.train, TensorSplit)
        x, y = trainer.data.train.tensors()
        raw = trainer.data.train.images

        with screen:
            screen.start(config, run, trainer.progress, trainer.data)

            def whole() -> None:
                train_epoch(trainer)
                trainer.progress.next_epoch()

            contenders = {
                "dessilbi train": whole,
                "bare loop": _epochs(config, lambda: _resident(x, y)),
                "DataLoader": _epochs(config, lambda: _loader(raw, y)),
            }
            return _measure(contenders, rounds)


def _epochs(
    config: Config, stream: Callable[[], Iterable[tuple[Tensor, Tensor]]]
) -> Callable[[], None]:
    model = make_model("lenet-5", num_classes=10, in_channels=1, input_size=28, init="default")
    optimizer = make_optimizer(model, config.optimizer)

    def epoch() -> None:
        for x, y in stream():
            _step(model, optimizer, x, y)

    return epoch


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(cross_entropy(model(x), y))
    optimizer.step()


def _resident(x: Tensor, y: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    for index in torch.split(torch.randperm(len(y)), BATCH):
        yield x[index], y[index]


def _loader(raw: Tensor, labels: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    arrays, targets = raw.squeeze(1).numpy(), labels.tolist()

    class Pictures(Dataset[tuple[Tensor, int]]):
        """What torchvision's MNIST with ToTensor does for an image."""

        def __len__(self) -> int:
            return len(targets)

        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            picture = Image.fromarray(arrays[i])
            pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
            return pixels.view(1, 28, 28).float().div(255), targets[i]

    return DataLoader(Pictures(), batch_size=BATCH, shuffle=True)


def vgg_16(rounds: int, batch: int = 64) -> dict[str, list[float]]:
    """Seconds for one training step, by optimizer."""
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

    def of(name: str) -> Callable[[], None]:
        model = _vgg()
        optimizer = OPTIMIZERS[name](model)
        return lambda: _step(model, optimizer, x, y)

    return _measure({name: of(name) for name in OPTIMIZERS}, rounds)


def _vgg() -> nn.Module:
    return make_model("vgg-16", num_classes=10, in_channels=3, input_size=32)


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=1e-3, momentum=0.9, fused=True),
    "DessiLBI": lambda m: DessiLBI(split_parameters(m), lr=1e-3, momentum=0.9, fused=True),
    "DessiLBI, not fused": lambda m: DessiLBI(split_parameters(m), lr=1e-3, momentum=0.9),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), fused=True),
}


def _measure(contenders: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    return times


def peak_memory(name: str) -> float:
    """Megabytes that three training steps add to a process with the model's modules loaded."""
    command = [sys.executable, __file__, "--peak-of", name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _print_peak_of(name: str) -> None:
    before = _kilobytes("VmRSS")
    model = _vgg()
    optimizer = OPTIMIZERS[name](model)
    for _ in range(3):
        _step(model, optimizer, torch.randn(64, 3, 32, 32), torch.randint(10, (64,)))
    print((_kilobytes("VmHWM") - before) / 1024)


def _kilobytes(field: str) -> int:
    # getrusage would count the peak of the parent process as well.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def _report(times: dict[str, list[float]], base: str) -> dict[str, dict[str, float]]:
    rows = {}
    for name, values in times.items():
        ratios = sorted(a / b for a, b in zip(values, times[base], strict=True))
        rows[name] = {
            "seconds": statistics.median(values),
            "ratio": statistics.median(ratios),
            "low": ratios[0],
            "high": ratios[-1],
        }
        print(
            f"{name:22}{rows[name]['seconds']:9.3f} s{rows[name]['ratio']:8.3f}x"
            f"   ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--images", type=int, default=2_560)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peak-of", choices=OPTIMIZERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.peak_of:
        _print_peak_of(args.peak_of)
        return
    results: dict[str, Any] = {}
    print(f"torch {torch.__version__}, CPU time on one thread, {args.rounds} rounds")
    print(f"\nLeNet-5, MNIST, {args.images} images an epoch, training part of one epoch")
    times = lenet_5(args.data_dir, args.images, args.rounds)
    results["lenet-5 epoch"] = _report(times, "bare loop")
    print("\nVGG-16, batch 64, one whole training step")
    results["vgg-16 step"] = _report(vgg_16(min(args.rounds, 9)), "SGD")
    print("\nVGG-16, batch 64, peak memory of three training steps")
    memory = {name: peak_memory(name) for name in OPTIMIZERS}
    for name, megabytes in memory.items():
        print(f"{name:22}{megabytes:9.0f} MB{megabytes / memory['SGD']:8.3f}x")
    results["vgg-16 memory"] = memory
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
