"""Draw ``report.png``, ``report_dark.png`` and ``report_narrow.png``: the page of a run.

    dessilbi train digits --keep 0 2 4 8 16
    dessilbi frontier runs/digits-...
    python docs/pictures/report.py runs/digits-...

Needs Chromium and playwright. The slider stands at epoch 8, filter 6 of the second layer is
highlighted.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from dessilbi.report import write_report

HERE = Path(__file__).parent
READY = "document.documentElement.dataset.ready === '1'"
CHOOSE = """() => {
  const { report, change } = window.dessilbiReport;
  const layers = report.runs[0].path.layers;
  const layer = layers.findIndex((one) => one.short === "conv2");
  change({ layer, epoch: 8, unit: layers[layer].start + 6 });
}"""
SHOTS = {  # viewport, colours, how much of the page
    "report": ((1240, 900), "light", 3350),
    "report_dark": ((1240, 900), "dark", 1420),
    "report_narrow": ((390, 800), "light", 1500),
}


def main() -> None:
    """Open the page in three ways."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        file = write_report(sys.argv[1:], Path(folder) / "report.html")
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, ((width, height), scheme, part) in SHOTS.items():
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=True
            )
            page.goto(file.as_uri())
            page.wait_for_function(READY)
            page.evaluate(CHOOSE)
            page.wait_for_timeout(300)
            clip = {"x": 0, "y": 0, "width": width, "height": part}
            page.screenshot(path=HERE / f"{name}.png", full_page=True, clip=clip)
        browser.close()


if __name__ == "__main__":
    main()
