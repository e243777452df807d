"""The file of a path, ``path.safetensors``, version 1.

    events.step, events.group, events.entered     entries and leaves of groups, by step
    supports.data, supports.ends                  supports at the snapshots, see _supports
    marks.*                                       one entry a snapshot, see Snapshot
    strength.W.*, strength.V.*, strength.lambd.*  at the last snapshot, see Ranking
    strength.level.*, strength.follows.*          of a nested run, see Ranking

The header holds the layers, the number of steps, kappa by layer and whether the run was by width.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _file
from ._events import EventLog, Events
from ._ranking import pack_ranking, unpack_ranking
from ._snapshots import snapshots_from_arrays, snapshots_to_arrays
from ._supports import SupportSequence
from .layers import Layer

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from .solution_path import SolutionPath

FORMAT, VERSION = "dessilbi-path", 1


def write(path: SolutionPath, file: str | Path) -> int:
    """Write a path; returns the file's size."""
    events = path.event_log.all()
    arrays: dict[str, NDArray[np.generic]] = {
        "events.step": events.steps,
        "events.group": events.groups,
        "events.entered": events.entered.astype(np.uint8),
    }
    arrays |= {f"supports.{k}": a for k, a in path.supports.arrays().items()}
    arrays |= {f"marks.{k}": a for k, a in snapshots_to_arrays(path.snapshots, path.layers).items()}
    values, stored = pack_ranking(path.ranking)
    values |= {"step": path.step, "layers": [layer.to_json() for layer in path.layers]}
    return _file.write(file, FORMAT, VERSION, values, arrays | stored)


def read(file: str | Path) -> dict[str, Any]:
    """The arguments of the :class:`SolutionPath` in a file."""
    values, arrays = _file.read(file, FORMAT, VERSION)

    def part(start: str) -> dict[str, NDArray[Any]]:
        return {k.removeprefix(start): a for k, a in arrays.items() if k.startswith(start)}

    try:
        layers = [Layer.from_json(v) for v in values["layers"]]
        groups = sum(layer.groups for layer in layers)
        events, snapshots = part("events."), snapshots_from_arrays(part("marks."))
        supports = SupportSequence.from_arrays(groups, **part("supports."))
        if len(supports) != len(snapshots):
            raise ValueError(f"{len(supports)} supports for {len(snapshots)} snapshots")
        return {
            "layers": layers,
            "step": values["step"],
            "events": EventLog(
                Events(events["step"], events["group"], events["entered"].astype(np.bool_))
            ),
            "supports": supports,
            "snapshots": snapshots,
            "ranking": unpack_ranking(values, arrays),
        }
    except (KeyError, TypeError, ValueError, IndexError, zlib.error) as error:
        raise _file.FormatError(
            f"{file} is damaged: its parts do not fit together ({error!r})"
        ) from error
