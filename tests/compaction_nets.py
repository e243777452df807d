"""Networks with everything that is hard to cut, masks for them, and the masked model itself."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dessilbi import Mask, project
from dessilbi.lab.models import make_model

if TYPE_CHECKING:
    from collections.abc import Callable


def conv_bn(i: int, o: int, k: int = 3, **options: Any) -> nn.Sequential:
    layer = nn.Conv2d(i, o, k, padding=k // 2, bias=False, **options)
    return nn.Sequential(layer, nn.BatchNorm2d(o), nn.ReLU())


class Residual(nn.Module):
    """Pre-activation blocks: BatchNorm and ReLU stand on the stream, after the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(4))
        self.last = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for a in (0, 2):
            y = self.convs[a](F.relu(self.norms[a](x)))
            x = x + self.convs[a + 1](F.relu(self.norms[a + 1](y)))
        return self.head(F.relu(self.last(x)).mean([2, 3]))


class Dense(nn.Module):
    """Concatenations of everything before, as DenseNet has them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 6)
        self.layers = nn.ModuleList(conv_bn(6 + 4 * i, 4) for i in range(3))
        self.head = nn.Linear(18 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        seen = [self.stem(x)]
        for layer in self.layers:
            seen.append(layer(torch.cat(seen, dim=1)))
        return self.head(F.max_pool2d(torch.cat(seen, 1), 2).flatten(1))


class Separable(nn.Module):
    """Depthwise and pointwise convolutions with ReLU6 and residuals, as MobileNetV2."""

    def __init__(self, width: int = 8, sides: int = 2) -> None:
        super().__init__()
        self.stem = conv_bn(3, width, stride=sides)
        self.blocks = nn.ModuleList(self._block(width, 3 * width) for _ in range(3))
        self.head = nn.Linear(width, 5)

    @staticmethod
    def _block(width: int, inner: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(width, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Excited(nn.Module):
    """A squeeze-and-excite gate: a product that broadcasts over the map."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 8)
        self.down, self.up = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.after = nn.Conv2d(8, 6, 3, padding=1)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        gate = torch.sigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))
        return self.head(F.gelu(self.after(x * gate)).amax((2, 3)))


class PaddedShortcut(nn.Module):
    """He's option A: a strided slice, padded with zero channels; tools cut this wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 6)
        self.conv = conv_bn(6, 12, stride=2)
        self.after = conv_bn(12, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        short = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 3, 3))
        y = self.conv(x)
        y += short
        return self.head(self.after(F.relu(2 - y)).mean((2, 3)))


class Shuffled(nn.Module):
    """Grouped convolutions with a channel shuffle between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = conv_bn(3, 8)
        self.grouped = conv_bn(8, 8, groups=2)
        self.again = conv_bn(8, 12, groups=4)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.grouped(self.first(x))
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.head(self.again(x).mean((2, 3)))


class ChannelsMoved(nn.Module):
    """A permute before the flatten: features are ordered by position, not by channel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv_bn(3, 6)
        self.head = nn.Linear(6 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.conv(x), 2).permute(0, 2, 3, 1)
        return self.head(x.reshape(x.shape[0], -1))


class Hardcoded(nn.Module):
    """Sizes written into the code, in-place activations, an average with padding, biases."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3)
        self.act = nn.ReLU(inplace=True)
        self.c = nn.Conv2d(8, 8, 3, padding="same", dilation=2)
        self.pool = nn.AvgPool2d(3, 2, padding=1)
        self.fc = nn.Linear(72, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.b(F.relu_(self.a(x))))
        x = self.pool(F.relu(self.c(x), True))
        x = x.view(-1, 72)
        return self.head(torch.relu_(self.norm(self.fc(x))))


class Oddments(nn.Module):
    """1d convolutions, other paddings, PReLU, numbers, unaffine BatchNorm, a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv1d(3, 8, 3, padding=1, padding_mode="circular")
        self.slope = nn.PReLU(8)
        self.norm = nn.BatchNorm1d(8, affine=False)
        self.b = nn.Conv1d(8, 8, 3, padding=1, padding_mode="replicate")
        self.twice = nn.Conv1d(8, 8, 1)
        self.one_slope = nn.PReLU()
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.slope(self.a(x)))
        x = 1.5 * F.dropout(self.b(x), 0.3, self.training) - 0.25
        x = self.one_slope(self.twice(x)) + x
        x = self.twice(self.drop(torch.tanh(x)))
        return self.head(F.avg_pool1d(x, 16).squeeze(-1))


class Tokens(nn.Module):
    """Linear layers on tokens: channels are the last dimension, LayerNorm needs them all."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> dict[str, Tensor]:
        x = self.embed(x)
        if scale is not None:
            x = x * scale
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return {"tokens": x, "class": self.head(x.mean(1))}


