"""Random architectures and random masks: the compact model is always the masked model."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from compaction_nets import masked, randomize, relative
from dessilbi import Mask
from dessilbi.compaction import compact

SIDE = 6

pytestmark = pytest.mark.filterwarnings("ignore:nothing was removed")


class Drawn(nn.Module):
    """Operations on a growing list of feature maps, each on maps that came before."""

    def __init__(self, draw: st.DataObject) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.recipe: list[tuple[str, int, int]] = []
        widths = [2]

        def pick(what: str, *choices: object) -> object:
            return draw.draw(st.sampled_from(choices), label=what)

        for _ in range(draw.draw(st.integers(2, 7), label="operations")):
            kind = str(pick("kind", "conv", "conv", "block", "depthwise", "grouped", "pool", "cat",
                            "add", "mul", "norm"))  # fmt: skip
            source = draw.draw(st.integers(0, len(widths) - 1), label="source")
            width, other = widths[source], source
            layer: nn.Module = nn.Identity()
            if kind in ("conv", "block"):
                out = int(pick("width", 2, 4, 6))  # type: ignore[call-overload]
                mode = str(pick("padding", "zeros", "zeros", "circular", "reflect"))
                kernel = int(pick("kernel", 1, 3))  # type: ignore[call-overload]
                layer = nn.Conv2d(width, out, kernel, padding=kernel // 2, padding_mode=mode,
                                  bias=bool(pick("bias", True, False)))  # fmt: skip
                if kind == "block":
                    layer = nn.Sequential(layer, nn.BatchNorm2d(out), self._activation(pick))
                width = out
            elif kind == "depthwise":
                layer = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
            elif kind == "grouped":
                layer = nn.Conv2d(width, 4, 3, padding=1, groups=2)
                width = 4
            elif kind == "norm":
                layer = nn.BatchNorm2d(width, affine=bool(pick("affine", True, False)))
            elif kind == "pool":
                layer = (
                    nn.AvgPool2d(3, 1, 1) if pick("average", True, False) else nn.MaxPool2d(3, 1, 1)
                )
            else:
                same = [i for i, w in enumerate(widths) if kind == "cat" or w == width]
                other = int(pick("other", *same))  # type: ignore[call-overload]
                if kind == "cat":
                    width += widths[other]
            self.layers.append(layer)
            self.recipe.append((kind, source, other))
            widths.append(width)
        self.flat = bool(pick("flat", True, False))
        self.head = nn.Linear(widths[-1] * (SIDE**2 if self.flat else 1), 3)

    @staticmethod
    def _activation(pick: object) -> nn.Module:
        kind = pick("activation", nn.ReLU, nn.Sigmoid, nn.Hardswish, nn.Identity)  # type: ignore[operator]
        return kind()  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for layer, (kind, source, other) in zip(self.layers, self.recipe, strict=True):
            y = layer(maps[source])
            if kind == "cat":
                y = torch.cat([y, maps[other]], 1) if other != source else torch.cat([y, y], 1)
            elif kind == "add":
                y = y + maps[other]
            elif kind == "mul":
                y = y * torch.sigmoid(maps[other])
            maps.append(y)
        last = maps[-1]
        if self.flat:
            return self.head(last.reshape(last.shape[0], -1))
        return self.head(F.adaptive_avg_pool2d(last, 1).flatten(1))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.data())
def test_random_networks(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 99), label="seed")
    torch.manual_seed(seed)
    model = randomize(Drawn(data), seed).double()
    off = data.draw(st.sampled_from([0.3, 0.6, 0.9]), label="off")
    how = data.draw(st.sampled_from(["filters", "inputs", "weights"]), label="mask")
    streams = data.draw(st.sampled_from(["keep", "scatter"]), label="streams")
    tensors = {}
    for name, p in model.named_parameters():
        if p.ndim > 1:
            size = {
                "filters": (len(p), *[1] * (p.ndim - 1)),
                "inputs": (1, p.shape[1], *[1] * (p.ndim - 2)),
                "weights": p.shape,
            }[how]
            tensors[name] = (torch.rand(size) >= off).expand(p.shape)
    mask = Mask(tensors)
    assume(mask.kept)
    x = torch.randn(3, 2, SIDE, SIDE).double()
    small = compact(model, mask, x, streams=streams, latency=False).model
    with torch.no_grad():
        assert relative([small(x)], masked(model, mask, x)) <= 1e-10
