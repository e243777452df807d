"""V in bfloat16: what half of its memory costs in equality of the path.

    python benchmarks/v_dtype.py --data-dir DIR [--seeds 3]

LeNet-300-100 on MNIST, 3 epochs of AdamW (1e-3, cosine, batch 128) with a twin at default tau and
c. Beside the run with V in float32: the same in bfloat16, and, as a yardstick, the same in float32
with the images in another order. The overlap of two supports is the weights in both by those in
either (Jaccard).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dessilbi import SplitLBI, project, split_parameters
from dessilbi.lab.data.load import load_dataset
from dessilbi.lab.data.splits import TensorSplit

EPOCHS, BATCH = 3, 128


@dataclass
class Trained:
    """What one training left."""

    mask: dict[str, Tensor]
    density: float
    whole: float
    support: float
    bytes: int


def trained(
    seed: int, order: int, v_dtype: torch.dtype | None, train: TensorSplit, test: TensorSplit
) -> Trained:
    """One training."""
    torch.manual_seed(seed)
    layers = [nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)]
    model = nn.Sequential(nn.Flatten(), *layers)
    steps = EPOCHS * (len(train) // BATCH)
    opt = SplitLBI(torch.optim.AdamW(split_parameters(model), lr=1e-3), v_dtype=v_dtype)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    opt.set_coupling_time(steps=steps, scheduler=schedule)
    (x, y), generator = train.tensors(), torch.Generator().manual_seed(order)
    for _ in range(EPOCHS):
        order_now = torch.randperm(len(x), generator=generator)[: steps // EPOCHS * BATCH]
        for batch in order_now.view(-1, BATCH):
            opt.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(x[batch]), y[batch]))
            opt.step()
            schedule.step()

    @torch.no_grad()
    def accuracy() -> float:
        images, labels = test.tensors()
        return 100 * float((model(images).argmax(1) == labels).float().mean())

    whole = accuracy()
    with project(model, opt.mask()):
        support = accuracy()
    sizes = [s["v"].nbytes for s in opt.state.values() if "v" in s]
    return Trained(opt.mask(), opt.density(), whole, support, sum(sizes))


def overlap(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Jaccard's index of two supports."""
    both = sum(int((m & other[name]).sum()) for name, m in one.items())
    return both / sum(int((m | other[name]).sum()) for name, m in one.items())


def main() -> None:
    """Print a line for each seed and each V."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = load_dataset("mnist", data_dir=given.data_dir, normalize=True)
    assert isinstance(data.train, TensorSplit)
    assert isinstance(data.test, TensorSplit)
    for seed in range(given.seeds):
        runs = {
            "float32": (seed, None),
            "bfloat16": (seed, torch.bfloat16),
            "float32, another order": (seed + 1000, None),
        }
        found = {
            name: trained(seed, order, dtype, data.train, data.test)
            for name, (order, dtype) in runs.items()
        }
        for name, run in found.items():
            print(
                f"seed {seed}  {name:24} V {run.bytes / 1e6:.2f} MB  in Gamma {run.density:6.2%}  "
                f"whole {run.whole:.2f}  support {run.support:.2f}  "
                f"overlap {overlap(found['float32'].mask, run.mask):.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
