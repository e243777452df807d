"""A small network whose weights are sharded over ranks (FSDP2), with path and budgets.

torchrun --nproc-per-node 2 examples/with_fsdp2.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from dessilbi import DessiLBI, NestedTraining, PathRecorder, project, split_parameters

EPOCHS = 10


def main() -> PathRecorder:
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = (x[:, :2].sum(1) > 0).long()
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    batches = list(zip(x[mine].split(16), y[mine].split(16), strict=True))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    opt = DessiLBI(split_parameters(model), lr=0.1, momentum=0.9, steps=EPOCHS * len(batches))
    nested = NestedTraining(model, opt, steps=EPOCHS * len(batches))
    recorder = PathRecorder(model, opt, nested=nested)
    for epoch in range(1, EPOCHS + 1):
        for inputs, labels in batches:
            opt.zero_grad()
            nested.backward(inputs, lambda output, labels=labels: cross_entropy(output, labels))
            opt.step()
        recorder.record(epoch)  # every rank: it gathers what each has seen
    with project(model, recorder.path.mask(density=0.3)):
        accuracy = float((model(x).argmax(1) == y).float().mean())  # every rank: FSDP gathers
    if dist.get_rank() == 0:
        print("accuracy of 30 %:", accuracy)
    return recorder


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
