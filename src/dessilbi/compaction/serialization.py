"""A compact model on disk: weights as safetensors, and a JSON plan that rebuilds the network.

    plan.json           format, version, the original's constructor, what was cut, the report
    model.safetensors   the weights; plan.json holds their checksum

No pickle: the plan names a function that builds the original network, which is cut anew.
"""

from __future__ import annotations

import importlib
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from dessilbi._disk import write_whole
from dessilbi.graph.errors import CompactError
from dessilbi.graph.example import Example
from dessilbi.graph.plan import FORMAT, VERSION, Plan
from dessilbi.graph.reading import read
from dessilbi.path import FormatError

from .cutting import fingerprint
from .graph_form import build_graph
from .modules_form import apply_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from ._compact import Compact

PLAN, WEIGHTS = "plan.json", "model.safetensors"


def save_compact(
    small: Compact, folder: str | Path, constructor: str, arguments: Mapping[str, Any] | None = None
) -> int:
    """Write a compact model into a folder; returns the bytes of both files.

    Args:
        small: what :func:`compact` gave; its model may have been trained since.
        folder: made if needed.
        constructor: what builds the original network, as ``"package.module:function"``.
        arguments: keyword arguments for it, as plain values.

    Raises:
        CompactError: the constructor does not build the network that was compacted.
    """
    built = {"target": constructor, "arguments": dict(arguments or {})}
    tensors = {
        n: t.detach().cpu().contiguous().clone() for n, t in small.model.state_dict().items()
    }
    again = _rebuilt(small.plan, _construct(built))  # raises if it is another network
    if again.state_dict().keys() != tensors.keys():
        raise CompactError("the compact model has other tensors than its plan: was it changed?")
    weights = save(tensors)
    values = {
        "format": FORMAT,
        "version": VERSION,
        "constructor": built,
        "channels_last": small.report.channels_last,
        "weights": {"file": WEIGHTS, "crc32": zlib.crc32(weights)},
        "frozen": sorted(n for n, p in small.model.named_parameters() if not p.requires_grad),
        "plan": small.plan.to_json(),
        "report": small.report.to_json(),
    }
    try:
        plan = (json.dumps(values, indent=1) + "\n").encode()
    except TypeError as error:
        raise CompactError(
            f"arguments of the constructor must be plain values (numbers, text, lists): {error}"
        ) from error
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / WEIGHTS, weights)
    write_whole(folder / PLAN, plan)
    return len(weights) + len(plan)


def load_compact(
    folder: str | Path, constructor: Callable[[], nn.Module] | None = None
) -> nn.Module:
    """Read a compact model, in evaluation mode.

    The plan names a function to import and call: load only what you trust, as with any code.

    Args:
        folder: where :func:`save_compact` wrote it.
        constructor: builds the original network, instead of what the plan names.

    Raises:
        FormatError: a file is damaged, foreign or of a newer version.
        CompactError: the original network cannot be built, or is another one now.
    """
    folder = Path(folder)
    values = _read_plan(folder / PLAN)
    try:
        plan = Plan.from_json(values["plan"])
        checksum, file = int(values["weights"]["crc32"]), str(values["weights"]["file"])
        frozen, channels_last = set(values["frozen"]), bool(values["channels_last"])
        built = {"target": str(values["constructor"]["target"]), **values["constructor"]}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{folder / PLAN} is damaged: {error!r}") from error
    tensors = _read_weights(folder / Path(file).name, checksum)
    model = _rebuilt(plan, _construct(built) if constructor is None else constructor())
    _put(model, tensors)
    for name, p in model.named_parameters():
        p.requires_grad_(name not in frozen)
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model.eval()


def _rebuilt(plan: Plan, original: nn.Module) -> nn.Module:
    if fingerprint(original) != plan.network:
        raise CompactError(
            "the plan was made for another network: its class, names or shapes are different ones; "
            "build the original with the code and arguments that it had"
        )
    original.eval()
    if plan.form == "modules":
        return apply_plan(plan, original)
    example = _example(plan)
    floating = next((p.dtype for p in original.parameters() if p.is_floating_point()), None)
    if floating is not None:
        example = example.map(lambda t: t.to(floating) if t.is_floating_point() else t)
    network = read(original, example, any_batch=True)
    return build_graph(plan, network, original)


def _example(plan: Plan) -> Example:
    def one(value: Any) -> Any:
        if isinstance(value, dict) and "shape" in value:
            return torch.zeros(value["shape"], dtype=getattr(torch, value["dtype"]))
        return value

    args, kwargs = plan.example
    return Example(tuple(map(one, args)), {k: one(v) for k, v in kwargs.items()})


def _is_plain(name: str) -> bool:
    """Whether a tensor's shape is known from the plan; constants take theirs from the file."""
    own = name.rpartition(".")[2]
    return own != "shift" and not own.startswith("constant_")


@torch.no_grad()
def _put(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    expected = model.state_dict()
    if expected.keys() != tensors.keys():
        odd = sorted(expected.keys() ^ tensors.keys())
        raise CompactError(f"plan and weights do not belong together: {', '.join(odd[:3])}")
    made: dict[nn.Parameter, nn.Parameter] = {}  # one for each old one: what is tied stays tied
    for name, tensor in tensors.items():
        parent, _, own = name.rpartition(".")
        owner = model.get_submodule(parent)
        if _is_plain(name) and expected[name].shape != tensor.shape:
            raise CompactError(
                f"{name} has shape {tuple(tensor.shape)}, but the plan gives it "
                f"{tuple(expected[name].shape)}: plan and weights do not belong together"
            )
        old = owner._parameters.get(own)
        new = tensor if old is None else made.setdefault(old, nn.Parameter(tensor))
        setattr(owner, own, new)


def _construct(built: dict[str, Any]) -> nn.Module:
    """Import and call ``module:function``."""
    target = built["target"]
    module_name, _, qualname = target.partition(":")
    if not qualname or not all(part.isidentifier() for part in module_name.split(".")):
        raise CompactError(f"constructor must read package.module:function, got {target!r}")
    try:
        found: Any = importlib.import_module(module_name)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise CompactError(
            f"cannot import the constructor {target!r} ({error}); install or run from where it is, "
            "or pass load_compact a constructor"
        ) from error
    try:
        model = found(**built.get("arguments", {}))
    except TypeError as error:
        raise CompactError(f"cannot call {target} with the plan's arguments: {error}") from error
    if not isinstance(model, nn.Module):
        raise CompactError(f"{target} gave a {type(model).__name__}, not a torch.nn.Module")
    return model


def _read_plan(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: the folder holds no compact model")
    try:
        values = json.loads(path.read_bytes())
    except ValueError as error:
        raise FormatError(f"{path} is damaged: it is not JSON ({error})") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise FormatError(f"{path} is not the plan of a compact model (format {FORMAT})")
    version = values.get("version")
    if isinstance(version, int) and version < VERSION:
        raise FormatError(f"{path} was written by dessilbi 0.1 (version {version}); compact again")
    if version != VERSION:
        raise FormatError(
            f"{path} is of version {version}; this dessilbi reads version {VERSION}: "
            "upgrade dessilbi"
        )
    return values


def _read_weights(path: Path, checksum: int) -> dict[str, Tensor]:
    try:
        content = path.read_bytes()
        if zlib.crc32(content) != checksum:
            raise FormatError(
                f"{path} is damaged or belongs to another plan: its checksum does not match; "
                "save the compact model again"
            )
        return load(content)
    except (OSError, SafetensorError) as error:
        raise FormatError(f"{path} is missing or damaged ({error})") from error
