"""Every implementation, every variant: a hundred steps beside the literal float64 reference."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compilers import needs_compiler
from dessilbi import DessiLBI
from dessilbi.optim._reference import Reference
from dessilbi.optim.prox import init_scale, size_scale

IMPLEMENTATIONS = [
    pytest.param({}, id="loop"),
    pytest.param({"foreach": True}, id="foreach"),
    pytest.param({"fused": True}, id="fused", marks=needs_compiler),
]

VARIANTS: dict[str, dict[str, Any]] = {
    "naive": {},
    "kappa": {"kappa": 4.0, "lambd": 0.02},
    "small kappa": {"kappa": 0.3},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "coupling in momentum": {"momentum": 0.9, "coupling": "momentum"},
    "coupling in nesterov": {"momentum": 0.9, "nesterov": True, "coupling": "momentum"},
    "l2": {"weight_decay": 0.01},
    "l2, momentum": {"weight_decay": 0.01, "momentum": 0.9},
    "l2, nesterov": {"weight_decay": 0.01, "momentum": 0.9, "nesterov": True},
    "paper's decay": {"weight_decay": 0.01, "decoupled_weight_decay": True},
    "paper": {
        "weight_decay": 0.01,
        "decoupled_weight_decay": True,
        "momentum": 0.9,
        "coupling": "momentum",
    },
    "maximize": {"maximize": True, "momentum": 0.5, "weight_decay": 0.1},
    "lambd 0": {"lambd": 0.0},
}

# (shape, penalty, group_dim)
TENSORS = [
    ((6, 4, 3, 3), "group_lasso", 0),
    ((6, 4, 3, 3), "group_lasso", 1),
    ((6, 4, 3, 3), "group_lasso", -1),
    ((5, 3, 7), "group_lasso", 2),
    ((2, 3, 2, 3, 2), "group_lasso", 0),
    ((7, 5), "lasso", 0),
    ((7, 5), "group_lasso", 0),
    ((7, 5), "group_lasso", 1),
    ((1, 5), "group_lasso", 0),
    ((9,), "lasso", 0),
    ((9,), "group_lasso", 0),
    ((9,), None, 0),
    ((4, 3), None, 0),
]


def noise(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


def side_by_side(
    options: dict[str, Any], how: dict[str, bool]
) -> tuple[list[nn.Parameter], list[Reference], DessiLBI]:
    """Every tensor as a parameter of one optimizer, and as a reference of its own."""
    params, references, groups = [], [], []
    for i, (shape, penalty, dim) in enumerate(TENSORS):
        W = noise(*shape, seed=i)
        params.append(nn.Parameter(W.clone()))
        references.append(Reference(W.clone(), penalty=penalty, group_dim=dim, **options))
        groups.append({"params": [params[-1]], "penalty": penalty, "group_dim": dim})
    return params, references, DessiLBI(groups, **options, **how)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_hundred_steps(how: dict[str, bool], variant: str) -> None:
    options = {"nu": 2.0, "lambd": 0.3, "lr": 0.1} | VARIANTS[variant]
    params, references, opt = side_by_side(options, how)
    entered = 0
    for k in range(100):
        for i, (p, reference) in enumerate(zip(params, references, strict=True)):
            # A gradient that depends on W, so that errors would feed back.
            p.grad = 0.1 * p.detach() + 0.3 * noise(*p.shape, seed=1000 * k + i)
            reference.step(0.1 * reference.W + 0.3 * noise(*p.shape, seed=1000 * k + i))
        opt.step()
        if k % 10 == 9:
            for p, reference in zip(params, references, strict=True):
                torch.testing.assert_close(p.detach(), reference.W, rtol=1e-11, atol=1e-12)
                if reference.penalty is not None:
                    Gamma = reference.Gamma
                    torch.testing.assert_close(opt.gamma(p), Gamma, rtol=1e-10, atol=1e-11)
                    entered += int((Gamma != 0).sum())
    assert entered > 0, "the test never reached the sparse part"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_steps_that_move_a_part(how: dict[str, bool], variant: str) -> None:
    options = {"nu": 2.0, "lambd": 0.3, "lr": 0.1} | VARIANTS[variant]
    params, references, opt = side_by_side(options, how)
    for k in range(30):
        moves = {}
        for i, (p, reference) in enumerate(zip(params, references, strict=True)):
            where = noise(*p.shape, seed=7000 + 100 * k + i) > 0.3
            if (i + k) % 5:  # some tensors as a whole, now and then
                moves[p] = where
            grad = 0.1 * p.detach() + 0.3 * noise(*p.shape, seed=1000 * k + i)
            p.grad = grad.clone()
            reference.step(grad, moves.get(p))
        opt.restrict(moves)
        opt.step()
    for p, reference in zip(params, references, strict=True):
        torch.testing.assert_close(p.detach(), reference.W, rtol=1e-11, atol=1e-12)
        if reference.penalty is not None:
            torch.testing.assert_close(opt.gamma(p), reference.Gamma, rtol=1e-10, atol=1e-11)
        if reference.buffer is not None:
            buffer = opt.state[p]["momentum_buffer"]
            torch.testing.assert_close(buffer, reference.buffer, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_what_the_loss_may_not_move_feels_the_coupling_only(how: dict[str, bool]) -> None:
    W = noise(6, 4, seed=0)
    p = nn.Parameter(W.clone())
    opt = DessiLBI([p], lr=0.1, nu=2.0, momentum=0.9, weight_decay=0.1, **how)
    p.grad = noise(6, 4, seed=1)
    opt.restrict({p: torch.zeros(6, 4, dtype=torch.bool)})
    opt.step()
    torch.testing.assert_close(p.detach(), W - 0.1 * W / 2.0, rtol=1e-14, atol=0)
    assert not opt.state[p]["momentum_buffer"].any()
    opt.restrict({})
    opt.step()
    assert opt.state[p]["momentum_buffer"].all()


def test_restrict_refuses_what_does_not_fit() -> None:
    p = nn.Parameter(torch.zeros(2, 3))
    opt = DessiLBI([p])
    with pytest.raises(ValueError, match=r"bool tensor of shape \(2, 3\)"):
        opt.restrict({p: torch.ones(3, 2, dtype=torch.bool)})
    with pytest.raises(ValueError, match=r"got torch\.float32"):
        opt.restrict({p: torch.ones(2, 3)})
    with pytest.raises(ValueError, match="does not hold"):
        opt.restrict({nn.Parameter(torch.zeros(1)): torch.ones(1, dtype=torch.bool)})


@pytest.mark.parametrize("scale", ["size", "init"])
@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_scaled_thresholds(how: dict[str, bool], scale: str) -> None:
    for i, (shape, penalty, dim) in enumerate(TENSORS):
        if penalty is None:
            continue
        W = noise(*shape, seed=i)
        if scale == "size":
            factor: Any = size_scale(penalty, W.shape, dim)
        else:
            factor = init_scale(penalty, W, dim)
        p = nn.Parameter(W.clone())
        kwargs: dict[str, Any] = {"penalty": penalty, "group_dim": dim, "nu": 2.0, "momentum": 0.9}
        opt = DessiLBI([p], lambd=0.2, lambd_scale=scale, **kwargs, **how)
        reference = Reference(W.clone(), lambd=0.2 * factor, **kwargs)
        for k in range(100):
            grad = noise(*shape, seed=1000 * k + i)
            p.grad = grad.clone()
            opt.step()
            reference.step(grad)
        torch.testing.assert_close(p.detach(), reference.W, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(opt.gamma(p), reference.Gamma, rtol=1e-10, atol=1e-11)
        assert torch.equal(opt.support(p), reference.Gamma != 0)


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_float32_stays_near_the_reference(how: dict[str, bool]) -> None:
    W = noise(16, 8, 3, 3, seed=0)
    p = nn.Parameter(W.float())
    options: dict[str, Any] = {"nu": 5.0, "lambd": 0.5, "momentum": 0.9, "weight_decay": 1e-3}
    opt = DessiLBI([p], **options, **how)
    reference = Reference(W.float().double(), penalty="group_lasso", **options)
    for k in range(100):
        grad = noise(*W.shape, seed=k, dtype=torch.float32)
        p.grad = grad
        opt.step()
        reference.step(grad.double())
    error = (p.detach() - reference.W).norm() / reference.W.norm()
    assert error < 1e-5


def test_first_momentum_step_is_the_gradient() -> None:
    """As torch.optim.SGD: the buffer starts as the gradient, not dampened."""
    p = nn.Parameter(torch.ones(3, dtype=torch.float64))
    p.grad = torch.full_like(p, 2.0)
    DessiLBI([p], lr=0.5, momentum=0.9).step()
    assert torch.equal(p.detach(), torch.zeros_like(p))
