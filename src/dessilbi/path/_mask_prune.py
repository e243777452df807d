"""To and from torch.nn.utils.prune, which keeps ``weight_orig`` and ``weight_mask`` in modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.utils import prune

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn


def read(model: nn.Module) -> dict[str, Tensor]:
    """The masks that a model's modules hold, by the name the parameter had before."""
    found, seen = {}, set()
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            plain = name.removesuffix("_mask")
            original = module._parameters.get(f"{plain}_orig")
            if name == plain or original is None or id(original) in seen:
                continue
            seen.add(id(original))  # a tied weight is one parameter, under its first name
            found[f"{path}.{plain}" if path else plain] = buffer != 0
    return found


def apply(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Prune every module that holds a masked parameter, tied ones alike."""
    owners = [(name, list(_owners(model, name))) for name in masks]
    for name, holders in owners:
        for module, attribute in holders:
            device = getattr(module, attribute).device
            prune.custom_from_mask(  # type: ignore[no-untyped-call]
                module, attribute, masks[name].to(device)
            )


def _owners(model: nn.Module, name: str) -> Iterator[tuple[nn.Module, str]]:
    path, _, attribute = name.rpartition(".")
    holder = model.get_submodule(path)
    wanted = holder._parameters.get(attribute)
    if wanted is None:
        wanted = holder._parameters[f"{attribute}_orig"]
    for module in model.modules():
        for key, p in module._parameters.items():
            if p is wanted:
                plain = key.removesuffix("_orig")
                yield module, plain if f"{plain}_mask" in module._buffers else key
