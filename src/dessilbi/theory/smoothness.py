"""Which parts of a network have kinks: there the gradient jumps, and no Lipschitz constant fits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

# Operations whose derivative jumps, as autograd calls them (without 'Backward0'), in lower case.
# ELU, CELU, Huber and smooth L1 have a continuous derivative and are not among them.
_KINKED = re.compile(
    r"(leaky)?relu\w*|selu|prelu\w*|rrelu\w*|hardtanh|hardswish|hardsigmoid|hardshrink|softshrink"
    r"|threshold|abs|sgn|sign|round|floor|ceil|clamp\w*|maximum|minimum|max|min|amax|amin|aminmax"
    r"|\w*max_?pool\w*|median|kthvalue|topk|sort|l1loss|l1_loss|hingeembedding\w*|marginranking\w*"
    r"|multimargin\w*|multi_margin\w*"
)
# Modules that autograd records under another name.
_RECORDED_AS = {"relu6": "hardtanh", "elu": "selu"}
_MODULES: tuple[type[nn.Module], ...] = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.SELU, nn.Hardtanh, nn.Hardswish,
    nn.Hardsigmoid, nn.Hardshrink, nn.Softshrink, nn.Threshold,
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
    nn.FractionalMaxPool2d, nn.FractionalMaxPool3d, nn.L1Loss,
)  # fmt: skip


def nonsmooth_parts(model: nn.Module, loss: Tensor) -> tuple[str, ...]:
    """Modules with a kink by name, and kinked functions that the loss's graph shows besides.

    Seen are torch's own modules and the operations that autograd records; a kink inside a custom
    ``autograd.Function`` or compiled code is not.
    """
    modules = [
        f"{name or 'model'} ({type(module).__name__})"
        for name, module in model.named_modules()
        if isinstance(module, _MODULES) or (isinstance(module, nn.ELU) and module.alpha != 1)
    ]
    explained = {_stem(type(m).__name__) for m in model.modules() if isinstance(m, _MODULES)}
    explained |= {_RECORDED_AS[stem] for stem in explained if stem in _RECORDED_AS}
    functions = sorted(
        operation
        for operation in _operations(loss)
        if _KINKED.fullmatch(operation) and not _stem(operation).startswith(tuple(explained))
    )
    return (*modules, *functions)


def _operations(loss: Tensor) -> set[str]:
    """Names of all operations that the loss was computed with."""
    waiting: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    found = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        operation = re.sub(r"Backward\d*$", "", node.name()).lower()
        found.add("selu" if operation == "elu" and _has_kink(node) else operation)
        waiting += [following for following, _ in node.next_functions]
    return found


def _has_kink(elu: Any) -> bool:
    """SELU and ELU are recorded alike; only with slope 1 from the left the derivative is whole."""
    return float(elu._saved_alpha) * float(elu._saved_input_scale) != 1


def _stem(name: str) -> str:
    """MaxPool2d and maxpool2dwithindices alike become something with maxpool."""
    return re.sub(r"[123]d", "", name.lower().replace("_", ""))
