"""A small network with a twin in an Accelerate loop, every budget trained; seconds on a CPU.

pip install dessilbi accelerate; accelerate launch examples/with_accelerate.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from dessilbi import DessiLBI, NestedTraining, PathRecorder, project, split_parameters

EPOCHS = 10


def main() -> tuple[nn.Module, PathRecorder, NestedTraining]:
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    loader = DataLoader(TensorDataset(x, (x[:, :2].sum(1) > 0).long()), batch_size=32)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    opt = DessiLBI(split_parameters(model), lr=0.1, momentum=0.9, steps=EPOCHS * len(loader))

    accelerator = Accelerator(cpu=True)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    nested = NestedTraining(model, opt, steps=EPOCHS * len(loader))  # prepared ones as they are
    recorder = PathRecorder(model, opt, nested=nested)
    for epoch in range(1, EPOCHS + 1):
        for inputs, labels in loader:
            opt.zero_grad()
            for _ in nested.passes():
                accelerator.backward(cross_entropy(model(inputs), labels))
            opt.step()
        recorder.record(epoch)
    with project(model, recorder.path.mask(density=0.3)):
        accelerator.print(
            "30 %:", float((model(x).argmax(1) == (x[:, :2].sum(1) > 0)).float().mean())
        )
    return model, recorder, nested


if __name__ == "__main__":
    main()
