"""Patterns over the names of parameters, and the options that they give."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from dessilbi._text import did_you_mean

from ._options import OPTIONS

if TYPE_CHECKING:
    from torch import nn

_WILDCARDS = frozenset("*?[")
_WRAPPERS = frozenset(
    ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
)


@dataclass
class Rule:
    """A pattern and the options it gives."""

    pattern: str
    options: dict[str, Any]
    used: bool = field(default=False)

    def check(self) -> None:
        """Raise unless all options are known."""
        for option in self.options:
            if option not in (*OPTIONS, "c"):
                hint = did_you_mean(option, (*OPTIONS, "c"))
                raise ValueError(f"pattern {self.pattern!r} sets unknown option {option!r}{hint}")

    def matches(self, name: str) -> bool:
        """Whether a parameter is named, or lies in a module that is."""
        parts = name.split(".")
        ancestors = (".".join(parts[:i]) for i in range(len(parts), 0, -1))
        return any(fnmatchcase(path, self.pattern) for path in ancestors)

    def names_exactly(self, name: str) -> bool:
        """Whether the pattern is this name."""
        return name == self.pattern and not _WILDCARDS & set(self.pattern)

    def check_used(self, names: list[str], rules: list[Rule]) -> None:
        """Raise if the pattern decided nothing."""
        if self.used:
            return
        hidden = [name for name in names if self.matches(name)]
        if hidden:
            winner = next(r.pattern for r in rules if r.matches(hidden[0]))
            raise ValueError(
                f"pattern {self.pattern!r} decides nothing: {winner!r} comes first and takes "
                f"{hidden[0]!r}; put the narrower pattern first"
            )
        known = {".".join(n.split(".")[:i]) for n in names for i in range(1, n.count(".") + 2)}
        hint = did_you_mean(self.pattern, sorted(known))
        raise ValueError(f"pattern {self.pattern!r} matched no parameter{hint}")


def names_of(model: nn.Module) -> dict[int, list[str]]:
    """The names of each parameter, by id: more than one where weights are tied."""
    names: dict[int, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        known = names.setdefault(id(p), [])
        known.extend(n for n in (name, _unwrapped(model, name)) if n not in known)
    return names


def _unwrapped(model: nn.Module, name: str) -> str:
    """A parameter's name without what wrappers put before it: DDP, torch.compile, FSDP."""
    name = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
    while len(children := list(model.named_children())) == 1 and not model._parameters:
        (own, model), (first, _, rest) = children[0], name.partition(".")
        if first == own and rest:
            name = rest
    return name
