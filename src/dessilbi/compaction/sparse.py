"""Unstructured sparsity on the CPU: what it really gains, and a layer that takes the gain.

A linear layer with few weights left can be multiplied as a sparse matrix: by torch as ``W @ x.T``
in CSR form, or by scipy, which is fast for one example. Whether that beats the dense product
depends on density, size, batch and machine; so each layer is timed, for small and large batches,
and stays dense where it does not win.
"""

from __future__ import annotations

import math
import warnings
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from .latency import Timing, side_by_side, steady_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

WAYS = ("dense", "csr", "scipy")
_PRECISIONS = (torch.float32, torch.float64)
"""Those that both libraries multiply sparse matrices in."""


class NotKept(Tensor):
    """Stands for a dense weight that is not there.

    Transformer layers of torch have a fused path that reads ``weight`` and never calls the linear
    layer; for subclasses of Tensor they do not take it.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> NotKept:
        return self  # torch copies no subclass by itself, and there is nothing to copy


class SparseLinear(nn.Module):
    """A linear layer that multiplies in the way that is fastest for the batch; inference only.

    Args:
        layer: the layer whose weights are taken.
        ways: by batch size, ``"dense"``, ``"csr"`` (torch) or ``"scipy"``; other batch sizes go the
            way of the nearest one, by ratio. The dense weight is kept only if some batch needs it.
    """

    weight: Tensor
    """Of type :class:`NotKept`, and empty, if it is not needed."""
    bias: Tensor | None
    crow: Tensor
    columns: Tensor
    values: Tensor

    def __init__(self, layer: nn.Linear, ways: Mapping[int, str]) -> None:
        super().__init__()
        if not ways or any(way not in WAYS for way in ways.values()):
            raise ValueError(f"ways must map batch sizes to {', '.join(WAYS)}, got {dict(ways)}")
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.ways = dict(sorted(ways.items()))
        self._made: dict[str, tuple[Any, ...]] = {}
        weight = layer.weight.detach()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse .* support is in beta", UserWarning)
            csr = weight.to_sparse_csr()
        if "dense" in ways.values():
            self.register_buffer("weight", weight.clone())
        else:
            nothing = weight.new_empty(0).as_subclass(NotKept)
            self.register_buffer("weight", nothing, persistent=False)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())
        self.register_buffer("crow", csr.crow_indices().int())
        self.register_buffer("columns", csr.col_indices().int())
        self.register_buffer("values", csr.values().clone())

    def way(self, batch: int) -> str:
        """How a batch of this size is multiplied."""
        nearest = min(self.ways, key=lambda size: abs(math.log(max(batch, 1) / size)))
        return self.ways[nearest]

    def forward(self, x: Tensor) -> Tensor:
        """``x @ W.T + b``."""
        if torch.is_grad_enabled() and x.requires_grad:
            raise RuntimeError(
                "SparseLinear is for inference: train the dense compact model, and call "
                "sparsify() afterwards"
            )
        rows = x.reshape(-1, self.in_features)
        way = self.way(len(rows))
        if way == "dense":
            return linear(x, self.weight, self.bias)
        product = self._scipy(rows) if way == "scipy" else self._csr(rows)
        if self.bias is not None:
            product = product + self.bias
        return product.reshape(*x.shape[:-1], self.out_features)

    def _csr(self, rows: Tensor) -> Tensor:
        product: Tensor = self._matrix("csr", self._make_csr) @ rows.detach().T
        return product.T

    def _scipy(self, rows: Tensor) -> Tensor:
        x = rows.detach().numpy()
        product = self._matrix("scipy", self._make_scipy) @ (x[0] if len(x) == 1 else x.T)
        return torch.from_numpy(product).reshape(self.out_features, len(x)).T

    def _matrix(self, way: str, make: Callable[[], Any]) -> Any:
        """The sparse matrix, made once: it shares its memory with the buffers."""
        tensors = (self.crow, self.columns, self.values)
        memory = tuple(t.data_ptr() for t in tensors)
        if self._made.get(way, (None,))[0] != memory:
            self._made[way] = (memory, make())
        return self._made[way][1]

    def _make_csr(self) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse .* support is in beta", UserWarning)
            return torch.sparse_csr_tensor(
                self.crow,
                self.columns,
                self.values,
                (self.out_features, self.in_features),
                check_invariants=False,
            )

    def _make_scipy(self) -> Any:
        from scipy.sparse import csr_array

        parts = (self.values.numpy(), self.columns.numpy(), self.crow.numpy())
        return csr_array(parts, shape=(self.out_features, self.in_features), copy=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_made": {}}  # a copy's matrices are made of its own buffers

    def extra_repr(self) -> str:
        """Sizes and ways."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"weights={len(self.values)}, ways={self.ways}"
        )


