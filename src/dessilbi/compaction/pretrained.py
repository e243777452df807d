"""A compact Hugging Face model as files that ``from_pretrained`` reads with no code of ours."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from dessilbi.graph.compare import TOLERANCES, difference, random_like
from dessilbi.graph.errors import CompactError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import nn

    from dessilbi.graph.example import Example
    from dessilbi.graph.plan import Plan

_NEURONS = ("intermediate_size", "ffn_dim", "n_inner", "hidden_dim", "d_ff", "encoder_ffn_dim",
            "decoder_ffn_dim")  # fmt: skip
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
          "decoder_attention_heads")  # fmt: skip
_WIDTHS = ("hidden_size", "n_embd", "dim", "d_model")
_KEPT_TOGETHER = "use save() and load_compact(), which take any sizes"


def save_pretrained(small: nn.Module, plan: Plan, example: Example, folder: str | Path) -> None:
    """Write a smaller config and its weights.

    Args:
        small: the compact model, of the class that it had.
        plan: how it was cut.
        example: what it is compared on.
        folder: made if needed.

    Raises:
        CompactError: a config cannot say these sizes, and why.
    """
    model: Any = small
    if plan.form != "modules" or not hasattr(small, "save_pretrained"):
        raise CompactError(
            f"save_pretrained needs a Hugging Face model of its own class, got "
            f"{type(small).__name__} as {plan.form}; {_KEPT_TOGETHER}"
        )
    if plan.biases:
        raise CompactError(
            f"the layer of {plan.biases[0]!r} needs a bias for the constants of what left, and "
            f"its class has none; mask the biases along with the rows, or {_KEPT_TOGETHER}"
        )
    config = smaller_config(model.config, plan)
    try:
        made = type(model)(config).to(model.dtype).eval()
        made.load_state_dict(small.state_dict(), strict=True)
    except (RuntimeError, ValueError) as error:
        raise CompactError(
            f"the config of {type(model).__name__} cannot say the sizes that are left "
            f"({' '.join(str(error).split())[:300]}). Classes whose config has no head_dim cannot "
            f"lose heads, only neurons; {_KEPT_TOGETHER}"
        ) from error
    mode = small.training
    drawn = random_like(example, example.examples)
    found = difference(made, small.eval(), [drawn], "random")
    small.train(mode)
    if found.relative > TOLERANCES[model.dtype]:
        raise CompactError(
            f"{type(model).__name__} made from the smaller config is another function (outputs "
            f"differ by {found}): its config must name other numbers too; {_KEPT_TOGETHER}"
        )
    made.save_pretrained(folder)


def smaller_config(config: Any, plan: Plan) -> Any:
    """A copy of a config with the sizes that are left."""
    new = deepcopy(config)
    width = next((getattr(config, n) for n in _WIDTHS if getattr(config, n, None)), 0)
    cut = _sizes(plan)
    for name in _NEURONS:
        old = getattr(config, name, None)
        if name == "n_inner" and hasattr(config, name):
            old = old or 4 * width
        if isinstance(old, int) and old in cut:
            setattr(new, name, _one(cut[old], old, "neurons"))
    for name in _HEADS:
        heads = getattr(config, name, None)
        if not isinstance(heads, int) or not width:
            continue
        each = getattr(config, "head_dim", None) or getattr(config, "d_kv", None) or width // heads
        names = {name: heads}
        if isinstance(kv := getattr(config, "num_key_value_heads", None), int):
            names["num_key_value_heads"] = kv
        for own, count in names.items():
            if count * each in cut:
                setattr(new, own, _one(cut[count * each], count * each, "heads") // each)
                if not hasattr(config, "d_kv"):
                    new.head_dim = each
    return new


def _sizes(plan: Plan) -> dict[int, set[int]]:
    """By the size that a dimension had, those that are left of it."""
    found: dict[int, set[int]] = {}
    for cut in plan.tensors.values():
        for dim, stays in cut.stays.items():
            found.setdefault(cut.shape[dim], set()).add(len(stays))
    return found


def _one(sizes: Iterable[int], old: int, what: str) -> int:
    left = sorted(sizes)
    if len(left) > 1:
        raise CompactError(
            f"layers keep different numbers of {what} ({left[0]} to {left[-1]} of {old}), and a "
            "config knows one for all: take a mask whose budget holds in each layer "
            f"(``mask(per_layer=0.5)``), or {_KEPT_TOGETHER}"
        )
    return left[0]
