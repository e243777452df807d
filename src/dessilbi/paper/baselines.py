"""The pruning methods that the paper compares with, each as a method of its own.

Network Slimming and Soft Filter Pruning are methods of training, which configurations can name when
this is imported. The others are retrained networks: functions that make the configuration of a run
from those of finished ones. Gradual pruning (Iterative-Pruning-B) is the laboratory's own.

Liu, Li, Shen, Huang, Yan, Zhang: Learning Efficient Convolutional Networks through Network
Slimming. ICCV 2017.
He, Kang, Dong, Fu, Yang: Soft Filter Pruning for Accelerating Deep Convolutional Neural Networks.
IJCAI 2018.
Frankle, Carbin: The Lottery Ticket Hypothesis. ICLR 2019.
Liu, Sun, Zhou, Huang, Darrell: Rethinking the Value of Network Pruning. ICLR 2019.
Han, Pool, Tran, Dally: Learning both Weights and Connections for Efficient Neural Networks.
NeurIPS 2015.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import prune

from dessilbi.graph.names import named_weights
from dessilbi.lab.analysis.choice import Retrain
from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.analysis.subnetworks import open_path, retrain
from dessilbi.lab.run.config import OptimizerConfig
from dessilbi.lab.run.files import MASK
from dessilbi.lab.run.methods import NetworkSlimming, SoftFilters
from dessilbi.lab.training.build import network_without_data
from dessilbi.lab.training.callbacks import Callback, register_method
from dessilbi.paper.optimizers import add_l1
from dessilbi.path import Mask
from dessilbi.path.names import weights_with_twin
from dessilbi.subnet.project import masked_weights, zero_outside

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.training.state import Training

SGD = OptimizerConfig(name="sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
SCRATCH, FINETUNE = Retrain("scratch"), Retrain("finetune")
FRESH_SEED = 10_000
"""Added to a run's seed for new weights, so that they are no seed of the table."""

# ---------------------------------------------------------------------- Network Slimming


class SlimmingCallback(Callback):
    """An l1 penalty on the scales of all BatchNorm layers."""

    def __init__(self, t: Training) -> None:
        assert isinstance(t.config.method, NetworkSlimming)
        norms = [m for m in t.model.modules() if isinstance(m, _BatchNorm) and m.affine]
        if not norms:
            raise ValueError("Network Slimming needs BatchNorm layers with scales; there are none")
        add_l1(t.optimizer, [m.weight for m in norms], t.config.method.strength)


def normalised_convolutions(model: nn.Module) -> list[tuple[str, str]]:
    """Names of the convolutions that a BatchNorm layer follows, each with its BatchNorm.

    They are found by the order in which modules are registered, which is that of the data in all
    networks here.
    """
    leaves = [(name, m) for name, m in model.named_modules() if not list(m.children())]
    return [
        (conv, norm)
        for (conv, before), (norm, m) in pairwise(leaves)
        if isinstance(m, _BatchNorm)
        and isinstance(before, _ConvNd)
        and before.out_channels == m.num_features
    ]


@torch.no_grad()
def slimmed_mask(model: nn.Module, density: float) -> Mask:
    """What is left when the channels with the smallest scales, over all layers, are taken out.

    Filter, scale and shift of a channel go together, so that it is exactly zero. Each layer keeps
    its strongest channel.

    Args:
        model: a network trained with Network Slimming.
        density: fraction of the weights to keep at most, of those that may have a twin.
    """
    pairs = normalised_convolutions(model)
    if not pairs:
        raise ValueError("Network Slimming needs convolutions with BatchNorm; there are none")
    params = dict(model.named_parameters())
    gammas, sizes = [], []
    for conv, norm in pairs:
        gamma, weight = params[f"{norm}.weight"].abs().cpu(), params[f"{conv}.weight"]
        size = torch.full_like(gamma, weight[0].numel(), dtype=torch.float64)
        size[gamma.argmax()] = 0  # the strongest stays: nothing is gained by it
        gammas.append(gamma)
        sizes.append(size)
    order = torch.argsort(torch.cat(gammas), stable=True)
    size = torch.cat(sizes)[order]
    total = sum(w.numel() for w in weights_with_twin(model).values())
    gone = torch.zeros(len(order), dtype=torch.bool)
    gone[order] = (size.cumsum(0) - size < total - density * total) & (size > 0)

    tensors = {}
    for (conv, norm), kept in zip(pairs, torch.split(~gone, list(map(len, gammas))), strict=True):
        tensors[f"{conv}.weight"] = _filters(kept, params[f"{conv}.weight"])
        tensors[f"{norm}.weight"] = tensors[f"{norm}.bias"] = kept
    return Mask(tensors)


def _filters(values: Tensor, weight: Tensor) -> Tensor:
    """A value of each filter for all of its weights."""
    return values.reshape(-1, *[1] * (weight.ndim - 1)).expand(weight.shape)


def slimmed(run: RunDir, *, density: float, epochs: int) -> Config:
    """The channels that Network Slimming leaves, fine-tuned."""
    mask, words = slimmed_mask(trained_network(run), density), f"density {density:g}"
    return retrain(run, mask, words, FINETUNE, run.path.parent, name="slimmed", epochs=epochs)


# ---------------------------------------------------------------------- Soft Filter Pruning


class SoftFiltersCallback(Callback):
    """The weakest filters are zeroed after every epoch.

    They are trained on like the others: a filter that grows back above another takes its place. The
    network after the last epoch is the pruned one.
    """

    def __init__(self, t: Training) -> None:
        assert isinstance(t.config.method, SoftFilters)
        self._rate = t.config.method.rate
        weak_filters_out(t.model, self._rate)  # refuses what cannot be done

    def on_epoch_trained(self, t: Training) -> None:
        """Zero the weakest filters, for now."""
        zero_outside(masked_weights(t.model, weak_filters_out(t.model, self._rate)))


