"""Several processes on one run: rank, size, and sums over all of them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from dessilbi.lab.run.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True)
class World:
    """The processes that torchrun started, or this one alone."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def sum(self, values: Sequence[float], device: torch.device) -> list[float]:
        """Element by element, over all processes, in float64."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            dist.barrier()


def is_main() -> bool:
    """Whether this process writes and prints, also outside of :func:`join_world`."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def join_world(device: torch.device) -> Iterator[World]:
    """Join the processes that torchrun started; without torchrun a world of one."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield World()
        return
    c10d: Any = dist  # mypy does not see all of its names
    store, rank, size = next(c10d.rendezvous("env://"))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=c10d.PrefixStore(f"attempt-{_attempt()}", store),
        rank=rank,
        world_size=size,
    )
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def _attempt() -> str:
    """Which of torchrun's attempts this is.

    Its store outlives a restart, and with it the addresses of workers that were killed: a new
    worker that reads one of them cannot connect (pytorch#135712). Every node counts its attempts
    for itself, so with several nodes the number cannot be used; there, start torchrun with
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
    """
    one_node = os.environ.get("GROUP_WORLD_SIZE") == "1"
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if one_node else "any"


def pick_device(name: str) -> torch.device:
    """``auto`` takes the process's own GPU where there is one, ``cuda`` insists on it."""
    has_gpu = torch.cuda.is_available()
    if name == "cuda" or (name == "auto" and has_gpu):
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    try:
        device = torch.device("cpu" if name == "auto" else name)
    except RuntimeError as error:
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}") from error
    if device.type == "cuda":
        if not has_gpu:
            raise ConfigError(f"device {name!r}: torch finds no GPU here; use --device cpu")
        torch.cuda.set_device(device)
    return device


def seed_rank(seed: int, epoch: int, rank: int) -> None:
    """Seed what a network draws itself, dropout for example: each rank and epoch its own.

    Several processes save after each epoch, so a restart needs no generator state of every rank.
    """
    state = np.random.SeedSequence([seed, epoch, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(state[0]) >> 1)
