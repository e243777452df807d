"""The page of a large run in a browser: size, time to load, and how fast the slider answers.

    python benchmarks/report.py [--rounds 20] [--json out.json]

A synthetic run of VGG-16 over 160 epochs, its 4,224 filters entering one after another, with
weights at a few kept epochs; headless Chromium without a GPU. Loading ends when every panel is
drawn. The slider's answer is the time from its event to the second frame after it: by then every
panel has been drawn anew.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from dessilbi import DessiLBI, split_parameters
from dessilbi.lab.models import make_model
from dessilbi.lab.run.checkpoint import Progress, make_checkpoint
from dessilbi.lab.run.config import Config, DataConfig, ModelConfig
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.files import LAST, PATH
from dessilbi.path import PathRecorder
from dessilbi.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Page

EPOCHS, STEPS_AN_EPOCH = 160, 391
KEPT = (0, 40, 160)
LARGEST_FILE, LONGEST_LOAD, LONGEST_ANSWER = 15e6, 4.0, 100.0

_MOVE = """async (place) => {
  const slider = document.getElementById("epoch");
  const start = performance.now();
  slider.value = place;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  for (let i = 0; i < 2; i++) await new Promise((done) => requestAnimationFrame(done));
  return performance.now() - start;
}"""


def synthetic_run(runs: Path, network: str = "vgg-16", epochs: int = EPOCHS) -> RunDir:
    """A run directory with noisy norms that rise and fall, and filters that enter over time."""
    config = Config(
        name=f"{network}-synthetic",
        data=DataConfig(name="cifar10"),
        model=ModelConfig(name=network),
        epochs=epochs,
        keep=tuple(e for e in KEPT if e <= epochs),
    )
    run = RunDir.of(config, runs)
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    model = make_model(network, num_classes=10, in_channels=3, input_size=32)
    opt = DessiLBI(split_parameters(model), lr=0.1)
    recorder = PathRecorder(model, opt)
    path = recorder.path
    recorder.record(0, loss=2.3)
    for _, p in opt.twins():  # for the kept epochs, and for norms that are not zero
        opt.state[p]["v"] = torch.rand_like(p) - 0.5
    lively = np.array([[1.0], [0.1], [0.9]], dtype=np.float32) * path.snapshots[0].norms[:1]
    exact = np.concatenate([np.full(layer.groups, layer.exact) for layer in path.layers])
    enters = np.where(rng.random(path.groups) < 0.7, rng.integers(1, epochs + 1, path.groups), -1)
    rows = path.snapshots[0].norms.shape[1]
    walk = np.ones((3, rows), dtype=np.float32)
    for epoch in range(1, epochs + 1):
        walk *= 1 + 0.02 * rng.standard_normal((3, rows)).astype(np.float32)
        new = np.flatnonzero((enters == epoch) & exact)
        for place, group in enumerate(new):
            step = (epoch - 1) * STEPS_AN_EPOCH + 1 + place * (STEPS_AN_EPOCH - 1) // len(new)
            path.event_log.append(step, np.array([group]), np.array([True]))
        path.step = epoch * STEPS_AN_EPOCH
        inside = (enters > 0) & (enters <= epoch)
        path.supports.append(inside)
        counts = [int(inside[one.slice].sum()) * one.group_size for one in path.layers]
        mark = replace(
            path.snapshots[0], epoch=epoch, step=path.step, norms=lively * walk,
            counts=np.array(counts, dtype=np.int64), loss=2.3 / epoch,
        )  # fmt: skip
        path.snapshots.append(mark)
        density = sum(counts) / sum(one.numel for one in path.layers)
        run.append("metrics.jsonl", {
            "epoch": epoch, "judged_on": "test", "loss": 2.0 / epoch, "accuracy": 93 - 60 / epoch,
            "sparse_accuracy": 90 - 80 / epoch, "recalibrated_accuracy": 92 - 80 / epoch,
            "density": density, "train_loss": 2.3 / epoch, "train_accuracy": 99.0, "lr": 0.1,
        })  # fmt: skip
    path.save(run.path / PATH)
    for epoch in KEPT:
        if epoch <= epochs:
            run.save(f"checkpoint-{epoch}", make_checkpoint(model, opt, Progress(epoch=epoch)))
    run.save(LAST, make_checkpoint(model, opt, Progress(epoch=epochs)))
    return run


def ready(page: Page) -> float:
    """Seconds until every panel is drawn, by the page's own clock."""
    page.wait_for_function("document.documentElement.dataset.ready === '1'", timeout=60_000)
    return float(page.evaluate("performance.now()")) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--browser", default="chromium", help="a command or a path")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    import shutil

    from playwright.sync_api import sync_playwright

    torch.set_num_threads(1)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = synthetic_run(Path(folder))
        start = time.perf_counter()
        file = write_report([run.path])
        found["write_seconds"] = time.perf_counter() - start
        found["megabytes"] = file.stat().st_size / 1e6
        with sync_playwright() as play:
            browser = play.chromium.launch(
                executable_path=shutil.which(args.browser), args=["--no-sandbox"]
            )
            loads, answers = [], []
            for _ in range(3):
                page = browser.new_page(viewport={"width": 1280, "height": 900}, bypass_csp=True)
                page.goto(file.as_uri())
                loads.append(ready(page))
            places = np.random.default_rng(0).integers(0, EPOCHS, args.rounds)
            answers = [float(page.evaluate(_MOVE, int(place))) for place in places]
            browser.close()
    found["load_seconds"] = statistics.median(loads)
    found["slider_median_ms"] = statistics.median(answers)
    found["slider_worst_ms"] = max(answers)
    print(f"VGG-16, {EPOCHS} epochs, headless Chromium")
    for name, value, most in (
        ("megabytes", found["megabytes"], LARGEST_FILE / 1e6),
        ("load_seconds", found["load_seconds"], LONGEST_LOAD),
        ("slider_median_ms", found["slider_median_ms"], LONGEST_ANSWER),
        ("slider_worst_ms", found["slider_worst_ms"], LONGEST_ANSWER),
    ):
        print(f"{name:20}{value:10.2f}   limit {most:g}{'' if value < most else '   above!'}")
    print(f"{'write_seconds':20}{found['write_seconds']:10.2f}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
