"""Entries to and leaves from the support, to the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEVER = -1


class Events(NamedTuple):
    """What happened, in the order of steps."""

    steps: NDArray[np.int32]
    groups: NDArray[np.int32]
    entered: NDArray[np.bool_]
    """True for an entry, False for a leave."""

    def where(self, chosen: NDArray[np.bool_]) -> Events:
        """Some of the events."""
        return Events(self.steps[chosen], self.groups[chosen], self.entered[chosen])

    def first_entries(self, groups: int) -> NDArray[np.int64]:
        """Step of each group's first entry; -1 if it never entered."""
        steps = np.full(groups, NEVER, dtype=np.int64)
        entries = self.where(self.entered)
        steps[entries.groups[::-1]] = entries.steps[::-1]  # of several, the first is written last
        return steps

    def stays(self, groups: int) -> NDArray[np.int64]:
        """Step since which each group has been in the support; -1 if it is outside now."""
        steps = np.full(groups, NEVER, dtype=np.int64)
        steps[self.groups] = np.where(self.entered, self.steps, NEVER)
        return steps


class EventLog:
    """Events as they come; a step without any costs nothing."""

    def __init__(self, events: Events | None = None) -> None:
        empty = np.zeros(0, dtype=np.int32)
        self._parts = [events or Events(empty, empty, np.zeros(0, dtype=np.bool_))]

    def append(self, step: int, groups: NDArray[np.int64], entered: NDArray[np.bool_]) -> None:
        """Add what changed at a step."""
        steps = np.full(len(groups), step, dtype=np.int32)
        self._parts.append(Events(steps, groups.astype(np.int32), entered.copy()))

    def all(self) -> Events:
        """Everything so far."""
        if len(self._parts) > 1:
            self._parts = [Events(*(np.concatenate(c) for c in zip(*self._parts, strict=True)))]
        return self._parts[0]

    def up_to(self, step: int) -> EventLog:
        """The log as it was after a step."""
        events = self.all()
        return EventLog(events.where(events.steps <= step))

    def activity(self, groups: int) -> NDArray[np.bool_]:
        """Replay: which groups are in the support after the last event."""
        inside: NDArray[np.bool_] = self.all().stays(groups) != NEVER
        return inside
