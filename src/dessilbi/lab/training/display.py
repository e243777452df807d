"""Displays: what shows a run while it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dessilbi.lab.data import Dataset
    from dessilbi.lab.run.checkpoint import Progress
    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.run.files import EpochRecord, TimingRecord


class Display(Protocol):
    """What shows a run while it goes on."""

    def start(self, config: Config, run: RunDir, progress: Progress, data: Dataset) -> None:
        """The run begins, or goes on at ``progress``."""

    def batch(self, progress: Progress, batches: int) -> None:
        """A step is done."""

    def epoch(self, record: EpochRecord, timing: TimingRecord) -> None:
        """An epoch is done and saved."""

    def warn(self, text: str) -> None:
        """Something a user should know while the run goes on."""


class Silent:
    """A display that shows nothing."""

    def start(self, config: Config, run: RunDir, progress: Progress, data: Dataset) -> None:
        """See :class:`Display`."""

    def batch(self, progress: Progress, batches: int) -> None:
        """See :class:`Display`."""

    def epoch(self, record: EpochRecord, timing: TimingRecord) -> None:
        """See :class:`Display`."""

    def warn(self, text: str) -> None:
        """See :class:`Display`."""
