"""A small network with a twin, trained by Lightning; seconds on a CPU.

pip install 'dessilbi[lightning]'; python examples/with_lightning.py
"""

from __future__ import annotations

import sys
from tempfile import mkdtemp
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from dessilbi import DessiLBI, project, split_parameters
from dessilbi.integrations.lightning import DessilbiCallback


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> DessiLBI:
        return DessiLBI(split_parameters(self.net), lr=0.1, momentum=0.9)


class NestedClassifier(Classifier):
    """Trains several budgets a step, by manual optimization."""

    def __init__(self, callback: DessilbiCallback) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.callback = callback

    def training_step(self, batch: tuple[Tensor, Tensor]) -> None:
        x, y = batch
        opt = self.optimizers()
        opt.zero_grad()
        for _ in self.callback.nested.passes():
            self.manual_backward(cross_entropy(self.net(x), y))
        opt.step()


def data() -> DataLoader[Any]:
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, (x[:, :2].sum(1) > 0).long()), batch_size=32)


def trainer(folder: str, callback: DessilbiCallback, **more: Any) -> pl.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return pl.Trainer(
        **{"max_epochs": 4, "accelerator": "cpu", "default_root_dir": folder, **quiet, **more},
        callbacks=[callback],
    )


def main(folder: str) -> None:
    torch.manual_seed(0)
    callback, module = DessilbiCallback(), Classifier()
    trainer(folder, callback).fit(module, data())
    print("density by epoch:", *map(callback.path.density, callback.path.epochs))
    mask = callback.path.mask(density=0.3)  # named as module.net names its weights
    with project(module.net, mask):
        x, y = next(iter(data()))
        print("accuracy of 30 %:", float((module.net(x).argmax(1) == y).float().mean()))

    callback = DessilbiCallback(nested={"min_groups": 2})
    trainer(folder, callback).fit(NestedClassifier(callback), data())
    print("a tenth:", callback.nested.mask(0.1))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else mkdtemp())
