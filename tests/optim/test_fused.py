"""The C++ kernel: memory layouts, threads, dtypes, and what happens when it cannot be built."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compilers import needs_compiler
from dessilbi import DessiLBI
from dessilbi.optim import _fused, native

OPTIONS: dict[str, Any] = {"nu": 2.0, "lambd": 0.3, "momentum": 0.9, "weight_decay": 0.01}


def step_both(W: Tensor, steps: int = 20, **options: Any) -> tuple[Tensor, Tensor]:
    """The same steps by loop and fused; gradients laid out unlike the weights."""
    results = []
    for fused in (False, True):
        p = nn.Parameter(W.clone(memory_format=torch.preserve_format))
        assert p.stride() == W.stride()
        opt = DessiLBI([p], fused=fused, **(OPTIONS | options))
        for k in range(steps):
            grad = torch.randn(W.shape, generator=torch.Generator().manual_seed(k))
            p.grad = grad.to(W.dtype)
            opt.step()
        results.append(p.detach())
    return results[0], results[1]


@needs_compiler
@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_layouts(dim: int) -> None:
    W = torch.randn(6, 5, 4, 3, dtype=torch.float64)
    layouts = {
        "contiguous": W,
        "channels_last": W.to(memory_format=torch.channels_last),
        "permuted": W.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2),
        "filters innermost": W.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    }
    for name, laid_out in layouts.items():
        loop, fused = step_both(laid_out, penalty="group_lasso", group_dim=dim)
        torch.testing.assert_close(fused, loop, rtol=1e-12, atol=1e-12, msg=lambda m, n=name: n + m)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_goes_through_the_loop(dtype: torch.dtype) -> None:
    loop, fused = step_both(torch.randn(4, 3, 2, 2).to(dtype))
    assert torch.equal(loop, fused)


@needs_compiler
def test_weights_with_holes_go_through_the_loop() -> None:
    base = torch.randn(8, 6, dtype=torch.float64)
    results = []
    for fused in (False, True):
        view = base.clone()[:, ::2].requires_grad_()
        opt = DessiLBI([view], fused=fused, **OPTIONS)
        for _ in range(5):
            view.grad = torch.ones_like(view)
            opt.step()
        results.append(view.detach())
    assert torch.equal(results[0], results[1])


@needs_compiler
@pytest.mark.parametrize("dim", [0, 1])
def test_the_number_of_threads_does_not_change_a_bit(dim: int) -> None:
    W = torch.randn(300, 400, 3, 3)  # over a million weights: enough for several threads
    threads, results = torch.get_num_threads(), []
    try:
        for n in (1, 2, 5):
            torch.set_num_threads(n)
            results.append(step_both(W, steps=3, group_dim=dim, lambd=5.0)[1])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@needs_compiler
def test_small_and_empty_tensors() -> None:
    shapes = [(0,), (), (1,), (0, 3), (3, 0), (1, 1, 1, 1), (2, 0, 3, 3)]
    params = [nn.Parameter(torch.ones(s)) for s in shapes]
    opt = DessiLBI(params, fused=True, **OPTIONS)
    for p in params:
        p.grad = torch.ones_like(p)
    for _ in range(3):
        opt.step()
    assert all(torch.isfinite(p).all() for p in params)
    assert params[1].item() < 1


@needs_compiler
def test_many_groups_fall_into_memory_layouts() -> None:
    size = torch.Size((6, 5, 4, 3))
    assert _fused.layout_in_memory(size, (60, 12, 3, 1), 0) == (1, 6, 60)
    assert _fused.layout_in_memory(size, (60, 12, 3, 1), 1) == (6, 5, 12)
    assert _fused.layout_in_memory(size, (60, 1, 15, 5), 1) == (72, 5, 1)  # channels_last
    assert _fused.layout_in_memory(size, (60, 12, 3, 1), None) == (1, 360, 1)
    assert _fused.layout_in_memory(size, (120, 24, 6, 2), 0) is None


@pytest.fixture
def rebuilt(monkeypatch: pytest.MonkeyPatch) -> Any:
    native.library.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    native.library.cache_clear()


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("no-such-compiler", "compiler 'no-such-compiler' not found; set CXX, or leave fused=None"),
        ("false", "building the fused kernel failed"),
    ],
)
def test_no_working_compiler(
    rebuilt: pytest.MonkeyPatch, tmp_path: Path, compiler: str, message: str
) -> None:
    rebuilt.setenv("CXX", compiler)
    rebuilt.setenv("DESSILBI_CACHE", str(tmp_path))
    with pytest.raises(native.KernelBuildError, match=message):
        native.library()


def test_no_compiler_at_all(rebuilt: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rebuilt.delenv("CXX", raising=False)
    rebuilt.setenv("PATH", str(tmp_path))
    with pytest.raises(native.KernelBuildError, match=r"needs a C\+\+17 compiler.*fused=None"):
        native.library()


@needs_compiler
def test_the_kernel_is_built_once_and_kept(rebuilt: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rebuilt.setenv("DESSILBI_CACHE", str(tmp_path))
    native.library()
    (kernel,) = (tmp_path / "kernels").iterdir()
    built = kernel.stat().st_mtime_ns
    native.library.cache_clear()
    native.library()
    assert [f.stat().st_mtime_ns for f in (tmp_path / "kernels").iterdir()] == [built]


@needs_compiler
def test_an_unwritable_cache_is_no_obstacle(rebuilt: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    rebuilt.setenv("DESSILBI_CACHE", str(in_the_way))
    rebuilt.setattr(native.tempfile, "tempdir", str(tmp_path))
    made = []
    build = native._build
    rebuilt.setattr(
        native, "_build", lambda path, command: made.append(path) or build(path, command)
    )
    for _ in range(2):
        native.library.cache_clear()
        native.library()
    # In a new folder each time: one whose name can be foreseen could hold another user's library.
    folders = {path.parent for path in made if path.parent.name.startswith("dessilbi-")}
    assert len(folders) == 2
    assert {folder.parent for folder in folders} == {tmp_path}
    assert not any(folder.exists() for folder in folders)


@needs_compiler
def test_a_damaged_kernel_is_built_again(rebuilt: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # In a process of its own: a library that is loaded already would not be read again.
    code = "from dessilbi.optim.native import library; library()"
    env = {**os.environ, "DESSILBI_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    (kernel,) = (tmp_path / "kernels").iterdir()
    whole = kernel.stat().st_size
    kernel.write_bytes(kernel.read_bytes()[:100])
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert kernel.stat().st_size == whole


@needs_compiler
def test_autograd_learns_of_the_step() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    opt = DessiLBI(net.parameters(), momentum=0.9, fused=True)
    loss = net(torch.ones(2, 3)).sum()
    loss.backward(retain_graph=True)
    versions = [p._version for p in net.parameters()]
    opt.step()
    assert all(p._version > v for p, v in zip(net.parameters(), versions, strict=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
