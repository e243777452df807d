"""Wrong arguments: the error names argument, rule, value and way out."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dessilbi import DessiLBI


def conv() -> nn.Parameter:
    return nn.Parameter(torch.ones(2, 3, 2, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kappa": 0.0}, r"kappa must be > 0, got 0.0"),
        ({"kappa": -1.0}, r"kappa must be > 0, got -1.0"),
        ({"kappa": float("inf")}, r"kappa must be finite, got inf"),
        ({"kappa": float("nan")}, r"kappa must be > 0, got nan"),
        ({"nu": 0}, r"nu must be > 0, got 0"),
        ({"nu": -2.5}, r"nu must be > 0, got -2.5"),
        ({"lambd": -0.1}, r"lambd must be >= 0 and finite, got -0.1"),
        ({"lambd": "1"}, r"lambd must be >= 0 and finite, got '1'"),
        ({"lambd": torch.tensor(1.0)}, r"lambd must be a number, not a tensor, got tensor\(1.\)"),
        ({"lr": -0.1}, r"lr must be >= 0 and finite, got -0.1"),
        ({"lr": torch.tensor(-0.1)}, r"lr must be >= 0 and finite"),
        ({"lr": torch.ones(2)}, r"lr must be a number or a one-element tensor, got shape \(2,\)"),
        ({"momentum": -0.9}, r"momentum must be >= 0 and finite, got -0.9"),
        ({"weight_decay": -1e-4}, r"weight_decay must be >= 0 and finite, got -0.0001"),
        ({"nesterov": True}, r"nesterov=True needs momentum > 0.*set momentum=0.9"),
        (
            {"penalty": "l1"},
            r"penalty must be 'auto', 'lasso', 'group_lasso', None or .* got 'l1'",
        ),
        ({"coupling": "loose"}, r"coupling must be 'direct' or 'momentum', got 'loose'"),
        ({"lambd_scale": "norm"}, r"lambd_scale must be None, 'size' or 'init', got 'norm'"),
        (
            {"group_dim": 4},
            r"group_dim must be in \[-4, 3\] for parameter 0 of shape \(2, 3, 2, 2\)",
        ),
        ({"group_dim": 0.5}, r"group_dim must be an integer .*, got 0.5"),
        ({"foreach": True, "fused": True}, r"foreach and fused cannot both be True"),
    ],
    ids=str,
)
def test_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DessiLBI([conv()], **options)


def test_the_same_rules_hold_by_group() -> None:
    with pytest.raises(ValueError, match=r"kappa must be > 0, got -1 \(parameter group 1\)"):
        DessiLBI([{"params": [conv()]}, {"params": [conv()], "kappa": -1}])
    opt = DessiLBI([conv()])
    with pytest.raises(ValueError, match=r"nu must be > 0, got 0 \(parameter group 1\)"):
        opt.add_param_group({"params": [conv()], "nu": 0})
    assert len(opt.param_groups) == 1, "a refused group leaves nothing behind"


def test_group_dim_is_checked_only_where_it_acts() -> None:
    matrix = nn.Parameter(torch.ones(2, 3))
    DessiLBI([matrix], group_dim=2)  # by element: no groups
    with pytest.raises(ValueError, match=r"group_dim must be in \[-2, 1\] for parameter 'fc'"):
        DessiLBI([("fc", matrix)], group_dim=2, penalty="group_lasso")


def test_a_number_has_no_groups() -> None:
    with pytest.raises(ValueError, match="group_lasso needs at least one dimension"):
        DessiLBI([nn.Parameter(torch.tensor(1.0))], penalty="group_lasso")


def test_numpy_numbers_are_numbers() -> None:
    opt = DessiLBI([conv()], kappa=np.float32(2.0), group_dim=np.int64(1))
    assert (opt.param_groups[0]["kappa"], opt.param_groups[0]["group_dim"]) == (2, 1)


def test_state_of_another_parameter_is_refused() -> None:
    p, q = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3, 2))
    p.grad = torch.ones_like(p)
    opt = DessiLBI([p])
    opt.step()
    with pytest.raises(ValueError, match=r"v of shape \(2, 3\) was saved for another parameter"):
        DessiLBI([q]).load_state_dict(opt.state_dict())


def test_misspelt_option_in_a_group() -> None:
    with pytest.raises(ValueError, match=r"unknown option 'lamda'.*did you mean 'lambd'"):
        DessiLBI([{"params": [conv()], "lamda": 0.1}])
    DessiLBI([{"params": [conv()], "name": "features", "initial_lr": 0.1}])  # other keys are free


def test_empty_groups_and_duplicates() -> None:
    with pytest.raises(ValueError, match="empty"):
        DessiLBI([])
    with pytest.raises(ValueError, match="parameter group 1 is empty; leave it out"):
        DessiLBI([{"params": [conv()]}, {"params": []}])
    p = conv()
    with pytest.raises(ValueError, match="appears twice in parameter group 0"):
        DessiLBI([p, p])
    with pytest.raises(ValueError, match="more than one parameter group"):
        DessiLBI([{"params": [p]}, {"params": [p]}])


def test_questions_about_a_twin_that_is_not_there() -> None:
    p, bias = conv(), nn.Parameter(torch.ones(3))
    opt = DessiLBI([("conv", p), ("bias", bias)])
    with pytest.raises(ValueError, match="parameter 'bias' has no twin: its penalty is 'auto'"):
        opt.gamma(bias)
    with pytest.raises(ValueError, match=r"does not hold the given tensor of shape \(2, 3, 2, 2\)"):
        opt.support(conv())