@dataclass(frozen=True)
class LayerGain:
    """One linear layer, timed in every way."""

    name: str
    shape: tuple[int, int]
    density: float
    times: dict[int, dict[str, Timing]]
    """By batch size and way."""
    ways: dict[int, str]
    """The fastest."""

    def ratio(self, batch: int) -> float:
        """How many times faster than dense the chosen way is."""
        times = self.times[batch]
        return times["dense"].median / times[self.ways[batch]].median


@dataclass(frozen=True)
class SparseReport:
    """What unstructured sparsity gains, layer by layer."""

    layers: tuple[LayerGain, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{'layer':16}{'shape':>14}{'density':>9}  batch: way (ratio to dense)"]
        for one in self.layers:
            shape = "x".join(map(str, one.shape))
            ways = ", ".join(f"{b}: {way} ({one.ratio(b):.2f})" for b, way in one.ways.items())
            lines.append(f"{one.name:16}{shape:>14}{one.density:9.4f}  {ways}")
        return "\n".join(lines)


def sparsify(
    model: nn.Module, *, batches: Sequence[int] = (1, 128), margin: float = 0.9
) -> tuple[nn.Module, SparseReport]:
    """A copy whose linear layers are sparse where that is faster on this machine, and the times.

    Args:
        model: on the CPU; its zeros decide, so project or compact it first. It is not changed.
            Layers in less than single precision stay dense.
        batches: batch sizes to time; those between go the way of the nearest.
        margin: a sparse way must take less than this share of the dense time.
    """
    made = deepcopy(model).eval()
    gains = []
    for name, layer in model.named_modules():
        if type(layer) is not nn.Linear or layer.weight.dtype not in _PRECISIONS:
            continue
        gain = _time(name, layer, batches, margin)
        gains.append(gain)
        if set(gain.ways.values()) == {"dense"}:
            continue
        if not name:
            return SparseLinear(layer, gain.ways), SparseReport((gain,))
        parent, _, own = name.rpartition(".")
        setattr(made.get_submodule(parent), own, SparseLinear(layer, gain.ways))
    return made, SparseReport(tuple(gains))


def _time(name: str, layer: nn.Linear, batches: Sequence[int], margin: float) -> LayerGain:
    times: dict[int, dict[str, Timing]] = {}
    ways: dict[int, str] = {}
    kinds = [way for way in WAYS if way != "scipy" or _has_scipy()]
    candidates = {way: SparseLinear(layer, {1: way}) for way in kinds}
    for batch in batches:
        x = torch.randn(batch, layer.in_features, dtype=layer.weight.dtype)
        calls = [lambda x=x, m=module: m(x) for module in candidates.values()]
        found = side_by_side(calls, repetitions=15, seconds=0.5, clock=steady_clock)
        times[batch] = dict(zip(kinds, found, strict=True))
        best = min(kinds, key=lambda way: times[batch][way].median)
        worth = times[batch][best].median < margin * times[batch]["dense"].median
        ways[batch] = best if worth else "dense"
    weight = layer.weight.detach()
    density = float((weight != 0).sum()) / max(weight.numel(), 1)
    shape = (layer.out_features, layer.in_features)
    return LayerGain(name, shape, density, times, ways)


def _has_scipy() -> bool:
    try:
        import scipy.sparse  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True