@torch.no_grad()
def weak_filters_out(model: nn.Module, rate: float) -> Mask:
    """The filters that stay when each convolution loses a fraction, those of smallest l2 norm.

    It never loses its last one.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"rate must be in [0, 1), got {rate!r}")
    kept = {}
    for name, module in model.named_modules():
        if isinstance(module, _ConvNd):
            count = min(round(rate * module.out_channels), module.out_channels - 1)
            ones = torch.ones_like(module.weight)
            rule: Any = prune.LnStructured(count, n=2, dim=0)  # torch leaves it untyped
            found = rule.compute_mask(module.weight, ones) if count else ones
            kept[f"{name}.weight".lstrip(".")] = found.bool()
    if not kept:
        raise ValueError("Soft Filter Pruning needs convolutions; there are none")
    return Mask(kept)


def rate_for(model: nn.Module, density: float) -> float:
    """The rate that leaves a fraction of all weights that may have a twin.

    Only filters are pruned: a density below what the linear layers hold cannot be reached.
    """
    total = sum(w.numel() for w in weights_with_twin(model).values())
    filters = sum(m.weight.numel() for m in model.modules() if isinstance(m, _ConvNd))
    return min(max((1 - density) * total / max(filters, 1), 0.0), 0.999)


def scratch(dense: RunDir, *, rate: float, kind: Literal["e", "b"]) -> Config:
    """Scratch-E and Scratch-B: the structure of Soft Filter Pruning, trained from new weights.

    Args:
        dense: the run whose training it repeats.
        rate: of filters that are gone.
        kind: ``e``, as many epochs as the dense network; ``b``, as many multiply-adds, and at most
            twice the epochs, with the schedule stretched.
    """
    config = dense.config()
    mask = weak_filters_out(network_without_data(config), rate)
    words, how = "structure of the mask", Retrain("scratch-b") if kind == "b" else SCRATCH
    name, seed = f"scratch-{kind}", config.seed + FRESH_SEED
    return retrain(dense, mask, words, how, dense.path.parent, name=name, fresh_seed=seed)


register_method(NetworkSlimming, SlimmingCallback)
register_method(SoftFilters, SoftFiltersCallback)

# ---------------------------------------------------------------------- tickets


@torch.no_grad()
def largest_as(model: nn.Module, ticket: Mask) -> Mask:
    """Of each layer the largest weights, as many as a ticket keeps there.

    Where the ticket keeps or drops whole filters, whole filters are chosen, by their norm.
    """
    ticket.check(model)
    weights, found = named_weights(model), {}
    for name, kept in ticket.items():
        sizes = weights[name].abs()
        if whole_filters(kept):
            sizes = _filters(sizes.flatten(1).norm(dim=1), sizes)
        ranked = torch.argsort(sizes.flatten().cpu(), descending=True, stable=True)
        largest = torch.zeros(kept.numel(), dtype=torch.bool)
        largest[ranked[: int(kept.sum())]] = True
        found[name] = largest.reshape(kept.shape)
    return Mask(found)


def random_as(ticket: Mask, seed: int) -> Mask:
    """Drawn at random with the layer densities of a ticket, by filter where the ticket is."""
    return Mask.random(
        ticket,
        layer_densities=ticket.layer_densities(),
        group_dims={name: 0 for name in ticket.names if whole_filters(ticket[name])},
        generator=torch.Generator().manual_seed(seed),
    )


def whole_filters(kept: Tensor) -> bool:
    """Whether a convolution's mask keeps or drops every filter as a whole."""
    if kept.ndim < 3:
        return False
    rows = kept.flatten(1)
    return bool((rows.all(1) == rows.any(1)).all())


def from_scratch(run: RunDir, mask: Mask, name: str, words: str) -> Config:
    """A mask trained by SGD from the initialisation of the run it was found in."""
    return retrain(run, mask, words, SCRATCH, run.path.parent, name=name, optimizer=SGD)


def ticket(parent: RunDir, *, epoch: int) -> Config:
    """The support of Gamma after an epoch."""
    mask = open_path(parent).mask(epoch=epoch)
    return from_scratch(parent, mask, "ticket", f"epoch {epoch}")


def sgd_lottery(parent: RunDir, dense: RunDir, *, epoch: int) -> Config:
    """The largest weights of SGD's network at the layer densities of that ticket."""
    mask = largest_as(trained_network(dense), open_path(parent).mask(epoch=epoch))
    return from_scratch(dense, mask, "sgd-lottery", f"epoch {epoch}")


def random_ticket(parent: RunDir, dense: RunDir, *, epoch: int) -> Config:
    """Weights drawn at random at the layer densities of that ticket."""
    seed = 1000 * parent.config().seed + epoch
    mask = random_as(open_path(parent).mask(epoch=epoch), seed)
    return from_scratch(dense, mask, "random", f"epoch {epoch}")


def rethinking(dense: RunDir, *, density: float) -> Config:
    """Rethinking-Lottery: the largest weights of a trained network, over all layers."""
    mask = Mask.magnitude(trained_network(dense), density)
    return from_scratch(dense, mask, "rethinking", f"density {density:g}")


def han_round(parent: RunDir, *, density: float, epochs: int) -> Config:
    """Iterative-Pruning-A: the smallest weights of the round before go, the others train on."""
    mask = Mask.magnitude(trained_network(parent), density)
    if (parent.path / MASK).is_file():
        mask = mask & Mask.load(parent.path / MASK)  # what is gone is zero, and never comes back
    words, runs = f"largest weights, density {density:.4g}", parent.path.parent
    return retrain(parent, mask, words, FINETUNE, runs, name="han", epochs=epochs)