class Opaque(nn.Module):
    """A part that depends on the data, which no trace can follow."""

    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(6, 6, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x) if bool(x.sum() > 0) else x

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.part = conv_bn(3, 6), self.Careful()
        self.after, self.head = conv_bn(6, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.after(self.part(self.stem(x))).mean((2, 3)))


class Tied(nn.Module):
    """An embedding that is the decoder's weight; defined last, called first."""

    def __init__(self) -> None:
        super().__init__()
        self.decode = nn.Linear(6, 20, bias=False)
        self.embed = nn.Embedding(20, 6)
        self.embed.weight = self.decode.weight
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.down(F.relu(self.up(self.embed(x)))))


def tied_mask() -> Mask:
    """Half of the hidden neurons of :class:`Tied`."""
    keep = torch.ones(12, 6).bool()
    keep[::2] = False
    return Mask({"up.weight": keep})


IMAGE = (3, 8, 8)
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, IMAGE),
    "dense": (Dense, IMAGE),
    "separable": (Separable, IMAGE),
    "excited": (Excited, IMAGE),
    "padded-shortcut": (PaddedShortcut, IMAGE),
    "shuffled": (Shuffled, IMAGE),
    "channels-moved": (ChannelsMoved, IMAGE),
    "hardcoded": (Hardcoded, IMAGE),
    "oddments": (Oddments, (3, 16)),
    "tokens": (Tokens, (4, 6)),
    "opaque": (Opaque, IMAGE),
}


def lab_net(name: str, side: int, channels: int) -> nn.Module:
    return make_model(name, num_classes=10, in_channels=channels, input_size=side)


def randomize(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights as they are, biases and BatchNorm as training might leave them; in evaluation."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, nn.modules.batchnorm._BatchNorm):
                n = m.num_features
                assert m.running_mean is not None
                assert m.running_var is not None
                m.running_mean.copy_(0.3 * torch.randn(n, generator=g))
                m.running_var.copy_(0.5 + torch.rand(n, generator=g))
                if m.affine:
                    m.weight.copy_(0.5 + torch.rand(n, generator=g))
                    m.bias.copy_(0.3 * torch.randn(n, generator=g))
            elif isinstance(m, nn.Conv1d | nn.Conv2d | nn.Linear) and m.bias is not None:
                m.bias.copy_(0.2 * torch.randn(len(m.bias), generator=g))
    return model.eval()


def filter_mask(model: nn.Module, off: float, seed: int = 0, head: bool = False) -> Mask:
    """Filters and neurons off at random, independently in each layer; the classifier stays."""
    g = torch.Generator().manual_seed(seed)
    weights = {n: p for n, p in model.named_parameters() if p.ndim > 1}
    last = list(weights)[-1]
    found = {}
    for name, p in weights.items():
        keep = torch.rand(len(p), generator=g) >= off
        if name != last or head:
            found[name] = keep.view(-1, *[1] * (p.ndim - 1)).expand(p.shape)
    if head and not any(bool(keep.any()) for keep in found.values()):
        return filter_mask(model, off, seed + 1, head)  # to keep nothing is refused
    return Mask(found)


def weight_mask(model: nn.Module, density: float, seed: int = 0) -> Mask:
    """Single weights, drawn at random."""
    return Mask.random(model, density, generator=torch.Generator().manual_seed(seed))


def masked(model: nn.Module, mask: Mask, *arguments: Any) -> list[Tensor]:
    """What ``project`` evaluates, in the model's precision."""
    model = deepcopy(model).eval()
    with project(model, mask, allow_empty=True), torch.no_grad():
        return outputs(model(*arguments))


def outputs(result: Any) -> list[Tensor]:
    return list(result.values()) if isinstance(result, dict) else [result]


def relative(found: list[Tensor], wanted: list[Tensor]) -> float:
    gaps = [float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True)]
    return max(gaps) / (max(float(b.abs().max()) for b in wanted) or 1.0)
