"""Initial weights: He et al. (2015), fan-out or fan-in, or PyTorch's own."""

from typing import Literal, get_args

from torch import nn

from dessilbi.lab.models.errors import ModelError

Scheme = Literal["he", "he-fan-in", "default"]

NORMALISATIONS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
)


def initialize(model: nn.Module, scheme: Scheme) -> nn.Module:
    """Draw the model's weights anew, in place, from torch's global generator.

    ``he`` and ``he-fan-in`` draw the weights of linear layers and convolutions from a normal law of
    variance ``2 / fan``, set their biases to zero, and return normalisation layers to scale 1,
    shift 0 and fresh statistics. Other layers stay as they are. ``default`` calls
    ``reset_parameters`` of every layer that has it.

    The paper says He and no more. Plain ``he`` is fan-out here, which keeps the variance of the
    gradient from layer to layer, because a first prototype trained LeNet-5 with it (``lr=0.1``,
    momentum 0.9, inputs in [0, 1]) on three seeds of three, where the others lost one in three.
    That is a small sample: under each of the three schemes some seeds of that net stay at chance,
    with plain SGD too, and a short warm-up of the learning rate is the usual cure. Fan-out also
    gives a classifier the variance ``2 / num_classes``, so wide nets start from a high loss.

    Args:
        model: The model to change.
        scheme: ``"he"`` (variance ``2 / fan_out``), ``"he-fan-in"`` or ``"default"``.

    Returns:
        The same model.

    Raises:
        ModelError: If the scheme is not one of the three.
    """
    if scheme not in get_args(Scheme):
        choices = ", ".join(get_args(Scheme))
        raise ModelError(f"init must be one of {choices}, got {scheme!r}")
    for module in model.modules():
        if scheme == "default" or isinstance(module, NORMALISATIONS):
            _reset(module)
        elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            mode: Literal["fan_out", "fan_in"] = "fan_out" if scheme == "he" else "fan_in"
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def _reset(module: nn.Module) -> None:
    """Let a layer draw its own parameters again, if it knows how."""
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
