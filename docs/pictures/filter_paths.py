"""Draw ``filter_paths.png``: how filters enter Gamma while a small net learns the digits.

    python docs/pictures/filter_paths.py

The left panel is the paper's Figure 1 for this net: the norm of each filter of the second
convolution, blue where the filter is in the support of Gamma, red before. Takes ten seconds.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn.functional import cross_entropy

from dessilbi import DessiLBI, split_parameters
from dessilbi.lab.data import batches, load_dataset
from dessilbi.lab.models import make_model
from dessilbi.lab.training.evaluate import evaluate, evaluate_sparse

EPOCHS, LAYER = 16, "conv2.weight"
IN, OUT = "#2563c9", "#d1495b"


def train() -> dict[str, np.ndarray]:
    """The digits recipe, by hand: norms and supports after each epoch."""
    torch.manual_seed(0)
    data = load_dataset("digits")
    model = make_model("digits-net", num_classes=10, in_channels=1, input_size=8)
    opt = DessiLBI(
        split_parameters(model, init_scaled=1.5), lr=0.1, nu=20, momentum=0.9, weight_decay=1e-4
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(opt, [10, 14])
    twins = dict(opt.twins())
    rows: dict[str, list[object]] = {
        "norms": [], "inside": [], "densities": [], "dense": [], "sparse": []
    }  # fmt: skip
    for epoch in range(EPOCHS):
        for x, y in batches(data.train, 64, seed=0, epoch=epoch):
            opt.zero_grad()
            cross_entropy(model(x), y).backward()
            opt.step()
        schedule.step()
        filters = twins[LAYER].detach()
        rows["norms"].append(filters.flatten(1).norm(dim=1).numpy())
        rows["inside"].append(opt.support(twins[LAYER]).flatten(1).any(1).numpy())
        rows["densities"].append([opt.density(p) for p in twins.values()])
        rows["dense"].append(evaluate(model, data.test).accuracy)
        rows["sparse"].append(evaluate_sparse(model, opt, data.test, data.train)[1].accuracy)
    return {name: np.array(values) for name, values in rows.items()} | {
        "layers": np.array([name.split(".")[0] for name in twins])
    }


def draw(path: dict[str, np.ndarray], file: Path) -> None:
    """Two panels on one time axis each."""
    epochs = np.arange(1, EPOCHS + 1)
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    for norms, inside in zip(path["norms"].T, path["inside"].T, strict=True):
        for i in range(EPOCHS - 1):
            color = IN if inside[i + 1] else OUT
            left.plot(epochs[i : i + 2], norms[i : i + 2], color=color, lw=1.1, alpha=0.85)
    left.plot([], [], color=IN, label="in the support of Gamma")
    left.plot([], [], color=OUT, label="not (yet)")
    left.set(xlabel="epoch", ylabel="norm of the filter", title="32 filters of the second layer")
    left.legend(frameon=False)

    for name, densities in zip(path["layers"], path["densities"].T, strict=True):
        right.plot(epochs, 100 * densities, lw=1.5, label=f"density of {name}")
    right.plot(epochs, path["sparse"], color="black", lw=2, label="accuracy on the support")
    right.plot(epochs, path["dense"], color="black", lw=1, ls=":", label="accuracy, all weights")
    right.set(xlabel="epoch", ylabel="%", ylim=(0, 102), title="from simple to complex")
    right.legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 0.94), fontsize=9)
    figure.savefig(file, dpi=130)


if __name__ == "__main__":
    draw(train(), Path(__file__).with_suffix(".png"))
