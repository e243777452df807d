"""What came of a recipe: a small JSON file that grows with every finished run.

Tables and figures are made from it alone, so that it can be kept where the run directories cannot.
"""

from __future__ import annotations

import fcntl
import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dessilbi._disk import write_whole
from dessilbi.lab.run.directory import clear_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dessilbi.paper.recipe import Scale
    from dessilbi.paper.sweep import Label


@dataclass
class Record:
    """One run."""

    labels: dict[str, Label]
    status: str
    """done, failed or skipped."""
    values: dict[str, Any] = field(default_factory=dict)
    run: str = ""
    message: str = ""


@dataclass
class Results:
    """All runs of a recipe at a scale, so far."""

    recipe: str
    scale: Scale
    planned: int = 0
    """Runs of the whole recipe with the seeds that were asked for last."""
    cuts: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)

    @classmethod
    def load(cls, file: Path, recipe: str, scale: Scale) -> Results:
        """Read the file, or begin an empty one."""
        if not file.is_file():
            return cls(recipe, scale)
        try:
            found = cls(**json.loads(file.read_text()))
            found.records = {k: Record(**r) for k, r in found.records.items()}  # type: ignore[arg-type]
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file} is not a file of results ({error}); move it away to begin anew"
            ) from error
        if (found.recipe, found.scale) != (recipe, scale):
            raise ValueError(
                f"{file} holds {found.recipe} at scale {found.scale}, not {recipe} at {scale}; "
                "move it away"
            )
        return found

    @classmethod
    @contextmanager
    def changed(cls, file: Path, recipe: str, scale: Scale) -> Iterator[Results]:
        """The results as they are in the file now, to change and then be written back.

        Other processes wait meanwhile, so that several may run parts of one recipe.
        """
        with clear_errors(file, "--results"):
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = file.with_name(".lock").open("w")
        with lock:
            with clear_errors(file, "--results"):
                fcntl.flock(lock, fcntl.LOCK_EX)
            results = cls.load(file, recipe, scale)
            yield results
            results.save(file)

    def save(self, file: Path) -> None:
        """Write the file whole or not at all."""
        head = {k: v for k, v in asdict(self).items() if k != "records"}
        records = [
            f"  {json.dumps(key)}: {json.dumps(asdict(record))}"
            for key, record in sorted(self.records.items())
        ]
        # A line a run: a new result is a line in a diff.
        body = json.dumps(head, indent=1)[:-2] + ',\n "records": {\n' + ",\n".join(records)
        with clear_errors(file, "--results"):
            write_whole(file, (body + "\n }\n}\n").encode())

    @property
    def done(self) -> int:
        """Runs that are done."""
        return len(self.where())

    @property
    def seeds(self) -> list[Label]:
        """Seeds that have a finished run."""
        return sorted({r.labels["seed"] for r in self.where() if "seed" in r.labels})

    def where(self, **labels: Label) -> list[Record]:
        """Finished runs with these labels, in the order of their seeds."""
        wanted = labels.items()
        found = [
            r for r in self.records.values() if r.status == "done" and wanted <= r.labels.items()
        ]
        return sorted(found, key=lambda record: record.labels.get("seed", 0))

    def collapsed(self, **labels: Label) -> int:
        """How many of them never learned."""
        return len(self.where(**labels)) - len(self.learned(**labels))

    def learned(self, **labels: Label) -> list[Record]:
        """Those of them that did not collapse: what tables and curves are the mean of."""
        return [record for record in self.where(**labels) if not record.values.get("collapsed")]

    def values(self, name: str, **labels: Label) -> list[float]:
        """A value of these runs, a number a seed; runs that collapsed are left out."""
        return [float(r.values[name]) for r in self.learned(**labels) if name in r.values]

    def curves(self, name: str, **labels: Label) -> list[list[float]]:
        """The course of a value in these runs, a list a seed; a density in percent."""
        factor = 100.0 if name == "density" else 1.0
        courses = [r.values["curves"].get(name) for r in self.learned(**labels)]
        return [[factor * value for value in course] for course in courses if course]
