"""A GPT over characters, as small as nanoGPT's for Shakespeare on a CPU."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from dessilbi.lab.models.task import Task


def char_gpt(task: Task) -> nn.Module:
    """Four layers of four heads, 128 wide: 0.8 million weights."""
    return CharGPT(task, layers=4, heads=4, width=128)


def char_gpt_tiny(task: Task) -> nn.Module:
    """Two layers of two heads, 16 wide, to try things in seconds."""
    return CharGPT(task, layers=2, heads=2, width=16)


class CharGPT(nn.Module):
    """Decoder-only transformer: normalisation before each part, learned positions, no biases.

    Weights begin as GPT-2's: normal with deviation 0.02, divided by ``sqrt(2 * layers)`` where a
    part writes to the residual stream.

    Args:
        task: the number of characters, and how many of them it reads.
        layers: blocks of attention and MLP.
        heads: of each attention.
        width: of the residual stream.
    """

    def __init__(self, task: Task, *, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(task.num_classes, width)
        self.position = nn.Embedding(task.input_size, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, task.num_classes, bias=False)
        for name, p in self.named_parameters():
            if p.ndim > 1:
                writes = name.endswith("proj.weight")
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if writes else 0.02)

    @property
    def twin_patterns(self) -> dict[str, dict[str, Any]]:
        """Patterns for :func:`split_parameters`: a neuron of an MLP is a group, all else dense."""
        neuron = {"penalty": "group_lasso", "tied": True, "group_dim": (0, 1)}
        return {f"blocks.{i}.mlp": neuron for i in range(len(self.blocks))}

    def forward(self, characters: Tensor) -> Tensor:
        """Logits of the next character, (batch, characters, vocabulary)."""
        positions = torch.arange(characters.shape[1], device=characters.device)
        x = self.token(characters) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Block(nn.Module):
    """``x + attn(norm1(x))``, then the same with the MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.mlp = MLP(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Attention(nn.Module):
    """Causal self-attention, queries, keys and values of all heads from one matrix."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return what each character takes from those before it."""
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        taken = scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(taken.transpose(1, 2).reshape(batch, length, width))
        return out


class MLP(nn.Module):
    """Two layers with GELU between: a neuron is a row of ``fc`` and a column of ``proj``."""

    def __init__(self, width: int, neurons: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, neurons, bias=False)
        self.gelu = nn.GELU()
        self.proj = nn.Linear(neurons, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        out: Tensor = self.proj(self.gelu(self.fc(x)))
        return out
