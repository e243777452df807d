"""Initial weights: He et al. (2015), fan-out or fan-in, or PyTorch's own."""

from typing import Literal, get_args

from torch import nn

from dessilbi.lab.models.task import ModelError

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

    The paper says He and no more. Plain ``he`` is what its experiments' networks usually take:
    fan-out for convolutions, which keeps the variance of the gradient from layer to layer, and
    fan-in for linear layers, where fan-out would give a classifier the variance ``2 /
    num_classes`` and so a first loss far above chance. Under every scheme some seeds of LeNet-5
    stay at chance at ``lr=0.1`` with momentum 0.9, with plain SGD too; a short warm-up of the
    learning rate is the cure.

    Args:
        model: The model to change.
        scheme: ``"he"`` (fan-out for convolutions, fan-in for linear layers), ``"he-fan-in"`` or
            ``"default"``.

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
            getattr(module, "reset_parameters", lambda: None)()  # if it knows how
        elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            fan_out = scheme == "he" and not isinstance(module, nn.Linear)
            mode: Literal["fan_out", "fan_in"] = "fan_out" if fan_out else "fan_in"
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
