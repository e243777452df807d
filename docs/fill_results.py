"""Put the tables of all results into their places in a page.

    python docs/fill_results.py [docs/reproduction.md [results]]

A place is a pair of comments: ``<!-- results: table-mnist-paper -->`` and ``<!-- end of results
-->``. Where nothing was run the text between them says so.
"""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dessilbi.paper.recipe import SCALES
from dessilbi.paper.recipes import RECIPES
from dessilbi.paper.reproduce import results_file, state
from dessilbi.paper.results import Results

if TYPE_CHECKING:
    from dessilbi.paper.recipe import Recipe

PAGE = Path(__file__).with_name("reproduction.md")
RESULTS = PAGE.parents[1] / "results"


def command(recipe: Recipe, results: Results) -> str:
    """What was asked for last, to be typed again."""
    text = f"dessilbi reproduce {recipe.name} --scale {results.scale}"
    if results.planned in (0, len(recipe.jobs(results.scale))):
        return text
    counts = itertools.count(1)
    enough = (n for n in counts if len(recipe.jobs(results.scale, n)) >= results.planned)
    return f"{text} --seeds {next(enough)}"


def markdown(recipe: Recipe, results: Results) -> str:
    """All tables of a recipe with what was cut and on what it ran."""
    head = [f"`{command(recipe, results)}`: {state(recipe, results)}."]
    if results.cuts:
        head.append("Cut: " + "; ".join(results.cuts) + ".")
    if facts := results.environment:
        head.append(
            f"Run with torch {facts.get('packages', {}).get('torch', '?')} on "
            f"{facts.get('device', '?')}, {facts.get('cores', '?')} cores, "
            f"{facts.get('threads', '?')} threads a run."
        )
    tables = [table.markdown() for table in recipe.tables(results)]
    return "\n\n".join(["\n".join(head), *tables]).rstrip() + "\n"


def fill(page: Path, folder: Path) -> int:
    """Fill the places of a page; returns for how many there are results."""
    count = 0

    def place(match: re.Match[str]) -> str:
        nonlocal count
        name, _, scale = match[2].rpartition("-")
        if name not in RECIPES or scale not in SCALES:
            raise ValueError(f"{page} has a place for {match[2]!r}, which is no recipe and scale")
        source = results_file(folder, name, scale)
        body = "Not run yet.\n"
        if source.is_file():
            body = markdown(RECIPES[name], Results.load(source, name, scale))
            count += 1
        return f"{match[1]}\n{body}{match[3]}"

    places = r"(<!-- results: ([\w.-]+) -->).*?(<!-- end of results -->)"
    page.write_text(re.sub(places, place, page.read_text(), flags=re.DOTALL))
    return count


if __name__ == "__main__":
    page, folder = map(Path, sys.argv[1:3]) if len(sys.argv) > 2 else (PAGE, RESULTS)
    print(f"{page}: {fill(page, folder)} places filled from {folder}")
