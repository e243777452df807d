"""Two gloo ranks on one machine: run named cases in both, bring back results or tracebacks."""

from __future__ import annotations

import os
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor, nn

    from dessilbi.optim import DessiLBI

    Case = Callable[[int], Any]

WORLD = 2


class Failure(str):
    """The traceback of a case that raised."""

    __slots__ = ()


def run_cases(cases: dict[str, Case], folder: Path) -> dict[str, list[Any]]:
    """Results of every case, by name, one a rank. Cases must be importable functions."""
    folder.mkdir(parents=True, exist_ok=True)
    mp.spawn(_rank, args=(cases, str(folder)), nprocs=WORLD, join=True)
    ranks = [torch.load(folder / f"rank{r}.pt", weights_only=False) for r in range(WORLD)]
    return {name: [rank[name] for rank in ranks] for name in cases}


def results_of(outcome: list[Any]) -> list[Any]:
    """What the ranks returned; fails with the traceback where one of them raised."""
    for rank, result in enumerate(outcome):
        if isinstance(result, Failure):
            pytest.fail(f"rank {rank} raised:\n{result}", pytrace=False)
    return outcome


def _rank(rank: int, cases: dict[str, Case], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    results: dict[str, Any] = {}
    for name, case in cases.items():
        try:
            results[name] = case(rank)
        except Exception:
            results[name] = Failure(traceback.format_exc())
    torch.save(results, os.path.join(folder, f"rank{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


def full(t: Any) -> Tensor:
    """A DTensor gathered; any other tensor as it is."""
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def snapshot(model: nn.Module, opt: DessiLBI) -> dict[str, Tensor]:
    """Weights, state and twin by name, gathered over ranks."""
    found: dict[str, Tensor] = {}
    for name, p in model.named_parameters():
        found[f"{name}.W"] = full(p.detach()).clone()
        for key, value in opt.state.get(p, {}).items():
            found[f"{name}.{key}"] = full(value).clone()
    for name, p in opt.twins():
        found[f"{name}.gamma"] = full(opt.gamma(p))
        found[f"{name}.support"] = full(opt.support(p))
        found[f"{name}.density"] = torch.tensor(opt.density(p))
    found["density"] = torch.tensor(opt.density())
    return found
