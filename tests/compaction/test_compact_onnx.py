"""Export: one file, any batch size, the same numbers in onnxruntime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from compaction_nets import NETS, filter_mask, lab_net, masked, randomize, relative
from dessilbi.compaction import compact, export_onnx, run_onnx

if TYPE_CHECKING:
    from pathlib import Path

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="export needs dessilbi[compact]")

pytestmark = [
    pytest.mark.filterwarnings("ignore:nothing was removed"),
    # onnxscript and copyreg, not this package, use what is deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def test_a_compact_residual_network(tmp_path: Path) -> None:
    """With carriers and scattered sums."""
    model = randomize(NETS["residual"][0]())
    mask = filter_mask(model, 0.5)
    small = compact(
        model,
        mask,
        torch.zeros(1, 3, 16, 16),
        streams="scatter",
        channels_last=True,
        latency=False,
    )
    assert small.report.scattered
    size = export_onnx(small.model, tmp_path / "small.onnx", torch.zeros(1, 3, 16, 16))
    assert size == (tmp_path / "small.onnx").stat().st_size
    assert [f.name for f in tmp_path.iterdir()] == ["small.onnx"]
    run = run_onnx(tmp_path / "small.onnx", threads=1)
    for batch in (1, 2, 7):
        x = torch.randn(batch, 3, 16, 16)
        with torch.no_grad():
            assert relative(run(x), [small.model(x)]) <= 1e-5
        assert relative(run(x), masked(model, mask, x)) <= 1e-5
    assert small.model.get_parameter("stem.weight").is_contiguous(memory_format=torch.channels_last)


def test_the_file_shrinks_with_the_parameters(tmp_path: Path) -> None:
    model = randomize(lab_net("conv-4", 8, 3))
    small = compact(model, filter_mask(model, 0.8), torch.zeros(1, 3, 8, 8), latency=False)
    dense = export_onnx(model, tmp_path / "dense.onnx", torch.zeros(1, 3, 8, 8))
    cut = export_onnx(small.model, tmp_path / "small.onnx", torch.zeros(1, 3, 8, 8))
    report = small.report
    assert dense - cut == pytest.approx(report.dense.bytes - report.compact.bytes, 0.02)


@pytest.mark.parametrize(
    "name",
    [
        "hardcoded",
        pytest.param("separable", marks=pytest.mark.slow),
        pytest.param("dense", marks=pytest.mark.slow),
    ],
)
def test_other_networks(name: str, tmp_path: Path) -> None:
    make, shape = NETS[name]
    model = randomize(make())
    mask = filter_mask(model, 0.5)
    small = compact(model, mask, torch.zeros(1, *shape), latency=False)
    export_onnx(small.model, tmp_path / "small.onnx", torch.zeros(1, *shape))
    x = torch.randn(3, *shape)
    assert relative(run_onnx(tmp_path / "small.onnx")(x), masked(model, mask, x)) <= 1e-5
