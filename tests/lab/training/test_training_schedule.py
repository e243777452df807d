"""The rate at each step, against torch's own schedulers; resuming; the edges."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler

from dessilbi import DessiLBI
from dessilbi.lab.run.config import Config, ConfigError, ScheduleConfig, StartConfig
from dessilbi.lab.training.schedule import lr_factor, run_factor, set_lr
from dessilbi.paper.optimizers import AdaBound


def factors(config, *, steps_per_epoch, epochs, steps=None):
    steps = steps_per_epoch * epochs if steps is None else steps
    return [
        lr_factor(config, step=s, steps_per_epoch=steps_per_epoch, epochs=epochs)
        for s in range(steps)
    ]


def torch_factors(make, count):
    """The rates that a scheduler of torch gives to an optimizer whose base rate is 1."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def each(values, times):
    return [value for value in values for _ in range(times)]


@pytest.mark.parametrize(
    "config",
    [
        ScheduleConfig(),
        ScheduleConfig(kind="multistep", milestones=(2, 3), warmup=1.5),
        ScheduleConfig(kind="cosine", warmup=0.5),
        ScheduleConfig(kind="linear", warmup=0.5, cooldown=2),
    ],
)
def test_the_factor_of_a_run_is_the_sum_of_those_of_its_steps(config):
    run = Config(schedule=config, epochs=4)
    every = factors(config, steps_per_epoch=5, epochs=4)
    assert run_factor(run, 5) == pytest.approx(sum(every), rel=1e-14)
    start = StartConfig(parent="p", mask="m", weights="init", epoch=1)
    rewound = replace(run, epochs=3, start=start)
    assert run_factor(rewound, 5) == pytest.approx(sum(every[5:]), rel=1e-14)
    assert run_factor(replace(run, epochs=0), 5) == 0


def test_linear_is_torchs_linear_lr():
    expected = torch_factors(lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, 40), 40)
    config = ScheduleConfig(kind="linear")
    assert factors(config, steps_per_epoch=5, epochs=8) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("warmup", "cooldown"), [(2, None), (0.6, 3), (2, 8), (0, 0.4)])
def test_linear_is_a_one_cycle_or_a_trapezoid(warmup, cooldown):
    """The corners, joined by lines: a rise to the w-th step, a fall from the c-th last one."""
    config = ScheduleConfig(kind="linear", warmup=warmup, cooldown=cooldown)
    rise, end = round(5 * warmup), 50
    fall = end - rise if cooldown is None else round(5 * cooldown)
    steps = np.arange(end)
    climbs = np.interp(steps, [-1, rise - 1], [0, 1]) if rise else np.ones(end)
    falls = np.interp(steps, [end - fall, end], [1, 0])
    found = factors(config, steps_per_epoch=5, epochs=10, steps=end)
    assert found == pytest.approx(climbs * falls, rel=1e-12)
    assert factors(config, steps_per_epoch=5, epochs=10, steps=60)[50:] == [0] * 10
    assert max(found) == 1


def test_a_cooldown_is_for_linear_only():
    config = ScheduleConfig(kind="cosine", cooldown=2)
    with pytest.raises(ConfigError, match=r"cooldown is for kind='linear', got 2 with 'cosine'"):
        factors(config, steps_per_epoch=5, epochs=10)
    config = ScheduleConfig(kind="linear", cooldown=-1)
    with pytest.raises(ConfigError, match=r"cooldown must be >= 0 and finite, got -1"):
        factors(config, steps_per_epoch=5, epochs=10)


def test_the_coupling_time_of_a_schedule_is_that_of_torchs_scheduler():
    """The library asks a scheduler what the lab knows by itself."""
    config = ScheduleConfig(kind="multistep", milestones=(2, 3))
    net = nn.Linear(3, 2)
    opt = DessiLBI(net.parameters(), lr=0.1, tau=7.0)
    scheduler = lr_scheduler.MultiStepLR(opt, [2, 3])
    opt.set_coupling_time(steps=20, scheduler=scheduler, every=5)
    nu = 0.1 * run_factor(Config(schedule=config, epochs=4), 5) / 7.0
    assert opt.param_groups[0]["nu"] == pytest.approx(nu, rel=1e-12)


