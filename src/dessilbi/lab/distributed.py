"""Several processes on one run: who am I, and sums over all of us."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True)
class Team:
    """The processes that torchrun started, or this one alone."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
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


def leads() -> bool:
    """Whether this process speaks for its team, also outside of :func:`team`."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def team(device: torch.device) -> Iterator[Team]:
    """Join the processes that torchrun started; without torchrun a team of one."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Team()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Team(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def pick_device(name: str) -> torch.device:
    """``auto`` takes the process's own GPU where there is one."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        local = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_device(local)
        return torch.device("cuda", local)
    return torch.device("cpu")
