"""The page in a real browser: no errors, every panel drawn; slider, click and keys work."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from report_runs import find_browser

from dessilbi.report import read_run, write_report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dessilbi.lab.run.directory import RunDir

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="no playwright: the browser tests are skipped"
)
BROWSER = find_browser()
pytestmark = pytest.mark.skipif(
    BROWSER is None,
    reason="no chromium: the browser tests are skipped; install it (apt-get install chromium)",
)

# What a panel shows, in words, and whether all of it is in sight.
INK = """(key) => {
  const figure = document.getElementById(`panel-${key}`);
  return figure.querySelector(".body").innerHTML + figure.querySelector(".readout").textContent;
}"""
KEYS = "() => window.dessilbiReport.panels.filter((p) => !p.figure.hidden).map((p) => p.key)"
NOTHING = "\N{EN DASH}"
FRAMES = "() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def files(
    run: RunDir, other: RunDir, plain: RunDir, shorter: RunDir, tied: RunDir, retrained: RunDir,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:  # fmt: skip
    folder = tmp_path_factory.mktemp("pages")
    budgets = shutil.copytree(run.path, folder / run.path.name)
    frontier = json.loads((budgets / "frontier.json").read_text()) | {"judged_on": "validation"}
    (budgets / "frontier.json").write_text(json.dumps(frontier))
    written = {"one": write_report([run.path], folder / "one.html")}
    for name, chosen in {
        "three": [run.path, other.path, plain.path],
        "plain": [plain.path],
        "shorter": [shorter.path, run.path],
        "validation": [budgets],
        "tied": [tied.path],
        "retrained": [retrained.path],
    }.items():
        written[name] = write_report(chosen, folder / f"{name}.html")
    return written


@contextmanager
def opened(browser: Any, file: Path, **options: Any) -> Iterator[Any]:
    """A page that is ready; at the end it must not have complained or asked for anything."""
    size = options.pop("viewport", {"width": 1200, "height": 900})
    context = browser.new_context(viewport=size, accept_downloads=True, **options)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: complaints.append(r.url) if r.url.startswith("http") else None)
    page.goto(file.as_uri())
    if options.get("java_script_enabled", True):
        page.wait_for_function("document.documentElement.dataset.ready === '1'")
        page.evaluate(FRAMES)
    yield page
    context.close()
    assert complaints == []


def ink(page: Any) -> dict[str, str]:
    """What stands in the panels that are shown."""
    page.evaluate(FRAMES)
    return {key: page.evaluate(INK, key) for key in page.evaluate(KEYS)}


def colours(page: Any, key: str) -> int:
    """How many colours a reader sees in a panel."""
    with Image.open(BytesIO(page.locator(f"#panel-{key} .body").screenshot())) as picture:
        return len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0))


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {key for key in before if before[key] != after.get(key)}


def slide(page: Any, place: int) -> None:
    slider = "const s = document.getElementById('epoch'); s.value = place;"
    page.evaluate(f"(place) => {{ {slider} s.dispatchEvent(new Event('input')); }}", place)
    page.evaluate(FRAMES)


def press(page: Any, key: str) -> None:
    page.keyboard.press(key)
    page.evaluate(FRAMES)


@pytest.mark.parametrize("name", ["one", "three", "plain"])
def test_every_panel_is_drawn(browser: Any, files: dict[str, Path], name: str) -> None:
    with opened(browser, files[name]) as page:
        keys = page.evaluate(KEYS)
        assert len(keys) == {"one": 10, "three": 10, "plain": 2}[name]
        for key in keys:
            assert colours(page, key) > 5, f"panel {key} is empty"
            assert page.inner_text(f"#panel-{key} .readout")


def test_one_slider_drives_every_panel(browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files["one"]) as page:
        before = ink(page)
        slide(page, 2)
        assert changed(before, ink(page)) == before.keys()
        assert page.inner_text("#epoch-out") == "2"
        assert page.get_attribute("#epoch", "aria-valuetext") == "epoch 2"
        assert "Epoch 2" in page.inner_text("#panel-filters .readout")
        slide(page, 3)
        assert "the kept one nearest to 3" in page.inner_text("#panel-filters .readout")
        slide(page, 4)
        assert ink(page) == before, "and back again"


def test_layer_selector(browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files["one"]) as page:
        page.select_option("#layer", label="conv1 (16 filters)")
        before = ink(page)
        page.select_option("#layer", label="fc (10 neurons)")
        moved = changed(before, ink(page))
        assert {"paths", "next", "filters", "densities", "entries"} <= moved
        assert "one by one" in page.inner_text("#panel-next .readout")
        assert {"accuracy", "loss"}.isdisjoint(moved)


def test_hover_names_the_filter_and_shows_it(browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files["one"]) as page:
        plot = page.locator("#panel-next .plot")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        page.mouse.move(box["x"] + 10, box["y"] + box["height"] - 40)
        text = page.inner_text(".tooltip.on")
        assert "filter" in text
        assert "entered at step" in text or "never entered" in text
        assert page.locator(".tooltip.on .picture").count() == 2, "W and Gamma"
        page.mouse.move(2, 2)
        assert page.locator(".tooltip.on").count() == 0


def test_a_click_highlights_everywhere(browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files["one"]) as page:
        before = ink(page)
        page.locator("#panel-filters .picture").first.click()
        page.mouse.move(2, 2)
        assert {"paths", "entries", "next", "filters"} <= changed(before, ink(page))
        assert page.input_value("#unit") != ""
        press(page, "Escape")
        assert page.input_value("#unit") == ""
        assert ink(page) == before


def test_keyboard_alone_is_enough(browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files["one"]) as page:
        page.focus("#epoch")
        press(page, "ArrowLeft")
        assert page.inner_text("#epoch-out") == "3"
        press(page, "Home")
        assert page.inner_text("#epoch-out") == "0"
        page.evaluate("document.activeElement.blur()")
        press(page, "ArrowRight")
        assert page.inner_text("#epoch-out") == "1"
        page.focus("#layer")
        seen = ["layer"]
        for _ in range(4):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.id || document.activeElement.name"))
        assert {"layer", "unit", "epoch", "theme"} <= set(seen)
        style = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(style) != "none", "focus is visible"


def test_log_axis_and_other_options(browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files["one"]) as page:
        for key in ("loss", "paths", "budgets", "gap"):
            before = ink(page)
            page.click(f"#panel-{key} input[name=log]")
            assert changed(before, ink(page)) == {key}
        before = ink(page)
        page.select_option("#panel-paths select[name=norm]", "V")
        assert changed(before, ink(page)) == {"paths"}


def test_runs_are_chosen(browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files["three"]) as page:
        before = ink(page)
        page.select_option("#run", "1")
        assert {"paths", "entries"} <= changed(before, ink(page))
        page.select_option("#run", "2")
        page.evaluate(FRAMES)
        assert page.evaluate(KEYS) == ["accuracy", "loss", "budgets", "gap", "augmented"]
        page.select_option("#run", "0")
        assert ink(page) == before


def numbers(page: Any) -> dict[str, str]:
    """What stands in large on top."""
    items = "[...document.querySelectorAll('#figures > div')].map((i) => [...i.children])"
    return dict(page.evaluate(f"{items}.map((c) => c.map((e) => e.textContent))"))


def test_a_run_that_ended_earlier_shows_its_end(
    browser: Any, files: dict[str, Path], shorter: RunDir
) -> None:
    last = shorter.records()[-1]
    with opened(browser, files["shorter"]) as page:
        assert page.inner_text("#epoch-out") == "4"
        shown = numbers(page)
        assert shown["at epoch"] == "2"
        assert shown["all weights"] == f"{last['accuracy']:.2f}\u00a0%"
        assert NOTHING not in shown.values()
        for key in ("accuracy", "loss", "densities"):
            assert page.inner_text(f"#panel-{key} .readout").startswith("Epoch 2: "), key
        slide(page, 0)
        assert numbers(page)["all weights"] == NOTHING, "nothing was evaluated before training"
        slide(page, 2)
        assert "at epoch" not in numbers(page)
        page.select_option("#run", "1")
        slide(page, 4)
        assert "at epoch" not in numbers(page)


def test_budgets_name_the_images_of_the_frontier(browser: Any, files: dict[str, Path]) -> None:
    label = "#panel-budgets .label-y"
    with opened(browser, files["one"]) as page:
        assert page.inner_text(label) == "accuracy, % of the test set"
    with opened(browser, files["validation"]) as page:
        assert page.inner_text(label) == "accuracy, %"
        legend = page.inner_text("#panel-budgets .legend")
        assert "every budget (validation set)" in legend
        assert "support, by epoch (test set)" in legend


def test_tied_filters_have_the_recorded_gamma_and_the_joint_norm(
    browser: Any, files: dict[str, Path], tied: RunDir
) -> None:
    filters = read_run(tied.path).filters
    assert filters is not None
    with opened(browser, files["tied"]) as page:
        found = "window.dessilbiReport.report.runs[0].path"
        Gamma = np.reshape(page.evaluate(f"[...{found}.Gamma]"), filters.Gamma.shape)
        np.testing.assert_allclose(Gamma, filters.Gamma, rtol=1e-3)
        page.select_option("#layer", label="stem (8 filters)")
        page.evaluate(FRAMES)
        line = page.locator("#panel-next .threshold").bounding_box()["y"]
        bars = page.locator("#panel-next [data-unit] > i")
        tops = [bars.nth(i).bounding_box()["y"] for i in range(8)]
        looks = [bars.nth(i).get_attribute("class") for i in range(8)]
        assert looks == ["inside" if top < line else "outside" for top in tops]
        assert len(set(looks)) == 2
        assert "They enter with those of write." in page.inner_text("#panel-next .readout")


def test_labels_of_a_subnetwork(browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files["retrained"]) as page:
        shown = numbers(page)
        assert "all weights" not in shown
        assert {"the subnetwork", "kept by the mask"} <= shown.keys()
        assert "the subnetwork" in page.inner_text("#panel-accuracy .legend")
        assert "the subnetwork" in page.inner_text("#panel-accuracy .readout")
        page.select_option("#layer", label="conv2 (32 filters)")
        page.evaluate(FRAMES)
        assert "All of" not in page.inner_text("#panel-next .readout"), "most are masked"


def test_narrow_dark_and_light(browser: Any, files: dict[str, Path]) -> None:
    narrow = {"width": 360, "height": 740}
    with opened(browser, files["three"], viewport=narrow, color_scheme="dark") as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        look = """() => [document.documentElement, ...document.querySelectorAll(".panel")]
          .map((one) => getComputedStyle(one)).map((one) => [one.backgroundColor, one.color])"""
        dark, before = page.evaluate(look), ink(page)
        page.click("#theme")
        assert all(a != b for a, b in zip(dark, page.evaluate(look), strict=True))
        assert ink(page) == before, "the style sheet does it"


def test_without_javascript_words_and_tables_are_there(
    browser: Any, files: dict[str, Path]
) -> None:
    with opened(browser, files["one"], java_script_enabled=False) as page:
        assert "dessilbi figures" in page.inner_text("main")
        assert not page.is_visible("#controls")
        assert page.locator("table").count() >= 4
