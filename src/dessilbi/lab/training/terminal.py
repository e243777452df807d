"""A run on the terminal: a bar while an epoch trains, a line when it is done."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from dessilbi.lab.run.files import TIMING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from dessilbi.lab.data import Dataset
    from dessilbi.lab.run.checkpoint import Progress as RunProgress
    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.run.files import EpochRecord, TimingRecord

HEADER = (
    f"{'epoch':>9}  {'loss':>7}  {'dense':>6}  {'sparse':>6}  {'recal.':>6}  {'density':>7}"
    f"  {'images/s':>8}"
)
TEXT_HEADER = (
    "losses in nats a character; dense and sparse: of held-out text\n"
    f"{'epoch':>9}  {'loss':>7}  {'dense':>7}  {'sparse':>7}  {'density':>7}  {'windows/s':>9}"
)
UPDATES_PER_SECOND = 4


def plain_console() -> Console:
    """A console that prints what it is given: paths may hold brackets and colons."""
    return Console(highlight=False, markup=False, emoji=False)


class TerminalDisplay:
    """Shows a run with rich; without a terminal only the lines, so that a log stays readable."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or plain_console()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=self.console,
            transient=True,
            auto_refresh=False,
            disable=not self.console.is_terminal,
        )
        self.task: TaskID | None = None
        self.epochs = 0
        self.images = 0
        self.is_text = False
        self.done_here = 0.0
        self.next_update = 0.0
        self.began = time.perf_counter()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def start(self, config: Config, run: RunDir, progress: RunProgress, data: Dataset) -> None:
        """Say what runs where, and from where it goes on."""
        self.epochs, self.images, self.is_text = config.epochs, len(data.train), data.is_text
        self.began = time.perf_counter()
        self.console.print(
            f"{config.model.name} on {data.name} ({len(data.train):,} training {self._items} from "
            f"{data.source}), {config.optimizer.name}, seed {config.seed}",
            soft_wrap=True,
        )
        self.console.print(f"run directory: {run.path}", soft_wrap=True)
        if progress.epoch or progress.batch:
            self.console.print(f"continues in epoch {progress.epoch + 1}")
        self.console.print(TEXT_HEADER if self.is_text else HEADER)
        for record, timing in zip(run.records(), run.records(TIMING), strict=False):
            self.console.print(self._line(record, timing))
        self.task = self.bar.add_task("", total=1, numbers="")

    def batch(self, progress: RunProgress, batches: int) -> None:
        """Move the bar, a few times a second."""
        self.done_here += 1 / batches
        now = time.perf_counter()
        if self.bar.disable or self.task is None or now < self.next_update:
            return
        self.next_update = now + 1 / UPDATES_PER_SECOND
        share = progress.batch / batches
        left = self.epochs - progress.epoch - share
        rate = self.done_here / max(now - self.began, 1e-9)
        self.bar.update(
            self.task,
            completed=share,
            description=f"epoch {progress.epoch + 1}/{self.epochs}",
            numbers=f"{rate * self.images:,.0f} {self._items}/s, "
            f"{_clock(left / max(rate, 1e-9))} left",
        )
        self.bar.refresh()

    def epoch(self, record: EpochRecord, timing: TimingRecord) -> None:
        """Print the line of a finished epoch."""
        self.console.print(self._line(record, timing))

    def warn(self, text: str) -> None:
        """Print a warning between the lines of the epochs."""
        self.console.print(f"warning: {text}", soft_wrap=True)

    @property
    def _items(self) -> str:
        return "windows" if self.is_text else "images"

    def _line(self, record: Mapping[str, Any], timing: Mapping[str, Any]) -> str:
        epoch = f"{record['epoch']}/{self.epochs}"
        speed = timing["images"] / max(timing["train_seconds"], 1e-9)
        if self.is_text:
            names = ("train_loss", "loss", "sparse_loss", "density")
            numbers = "".join(f"  {_fraction(record.get(name)):>7}" for name in names)
            return f"{epoch:>9}{numbers}  {speed:9,.0f}"
        return (
            f"{epoch:>9}  {_fraction(record.get('train_loss')):>7}  {record['accuracy']:6.2f}"
            f"  {_percent(record.get('sparse_accuracy')):>6}"
            f"  {_percent(record.get('recalibrated_accuracy')):>6}"
            f"  {_fraction(record.get('density')):>7}  {speed:8,.0f}"
        )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
