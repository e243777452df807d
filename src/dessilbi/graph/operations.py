"""What is known of operations: which work value by value, which channel by channel.

Everything that is not known here is kept whole; nothing is guessed.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import fx, nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def operation(node: fx.Node) -> Any:
    """The function that a node calls; of a method the name with a dot before it."""
    if node.op == "call_method":
        return f".{node.target}"
    return node.target if node.op == "call_function" else None


# ---------------------------------------------------------------------- value by value

_POINTWISE_NAMES = (
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "sigmoid",
    "tanh", "hardswish", "hardsigmoid", "hardtanh", "softplus", "softsign", "logsigmoid",
    "hardshrink", "softshrink", "threshold", "relu_", "leaky_relu_", "elu_", "selu_", "celu_",
    "hardtanh_", "threshold_", "sigmoid_", "tanh_", "abs", "neg", "square", "sqrt", "exp",
    "clamp", "clamp_", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
    "feature_alpha_dropout",
)  # fmt: skip
POINTWISE: frozenset[Any] = frozenset(
    getattr(home, name) for home in (F, torch) for name in _POINTWISE_NAMES if hasattr(home, name)
) | {operator.neg, *(f".{name}" for name in _POINTWISE_NAMES), ".contiguous", ".clone", ".detach"}
DROPOUTS: frozenset[Any] = frozenset(
    f for f in POINTWISE if "dropout" in getattr(f, "__name__", "")
)
_UNCHANGING: frozenset[Any] = DROPOUTS | {".contiguous", ".clone", ".detach"}
_UNCHANGING_MODULES = (
    nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)  # fmt: skip
POINTWISE_MODULES = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Sigmoid, nn.Tanh, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Softplus, nn.Softsign,
    nn.LogSigmoid, nn.Hardshrink, nn.Softshrink, nn.Threshold, nn.Tanhshrink, *_UNCHANGING_MODULES,
)  # fmt: skip

BINARY: dict[Any, Callable[[Any, Any], Any]] = {
    operator.add: operator.add, operator.iadd: operator.add, torch.add: operator.add,
    ".add": operator.add, ".add_": operator.add,
    operator.sub: operator.sub, operator.isub: operator.sub, torch.sub: operator.sub,
    ".sub": operator.sub, ".sub_": operator.sub,
    operator.mul: operator.mul, operator.imul: operator.mul, torch.mul: operator.mul,
    ".mul": operator.mul, ".mul_": operator.mul,
    operator.truediv: operator.truediv, operator.itruediv: operator.truediv,
    torch.div: operator.truediv, ".div": operator.truediv,
}  # fmt: skip
"""What may stand between two tensors, or a tensor and a number, by what it does."""


def is_random(node: fx.Node) -> bool:
    """A dropout that is on in evaluation, as ``F.dropout(x)`` is when nobody says training."""
    if operation(node) not in DROPOUTS:
        return False
    name = "train" if node.target is torch.dropout else "training"
    return bool(argument(node, None, 2, name, node.target is not torch.dropout))


# ---------------------------------------------------------------------- channel by channel

_SPREADING_MODULES = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
    nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d,
    nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d,
    nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d,
    nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d,
)  # fmt: skip
_SPREADING_FUNCTIONS: frozenset[Any] = frozenset(
    [
        *(getattr(F, f"max_pool{d}d") for d in (1, 2, 3)),
        *(getattr(F, f"adaptive_{kind}_pool{d}d") for d in (1, 2, 3) for kind in ("avg", "max")),
        F.interpolate,
    ]
)
_AVERAGE_MODULES = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_AVERAGE_FUNCTIONS: frozenset[Any] = frozenset([F.avg_pool1d, F.avg_pool2d, F.avg_pool3d])
_ZERO_PADDINGS = (
    nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d,
    nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d,
)  # fmt: skip


def spatial(node: fx.Node, module: nn.Module | None) -> float | None:
    """Whether a node works on the positions of each channel alone (pooling, padding, resizing).

    Returns:
        ``None`` if it does not; else the value that it mixes in at the borders: a channel that is
        constant, and equal to that, stays constant. NaN: any constant stays.
    """
    always = float("nan")
    if isinstance(module, _SPREADING_MODULES) or operation(node) in _SPREADING_FUNCTIONS:
        positions = argument(node, module, 6, "return_indices", False)
        return None if positions else always
    if isinstance(module, _AVERAGE_MODULES) or operation(node) in _AVERAGE_FUNCTIONS:
        if argument(node, module, 6, "divisor_override", None) is not None:
            return 0.0
        padded = _any(argument(node, module, 3, "padding", 0))
        return 0.0 if padded and argument(node, module, 5, "count_include_pad", True) else always
    if isinstance(module, _ZERO_PADDINGS):
        return float(module.value)
    return None


def argument(
    node: fx.Node, module: nn.Module | None, position: int, name: str, default: Any
) -> Any:
    """An option of a layer, or the argument of a function."""
    if module is not None:
        return getattr(module, name, default)
    if name in node.kwargs:
        return node.kwargs[name]
    return node.args[position] if position < len(node.args) else default


def pads_with_zeros(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> bool:
    """Whether a convolution sees zeros beyond the border; other paddings repeat what is there."""
    padding = module.padding
    if padding == "valid" or module.padding_mode != "zeros":
        return False
    if padding == "same":
        return _any([k - 1 for k in module.kernel_size])
    return _any(padding)


def _any(sizes: Any) -> bool:
    return any(sizes) if isinstance(sizes, list | tuple) else bool(sizes)


# ---------------------------------------------------------------------- shapes


def is_flatten(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether a node may join dimensions; its shapes say whether it does."""
    return isinstance(module, nn.Flatten) or operation(node) in (
        torch.flatten, torch.reshape, ".flatten", ".view", ".reshape"
    )  # fmt: skip


