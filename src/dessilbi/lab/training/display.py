"""Who is told what happens in a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from dessilbi.lab.data import Dataset
    from dessilbi.lab.run.checkpoint import Position
    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.directory import RunDir


class Display(Protocol):
    """Who is told what happens."""

    def start(self, config: Config, run: RunDir, position: Position, data: Dataset) -> None:
        """The run begins, or goes on at ``position``."""

    def batch(self, position: Position, batches: int) -> None:
        """A step is done."""

    def epoch(self, metrics: dict[str, Any], timing: dict[str, Any]) -> None:
        """An epoch is done and saved."""

    def warn(self, text: str) -> None:
        """Something a user should know while the run goes on."""


class Silent:
    """Tells nobody."""

    def start(self, config: Config, run: RunDir, position: Position, data: Dataset) -> None:
        """See :class:`Display`."""

    def batch(self, position: Position, batches: int) -> None:
        """See :class:`Display`."""

    def epoch(self, metrics: dict[str, Any], timing: dict[str, Any]) -> None:
        """See :class:`Display`."""

    def warn(self, text: str) -> None:
        """See :class:`Display`."""
