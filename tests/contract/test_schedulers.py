"""Every scheduler of torch: the scheduled lr (and momentum) is the one that acts on W and V."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from contract_problems import (
    IMPLEMENTATIONS,
    LIVELY,
    assert_same,
    make_grads,
    make_params,
    make_reference,
    state_of,
)
from torch.optim import lr_scheduler as torch_schedulers
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.optim.swa_utils import SWALR

from dessilbi.optim import DessiLBI, SplitLBI, TwinOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

STEPS = 10

SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "LambdaLR": lambda o: LambdaLR(o, lambda k: k / 4),  # starts at lr 0
    "MultiplicativeLR": lambda o: MultiplicativeLR(o, lambda k: 0.9),
    "StepLR": lambda o: StepLR(o, step_size=3, gamma=0.5),
    "MultiStepLR": lambda o: MultiStepLR(o, milestones=[2, 5], gamma=0.1),
    "ConstantLR": lambda o: ConstantLR(o, factor=0.3, total_iters=4),
    "LinearLR": lambda o: LinearLR(o, start_factor=0.1, total_iters=5),
    "ExponentialLR": lambda o: ExponentialLR(o, gamma=0.8),
    "PolynomialLR": lambda o: PolynomialLR(o, total_iters=8, power=2.0),  # ends at lr 0
    "CosineAnnealingLR": lambda o: CosineAnnealingLR(o, T_max=5, eta_min=0.001),
    "CosineAnnealingWarmRestarts": lambda o: CosineAnnealingWarmRestarts(o, T_0=3, T_mult=2),
    "CyclicLR": lambda o: CyclicLR(o, 0.01, 0.2, step_size_up=3, base_momentum=0.5),
    "CyclicLR_fixed_momentum": lambda o: CyclicLR(o, 0.01, 0.2, 3, cycle_momentum=False),
    "CyclicLR_momentum_to_zero": lambda o: CyclicLR(o, 0.01, 0.2, 3, base_momentum=0.0),
    "OneCycleLR": lambda o: OneCycleLR(o, max_lr=0.2, total_steps=STEPS + 1),
    "ReduceLROnPlateau": lambda o: ReduceLROnPlateau(o, factor=0.5, patience=1),
    "SequentialLR": lambda o: SequentialLR(
        o, [LinearLR(o, 0.1, total_iters=3), ExponentialLR(o, 0.5)], milestones=[4]
    ),
    "ChainedScheduler": lambda o: ChainedScheduler(
        [ConstantLR(o, 0.1, total_iters=4), ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: SWALR(o, swa_lr=0.03, anneal_epochs=4),
}
VARYING_MOMENTUM = {"CyclicLR", "CyclicLR_momentum_to_zero", "OneCycleLR"}


def test_no_scheduler_of_torch_is_left_out() -> None:
    """A scheduler that a later torch adds shows up here."""
    known = {
        name
        for name, cls in vars(torch_schedulers).items()
        if isinstance(cls, type)
        and issubclass(cls, (torch_schedulers.LRScheduler, ReduceLROnPlateau))
        and not name.startswith("_")
        and name != "LRScheduler"
    }
    assert known <= SCHEDULERS.keys()


@pytest.mark.parametrize("tensor_lr", [False, True], ids=["float_lr", "tensor_lr"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduled_lr_acts_on_w_and_v(
    name: str, implementation: dict[str, Any], tensor_lr: bool
) -> None:
    """Against the literal iteration, its lr and momentum set by hand from the schedule."""
    options: dict[str, Any] = {**LIVELY, "momentum": 0.9, "weight_decay": 0.05, "kappa": 2.0}
    params = list(make_params().values())
    truths = [make_reference(p, options) for p in params]
    if tensor_lr:
        options["lr"] = torch.tensor(options["lr"], dtype=torch.float64)
    opt = DessiLBI(params, **options, **implementation)
    scheduler = SCHEDULERS[name](opt)

    lrs, momenta = [], []
    for k in range(STEPS):
        group = opt.param_groups[0]
        lrs.append(float(group["lr"]))
        momenta.append(group["momentum"])
        for p, truth, grad in zip(params, truths, make_grads(params, k), strict=True):
            p.grad = grad
            truth.lr, truth.momentum = lrs[-1], momenta[-1]
            truth.step(grad)
        opt.step()
        for p, truth in zip(params, truths, strict=True):
            torch.testing.assert_close(p.detach(), truth.W, rtol=1e-12, atol=1e-12)
            if truth.penalty is not None:
                torch.testing.assert_close(opt.state[p]["v"], truth.V, rtol=1e-12, atol=1e-12)
                torch.testing.assert_close(opt.gamma(p), truth.Gamma, rtol=1e-12, atol=1e-12)
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step(1.0)
        else:
            scheduler.step()
    assert len(set(lrs)) > 1, "the schedule never changed lr"
    assert isinstance(opt.param_groups[0]["lr"], torch.Tensor) == tensor_lr
    assert (len(set(momenta)) > 1) == (name in VARYING_MOMENTUM)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_what_a_scheduler_leaves_in_the_groups_is_no_mistake(name: str) -> None:
    opt = DessiLBI(make_params().values(), momentum=0.9)
    SCHEDULERS[name](opt)
    again = DessiLBI(opt.param_groups)
    assert again.param_groups[0]["momentum"] == opt.param_groups[0]["momentum"]


def test_each_group_has_its_own_schedule() -> None:
    params = list(make_params().values())
    groups = [{"params": [params[0]], "lr": 0.1}, {"params": [params[1]], "lr": 0.2}]
    opt = DessiLBI(groups, nu=2.0)
    scheduler = LambdaLR(opt, [lambda k: 1.0, lambda k: 0.5**k])
    truths = [make_reference(p, {"nu": 2.0}) for p in params[:2]]
    for k in range(4):
        for p, truth, grad, lr in zip(
            params, truths, make_grads(params[:2], k), (0.1, 0.2 * 0.5**k), strict=False
        ):
            p.grad, truth.lr = grad, lr
            truth.step(grad)
        opt.step()
        scheduler.step()
    for p, truth in zip(params, truths, strict=False):
        torch.testing.assert_close(p.detach(), truth.W)


def test_scheduler_resumes_with_its_optimizer() -> None:
    """State dicts of both, saved mid-schedule, continue the same lr."""
    params = list(make_params().values())
    opt = DessiLBI(params, lr=0.1, momentum=0.9)
    schedule = OneCycleLR(opt, max_lr=0.2, total_steps=8)
    for _ in range(3):
        opt.step()
        schedule.step()
    other = DessiLBI(list(make_params().values()), lr=0.1, momentum=0.9)
    resumed = OneCycleLR(other, max_lr=0.2, total_steps=8)
    other.load_state_dict(opt.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    for _ in range(4):
        for o, s in ((opt, schedule), (other, resumed)):
            o.step()
            s.step()
        assert opt.param_groups[0]["lr"] == other.param_groups[0]["lr"]
        assert opt.param_groups[0]["momentum"] == other.param_groups[0]["momentum"]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_moves_a_twin_and_its_base(name: str) -> None:
    """Given to either of them, and with the betas of AdamW where it cycles them."""
    found = []
    for inside in (True, False):
        params = make_params()
        base = torch.optim.AdamW(params.items(), lr=0.05)
        opt = SplitLBI(base, nu=1.0, lambd=0.3)
        scheduler = SCHEDULERS[name](base if inside else opt)
        lrs = []
        for k in range(STEPS):
            lrs.append(float(opt.param_groups[0]["lr"]))
            for p, grad in zip(params.values(), make_grads(params.values(), k), strict=True):
                p.grad = grad
            opt.step()
            scheduler.step(*([1.0] if isinstance(scheduler, ReduceLROnPlateau) else []))
        found.append((lrs, state_of(opt)))
    assert len(set(found[0][0])) > 1
    assert found[0][0] == found[1][0]
    assert_same(found[0][1], found[1][1])


NOT_DRY = {"ReduceLROnPlateau"}  # depends on the losses


@pytest.mark.parametrize("name", sorted(SCHEDULERS.keys() - NOT_DRY))
@pytest.mark.parametrize("base", [None, "adamw"])
def test_the_coupling_time_is_that_of_the_scheduled_rates(name: str, base: str | None) -> None:
    """And asking for it leaves the schedule where it is."""
    opt: TwinOptimizer = DessiLBI(make_params().items(), lr=0.05, momentum=0.9, tau=4.0)
    if base is not None:
        opt = SplitLBI(torch.optim.AdamW(make_params().items(), lr=0.05), tau=4.0)
    scheduler = SCHEDULERS[name](opt)
    opt.set_coupling_time(steps=STEPS, scheduler=scheduler)
    total = 0.0
    for k in range(STEPS):
        total += float(opt.param_groups[0]["lr"])
        for group in opt.param_groups:
            for p, grad in zip(group["params"], make_grads(group["params"], k), strict=True):
                p.grad = grad
        opt.step()
        scheduler.step()
    assert total / opt.param_groups[0]["nu"] == pytest.approx(4.0, rel=1e-12)
