"""A character GPT and fewer of its neurons: what one run gives without retraining, and a budget.

    python benchmarks/neurons.py --data-dir DIR [--seeds 3] [--runs DIR] [--methods adamw,twin,...]

Validation loss of the whole network, then of the strongest 75, 50, 25 and 12.5 % of the neurons of
each layer, by the norm of their weights, as they are. Recipe char-gpt: 2,000 steps.

- adamw, adamw-0.03, adamw-0.3: AdamW alone, weight decay 0.1 and as named;
- twin: SplitLBI around it, tau and c of the recipe; twin-T/C: with tau T and c C;
- half, quarter: pruned by size at 60 % of the steps, then finished, a run for each;
- groups-0.5, groups-0.25: `--method.groups`, gradual pruning to that many of the neurons;
- gamma-0.5, gamma-0.25: the same by Gamma, coupling on.

Every finished run is kept in a run directory and found again.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import torch

from dessilbi import Mask, project
from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.run.methods import GradualPruning
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.run.recipes import char_gpt, char_gpt_adamw
from dessilbi.lab.training.build import evaluated_split, load_data
from dessilbi.lab.training.evaluate import evaluate
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.optimizers import twin_groups
from dessilbi.path.layers import tied_sets
from dessilbi.path.twins import ranked_weights
from dessilbi.subnet.scores import scores

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.directory import RunDir

SHARES = (0.75, 0.5, 0.25, 0.125)
METHODS = "adamw,adamw-0.03,adamw-0.3,twin,half,quarter,groups-0.5,groups-0.25"


def configured(method: str) -> Config:
    """The run of a method."""
    kind, _, number = method.partition("-")
    base = char_gpt_adamw()
    if kind == "twin":
        recipe = char_gpt()
        if not number:
            return recipe
        tau, c = map(float, number.split("/"))
        return replace(recipe, optimizer=replace(recipe.optimizer, tau=tau, c=c))
    if kind == "adamw":
        decay = float(number or base.optimizer.weight_decay)
        return replace(base, optimizer=replace(base.optimizer, weight_decay=decay))
    if kind in ("half", "quarter"):
        share = {"half": 0.5, "quarter": 0.25}[kind]
        return replace(base, method=GradualPruning(groups=share, begin=0.6, end=0.6))
    if kind == "groups":
        return replace(base, method=GradualPruning(groups=float(number)))
    return replace(char_gpt(), method=GradualPruning(groups=float(number), by="gamma", end=0.6))


def strongest(model: nn.Module, share: float) -> Mask:
    """The largest neurons of each layer."""
    groups = twin_groups(model, char_gpt().optimizer)
    weights, layers = ranked_weights(model, torch.optim.SGD(groups), groups)
    by_name = dict(zip([la.name for la in layers], scores(weights, layers, True), strict=True))
    kept: dict[str, Tensor] = {}
    for tied in tied_sets(layers):
        inside = by_name[tied[0].name] > 1 - share
        kept |= {layer.name: layer.expand(inside) for layer in tied}
    return Mask(kept)


def losses(run: RunDir, options: RunOptions) -> list[float]:
    """Of the whole network, and of its strongest neurons."""
    data = load_data(run.config(), options.data_dir, download=False)
    split, _ = evaluated_split(data)
    model = trained_network(run, data)
    found = [evaluate(model, split).mean_loss]
    for share in SHARES:
        with project(model, strongest(model, share)):
            found.append(evaluate(model, split).mean_loss)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default=METHODS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    options = RunOptions(runs=given.runs, data_dir=given.data_dir)
    print(f"{'':14}{'whole':>22}" + "".join(f"{share:>22.1%}" for share in SHARES))
    for method in given.methods.split(","):
        config = configured(method)
        runs = [train(replace(config, seed=seed), options) for seed in range(given.seeds)]
        columns = zip(*(losses(run, options) for run in runs), strict=True)
        cells = [f"{mean(c):.3f} ({min(c):.3f} to {max(c):.3f})" for c in columns]
        inside = "; ".join(in_gamma(run) for run in runs)
        print(f"{method:14}" + "".join(f"{cell:>22}" for cell in cells) + f"  {inside}", flush=True)


def in_gamma(run: RunDir) -> str:
    """The fraction of the neurons of each layer in Gamma."""
    last = run.records()[-1]
    return " ".join(
        f"{density:.2f}"
        for name, density in last.get("densities", {}).items()
        if name.endswith("fc.weight")
    )


if __name__ == "__main__":
    main()
