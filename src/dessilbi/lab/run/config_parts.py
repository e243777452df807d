"""The parts of a training run's configuration: data, network, optimizer, schedule, start, stop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

STRICT: dict[str, Any] = {"extra": "forbid"}  # unknown keys are refused
LATER = {"later": True}
"""Metadata of an option that came after runs had been made without it: where it is at its default
it does not count for a run's name, so that those runs are found again."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images, or which text."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str = "digits"
    """digits, mnist, fashion-mnist, cifar10, imagenet, tinyshakespeare, or a text file (my.txt)."""
    validation: int = 0
    """Training images held out; the run is then judged on them, not on the test set."""
    images: int | None = None
    """Training images used, of those not held out; by default all. Of a text, random windows that
    make an epoch; by default as many as the text has."""
    test_images: int | None = None
    """Test images judged on, picked at random once and for all runs; by default all."""
    normalize: bool | None = None
    """Subtract the mean and divide by the deviation; by default for colour images only."""
    augment: bool = True
    """Pad, crop and flip, for the sets where that is usual (cifar10, imagenet). Of a text, windows
    that begin anywhere."""
    shift: int | None = field(default=None, metadata=LATER)
    """Pixels that augmentation moves an image by at most; by default the set's (4 of cifar10)."""
    flip: Literal["random", "alternating"] = field(default="random", metadata=LATER)
    """How augmentation mirrors images: half of them at random, or each in every other epoch."""
    context: int = 64
    """Characters that a language model reads at once."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which network."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str = "digits-net"
    """A name (lenet-5, vgg-16, ...) or an import path (torchvision.models:resnet18)."""
    init: Literal["he", "he-fan-in", "default"] | None = None
    """Initial weights; by default He for named networks, and as it comes for an import path."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Which optimizer, and its numbers; those that an optimizer does not know must stay unset."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str = "dessilbi"
    """dessilbi, sgd, adam, adamw, amsgrad, adagrad, nadam, radam, rmsprop or muon; the paper's
    competitors add some."""
    base: str = "sgd"
    """What moves the weights by the loss beside the twin: sgd (DessiLBI), or any of the other names
    (SplitLBI around it)."""
    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    l1: float = 0.0
    """Weight of an l1 penalty on the loss (sgd-l1 only)."""
    kappa: float = 1.0
    tau: float | None = None
    """Coupling time: the sum of lr / nu over all steps of the run's schedule. 10 unless nu is
    given."""
    nu: float | None = None
    """How loosely Gamma is coupled to the weights, in place of tau."""
    c: float | None = None
    """Relative threshold: times the norm that a group begins with. 2 unless lambd is given."""
    lambd: float | None = None
    """Threshold that is the same for all groups, in place of c."""
    penalty: Literal["auto", "lasso", "group_lasso"] = "auto"
    """auto: filters by group, linear weights by element, of a network that knows its groups (the
    neurons of char-gpt) those alone; lasso: everything by element; group_lasso: filters and
    neurons, the classifier without a twin."""
    coupling: Literal["direct", "momentum"] = "direct"
    decoupled_weight_decay: bool = False
    exclude: tuple[str, ...] = ()
    """Patterns of parameters without a twin, the classifier for example."""
    classifier_lambd: float | None = None
    """Threshold of the last linear layer; by default that of the others."""
    size_scaled: bool = False
    """Thresholds lambd * sqrt(group size)."""
    tied: bool = False
    """Filters that must leave together enter together: those that write to one residual stream."""

    @property
    def label(self) -> str:
        """The name, and what it is wrapped around if that is not SGD."""
        wraps = self.name == "dessilbi" and self.base != "sgd"
        return f"{self.name} with base {self.base}" if wraps else self.name


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate changes."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    kind: Literal["constant", "step", "multistep", "cosine", "linear"] = "constant"
    """linear falls to zero: with a warm-up it is a one-cycle, with a cooldown a trapezoid."""
    step_size: int = 30
    """Epochs between drops (step)."""
    milestones: tuple[int, ...] = ()
    """Epochs of the drops (multistep)."""
    gamma: float = 0.1
    """Factor of a drop."""
    warmup: float = 0.0
    """Epochs over which the rate climbs linearly to its value, a little each step."""
    cooldown: float | None = field(default=None, metadata=LATER)
    """Last epochs, over which it falls (linear); by default all after the warm-up."""


@dataclass(frozen=True, kw_only=True)
class StartConfig:
    """What a retrained subnetwork starts from; `dessilbi subnet` fills this in."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    parent: str
    """The run that the subnetwork was found in."""
    mask: str
    """How the mask was chosen there."""
    weights: str
    """Which weights of the parent: init, epoch K or last."""
    epoch: int = 0
    """Epochs of the schedule that count as done: rewinding to an epoch goes on from there."""
    digest: str = ""
    """Fingerprint of mask and weights, which lie in the run directory."""


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    """When to stop before the last epoch."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    when_stable: bool = False
    """As soon as the support of Gamma has settled; --stop-when-stable is the same."""
    window: int = 5
    """Epochs that the support is compared with."""
    tolerance: float = 0.1
    """Largest distance to each of them."""
    distance: Literal["jaccard", "hamming"] = "jaccard"
