"""Each proximal map against brute force, and against the identities it must satisfy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dessilbi.optim.prox import GroupLasso, Lasso, Penalty, init_scale, resolve_penalty, size_scale

thresholds = st.floats(0, 3, allow_subnormal=False)
seeds = st.integers(0, 2**31)


def tensor(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def objective(penalty: Penalty, G: Tensor, V: Tensor) -> float:
    return float(0.5 * (G - V).square().sum() + penalty.value(G))


@given(v=st.floats(-5, 5), lambd=thresholds)
def test_lasso_prox_minimises_on_a_grid(v: float, lambd: float) -> None:
    V = torch.tensor([v], dtype=torch.float64)
    found = objective(Lasso(lambd), Lasso(lambd).prox(V), V)
    grid = torch.cat([torch.linspace(-5, 5, 4001, dtype=torch.float64), torch.zeros(1)])
    best = (0.5 * (grid - v).square() + lambd * grid.abs()).min()
    assert found <= float(best) + 1e-12


@given(seed=seeds, lambd=thresholds)
def test_group_prox_minimises_on_a_grid(seed: int, lambd: float) -> None:
    V = tensor(seed, 1, 2)
    found = objective(GroupLasso(lambd), GroupLasso(lambd).prox(V), V)
    axis = torch.cat([torch.linspace(-4, 4, 161, dtype=torch.float64), torch.zeros(1)])
    grid = torch.cartesian_prod(axis, axis)
    best = (0.5 * (grid - V).square().sum(1) + lambd * grid.norm(dim=1)).min()
    assert found <= float(best) + 1e-12


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("lambd", [0.0, 0.7, 2.0])
def test_no_step_in_any_direction_improves_on_the_prox(dim: int, lambd: float) -> None:
    V = tensor(dim, 4, 3, 2)
    for penalty in (Lasso(lambd), GroupLasso(lambd, dim)):
        G = penalty.prox(V)
        least = objective(penalty, G, V)
        for seed in range(50):  # the objective is convex: a local minimum is the minimum
            step = tensor(seed, 4, 3, 2)
            for size in (1.0, 1e-2, 1e-4):
                assert objective(penalty, G + size * step, V) >= least - 1e-13


@given(seed=seeds, lambd=thresholds)
def test_moreau_identity(seed: int, lambd: float) -> None:
    """``V = prox(V) + projection on the ball of the dual norm``, the projection by other means."""
    V = tensor(seed, 5, 4)
    box = torch.from_numpy(np.clip(V.numpy(), -lambd, lambd))
    torch.testing.assert_close(Lasso(lambd).prox(V) + box, V, rtol=0, atol=1e-14)
    rows = [row * min(1.0, lambd / float(row.norm())) for row in V]
    torch.testing.assert_close(GroupLasso(lambd).prox(V) + torch.stack(rows), V, rtol=0, atol=1e-14)


@given(seed=seeds, lambd=thresholds, dim=st.integers(-3, 2))
def test_support_is_where_the_prox_is_not_zero(seed: int, lambd: float, dim: int) -> None:
    V = tensor(seed, 3, 4, 2)
    for penalty in (Lasso(lambd), GroupLasso(lambd, dim)):
        assert torch.equal(penalty.support(V), penalty.prox(V) != 0)


@pytest.mark.parametrize("lambd", [0.0, 1.0])
def test_zero_groups_stay_zero_without_nan(lambd: float) -> None:
    V = torch.zeros(3, 2, dtype=torch.float64)
    for penalty in (Lasso(lambd), GroupLasso(lambd, 0), GroupLasso(lambd, 1)):
        assert torch.equal(penalty.prox(V), V)
        assert not penalty.support(V).any()
        assert float(penalty.value(V)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_norm_just_above_the_threshold_is_in(dtype: torch.dtype) -> None:
    for lambd in (1.0, 0.3, 7.3):
        edge = torch.tensor([[lambd]], dtype=dtype)
        above = torch.nextafter(edge, torch.full_like(edge, math.inf))
        for penalty in (Lasso(lambd), GroupLasso(lambd)):
            assert not penalty.support(edge).any()
            assert penalty.support(above).all()
            assert (penalty.prox(above) != 0).all()


def test_one_threshold_a_group() -> None:
    V = tensor(0, 3, 4)
    lambds = torch.tensor([0.5, 1.0, 100.0], dtype=torch.float64)
    by_rows = GroupLasso(lambds.view(3, 1)).prox(V)
    for i, lambd in enumerate(lambds):
        torch.testing.assert_close(by_rows[i : i + 1], GroupLasso(float(lambd)).prox(V[i : i + 1]))
    assert GroupLasso(lambds.view(3, 1)).active(V).tolist() == [True, True, False]


def test_gap_is_weight_minus_gamma() -> None:
    W, V = tensor(1, 3, 4), tensor(2, 3, 4)
    for penalty in (Lasso(0.3), GroupLasso(1.0, 1)):
        torch.testing.assert_close(penalty.gap(W, V, 2.5), W - 2.5 * penalty.prox(V))


def test_auto_penalty_is_the_papers() -> None:
    kinds = [resolve_penalty("auto", ndim) for ndim in range(6)]
    assert kinds == [None, None, "lasso", "group_lasso", "group_lasso", "group_lasso"]


def test_scales() -> None:
    W = tensor(3, 4, 3, 2, 2)
    assert size_scale("group_lasso", W.shape, 0) == pytest.approx(math.sqrt(12))
    assert size_scale("group_lasso", W.shape, 1) == pytest.approx(math.sqrt(16))
    assert size_scale("lasso", W.shape, 0) == 1
    torch.testing.assert_close(init_scale("group_lasso", W, 0).flatten(), W.flatten(1).norm(dim=1))
    torch.testing.assert_close(init_scale("lasso", W, 0), W.square().mean().sqrt())
    W[2] = 0  # a zero-initialised filter gets the typical threshold, not 0
    norms = W.flatten(1).norm(dim=1)
    scale = init_scale("group_lasso", W, 0).flatten()
    torch.testing.assert_close(scale[2], norms.square().mean().sqrt())
    assert torch.equal(scale[[0, 1, 3]], norms[[0, 1, 3]])