def joins_by_dimension(node: fx.Node, module: nn.Module | None) -> bool:
    """A flatten proper, which names dimensions and not sizes."""
    return isinstance(module, nn.Flatten) or operation(node) in (torch.flatten, ".flatten")


_REDUCTIONS = (torch.mean, ".mean", torch.amax, ".amax")
_UNSQUEEZES = (torch.unsqueeze, ".unsqueeze")
_SQUEEZES = (torch.squeeze, ".squeeze", *_UNSQUEEZES)


def acts_beyond(node: fx.Node, dim: int, ndim: int) -> bool:
    """Whether a node reduces, squeezes or slices only dimensions behind ``dim``, of ``ndim``."""
    what = operation(node)
    if what is operator.getitem:
        index = node.args[1]
        return (
            isinstance(index, tuple)
            and all(isinstance(part, slice) for part in index)
            and all(part == slice(None) for part in index[: dim + 1])
        )
    if what not in _REDUCTIONS + _SQUEEZES:
        return False
    dims = argument(node, None, 1, "dim", None)
    if isinstance(dims, int):
        dims = [dims]
    elif what in _SQUEEZES:
        return False
    if not isinstance(dims, list | tuple) or not all(isinstance(d, int) for d in dims):
        return False
    return all(d % (ndim + (what in _UNSQUEEZES)) > dim for d in dims)


def reads_sizes(node: fx.Node) -> bool:
    """Whether a node asks a tensor for its shape."""
    if operation(node) is getattr:
        return node.args[1] in ("shape", "ndim", "dtype", "device")
    return operation(node) in (".size", ".dim")


def reads_size_of(node: fx.Node, dim: int) -> bool:
    """Whether what a node asks of a shape can depend on the size of one dimension."""
    what = operation(node)
    if what == ".dim" or (what is getattr and node.args[1] != "shape"):
        return False
    if what == ".size":
        asked = argument(node, None, 1, "dim", None)
        if asked is not None:
            return not isinstance(asked, int) or asked == dim or asked < 0
    for user in node.users:
        index = user.args[1] if user.target is operator.getitem else None
        if not isinstance(index, int) or ((index == dim or index < 0) and user.users):
            return True
    return False


# ---------------------------------------------------------------------- doing


def with_value(node: fx.Node, module: nn.Module | None, source: fx.Node, value: Tensor) -> Tensor:
    """What a node makes of a vector of constants in place of one of its inputs."""
    if isinstance(module, _UNCHANGING_MODULES) or operation(node) in _UNCHANGING:
        return value  # not run: some insist on a feature map, and a vector is none
    args = fx.map_arg(node.args, lambda n: value.clone() if n is source else n)
    kwargs = fx.map_arg(node.kwargs, lambda n: value.clone() if n is source else n)
    result: Tensor
    if module is not None:
        result = module(*args, **kwargs)
    elif node.op == "call_method":
        owner, *rest = args
        result = getattr(owner, str(node.target))(*rest, **kwargs)
    else:
        assert callable(node.target)
        result = node.target(*args, **kwargs)
    return result
