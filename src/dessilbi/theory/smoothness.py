"""Which functions of a loss have kinks: gradients jump there, and no Lipschitz constant fits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

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


def nonsmooth_parts(loss: Tensor) -> tuple[str, ...]:
    """The kinked operations that a loss was computed with, as autograd names them.

    A kink inside a custom ``autograd.Function`` or compiled code is not seen.
    """
    waiting: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    found = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        operation = re.sub(r"Backward\d*$", "", node.name()).lower()
        if operation == "elu" and node._saved_alpha * node._saved_input_scale != 1:
            operation = "selu"  # recorded alike; with slope 1 from the left the derivative is whole
        if _KINKED.fullmatch(operation):
            found.add(operation.removesuffix("withindices"))
        waiting += [following for following, _ in node.next_functions]
    return tuple(sorted(found))
