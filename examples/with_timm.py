"""timm's optimizer factory with a twin; seconds on a CPU.

pip install dessilbi timm; python examples/with_timm.py
"""

from __future__ import annotations

import timm
import torch
from timm.optim import create_optimizer_v2
from torch.nn.functional import cross_entropy

from dessilbi import PathRecorder, split_parameters
from dessilbi.integrations.timm import register


def main(name: str = "dessilbi", rate: float = 0.05) -> PathRecorder:
    register()
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", num_classes=4, in_chans=3)
    # Groups of split_parameters: timm's own know nothing of filters and embeddings.
    opt = create_optimizer_v2(model, name, lr=rate, steps=40, param_group_fn=split_parameters)
    recorder = PathRecorder(model, opt)
    x, y = torch.randn(4, 3, 32, 32), torch.arange(4)
    for step in range(1, 41):
        opt.zero_grad()
        cross_entropy(model(x), y).backward()
        opt.step()
        if step % 10 == 0:
            recorder.record(step)
    print("density by step:", *map(recorder.path.density, recorder.path.epochs))
    return recorder


if __name__ == "__main__":
    main()