def test_constant_is_one():
    assert factors(ScheduleConfig(), steps_per_epoch=3, epochs=4) == [1.0] * 12


@pytest.mark.parametrize(("step_size", "gamma"), [(1, 0.5), (3, 0.1), (30, 0.1)])
def test_step_is_torchs_step_lr(step_size, gamma):
    config = ScheduleConfig(kind="step", step_size=step_size, gamma=gamma)
    expected = torch_factors(lambda o: lr_scheduler.StepLR(o, step_size, gamma), 10)
    assert factors(config, steps_per_epoch=4, epochs=10) == pytest.approx(each(expected, 4))


@pytest.mark.parametrize("milestones", [(2, 5), (5, 2), (0, 3), (4, 4), (99,)])
def test_multistep_is_torchs_multi_step_lr_in_any_order(milestones):
    config = ScheduleConfig(kind="multistep", milestones=milestones, gamma=0.3)
    expected = torch_factors(lambda o: lr_scheduler.MultiStepLR(o, list(milestones), 0.3), 8)
    assert factors(config, steps_per_epoch=3, epochs=8) == pytest.approx(each(expected, 3))


def test_cosine_is_torchs_cosine_annealing_lr_step_by_step():
    expected = torch_factors(lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=20), 20)
    ours = factors(ScheduleConfig(kind="cosine"), steps_per_epoch=4, epochs=5)
    assert ours == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("warmup", [0.5, 1.0, 2.0, 2.5])
def test_warmup_is_torchs_linear_lr(warmup):
    w = int(warmup * 4)
    expected = torch_factors(
        lambda o: lr_scheduler.LinearLR(o, start_factor=1 / w, total_iters=w - 1), 20
    )
    ours = factors(ScheduleConfig(warmup=warmup), steps_per_epoch=4, epochs=5)
    assert ours == pytest.approx(expected)
    assert ours[0] == 1 / w
    assert ours[w - 1 :] == [1.0] * (20 - w + 1)


def test_cosine_starts_when_the_warmup_ends():
    config = ScheduleConfig(kind="cosine", warmup=1.0)
    ours = factors(config, steps_per_epoch=5, epochs=4)
    assert ours[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    expected = torch_factors(lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=15), 15)
    assert ours[5:] == pytest.approx(expected, abs=1e-12)


def test_drops_count_epochs_from_the_start_also_during_the_warmup():
    config = ScheduleConfig(kind="multistep", milestones=(1,), gamma=0.1, warmup=2.0)
    assert factors(config, steps_per_epoch=2, epochs=3) == pytest.approx(
        [0.25, 0.5, 0.075, 0.1, 0.1, 0.1]
    )


# ---------------------------------------------------------------------- the edges


@pytest.mark.parametrize("kind", ["constant", "step", "multistep", "cosine"])
def test_a_run_of_no_epochs_has_a_factor(kind):
    config = ScheduleConfig(kind=kind, milestones=(3,))
    assert lr_factor(config, step=0, steps_per_epoch=7, epochs=0) == 1.0


def test_after_the_end_cosine_stays_at_zero():
    ours = factors(ScheduleConfig(kind="cosine"), steps_per_epoch=2, epochs=3, steps=9)
    assert ours[6:] == [0.0] * 3
    assert ours[5] > 0


@pytest.mark.parametrize("kind", ["constant", "step", "cosine"])
def test_a_warmup_longer_than_the_run_ends_on_its_way_up(kind):
    config = ScheduleConfig(kind=kind, warmup=10.0)
    ours = factors(config, steps_per_epoch=2, epochs=3)
    assert ours == pytest.approx([(s + 1) / 20 for s in range(6)])


def test_a_warmup_shorter_than_a_step_is_none():
    assert factors(ScheduleConfig(warmup=0.01), steps_per_epoch=10, epochs=1) == [1.0] * 10


@given(
    kind=st.sampled_from(["constant", "step", "multistep", "cosine"]),
    warmup=st.floats(0, 20),
    gamma=st.floats(0.01, 1),
    step_size=st.integers(1, 40),
    milestones=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    steps_per_epoch=st.integers(1, 50),
    epochs=st.integers(0, 30),
    data=st.data(),
)
def test_factors_lie_between_0_and_1_and_never_rise_after_the_warmup(
    kind, warmup, gamma, step_size, milestones, steps_per_epoch, epochs, data
):
    config = ScheduleConfig(
        kind=kind,
        warmup=warmup,
        gamma=gamma,
        step_size=step_size,
        milestones=tuple(milestones),
    )
    total = steps_per_epoch * epochs
    step = data.draw(st.integers(0, max(total - 1, 0)))
    here, after = (
        lr_factor(config, step=s, steps_per_epoch=steps_per_epoch, epochs=epochs)
        for s in (step, step + 1)
    )
    assert 0 < here <= 1
    if step + 1 >= warmup * steps_per_epoch + 1:
        assert after <= here


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "exponential"}, "schedule.kind must be one of constant, step"),
        ({"warmup": -1.0}, "schedule.warmup must be >= 0"),
        ({"warmup": math.inf}, "schedule.warmup must be >= 0 and finite"),
        ({"gamma": -0.1}, "schedule.gamma must be >= 0"),
        ({"kind": "step", "step_size": 0}, "schedule.step_size must be >= 1, got 0"),
        ({"kind": "multistep"}, "needs milestones"),
        ({"kind": "multistep", "milestones": (3, -1)}, r"milestones must be >= 0, got \(3, -1\)"),
    ],
)
def test_unsound_schedules_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        lr_factor(ScheduleConfig(**options), step=0, steps_per_epoch=1, epochs=1)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"step": -1}, "step must be >= 0, got -1"),
        ({"steps_per_epoch": 0}, "steps_per_epoch must be >= 1, got 0"),
        ({"epochs": -2}, "epochs must be >= 0, got -2"),
    ],
)
def test_counts_out_of_range_are_refused(counts, words):
    with pytest.raises(ValueError, match=words):
        lr_factor(ScheduleConfig(), **{"step": 0, "steps_per_epoch": 1, "epochs": 1} | counts)


# ---------------------------------------------------------------------- set_lr


def two_groups():
    a, b = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    return torch.optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.1)


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def test_each_group_keeps_its_base_rate():
    optimizer = two_groups()
    for factor in (0.1, 0.5, 0.0, 1.0):
        set_lr(optimizer, factor)
        assert rates(optimizer) == [0.1 * factor, 0.5 * factor]
        assert [group["initial_lr"] for group in optimizer.param_groups] == [0.1, 0.5]


def test_a_group_added_later_has_its_own_base_rate():
    optimizer = two_groups()
    set_lr(optimizer, 0.1)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.3})
    set_lr(optimizer, 0.5)
    assert rates(optimizer) == [0.05, 0.25, 0.15]


def test_rates_that_are_tensors_change_in_place():
    lr = torch.tensor(0.1, dtype=torch.float64)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=lr)
    for factor in (0.5, 0.25):
        set_lr(optimizer, factor)
        assert optimizer.param_groups[0]["lr"] is lr
        assert float(lr) == pytest.approx(0.1 * factor)
    assert type(optimizer.param_groups[0]["initial_lr"]) is float


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.Adam, AdaBound, DessiLBI])
def test_a_loaded_optimizer_goes_on_from_its_base_rate(cls):
    config = ScheduleConfig(kind="cosine", warmup=1.0)

    def rate_at(optimizer, step):
        set_lr(optimizer, lr_factor(config, step=step, steps_per_epoch=5, epochs=4))
        return rates(optimizer)

    straight = cls([nn.Parameter(torch.ones(2, 2))], lr=0.2)
    for step in range(9):
        rate_at(straight, step)
    saved = copy.deepcopy(straight.state_dict())

    fresh = cls([nn.Parameter(torch.ones(2, 2))], lr=0.2)
    fresh.load_state_dict(saved)
    used = cls([nn.Parameter(torch.ones(2, 2))], lr=0.2)
    rate_at(used, 0)
    used.load_state_dict(saved)
    for step in range(9, 20):
        expected = rate_at(straight, step)
        assert rate_at(fresh, step) == expected
        assert rate_at(used, step) == expected


def test_a_state_saved_before_the_first_step_gives_the_base_rate():
    saved = two_groups().state_dict()
    optimizer = two_groups()
    set_lr(optimizer, 0.01)
    optimizer.load_state_dict(saved)
    set_lr(optimizer, 0.5)
    assert rates(optimizer) == [0.05, 0.25]
