"""What follows an optimizer lets go of it when it is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from torch import nn

from dessilbi import DessiLBI, Mask, PathRecorder, split_parameters
from dessilbi.subnet import FrozenSupport, GradualPruning, HeldMask
from dessilbi.theory import LyapunovMonitor

if TYPE_CHECKING:
    from collections.abc import Callable

FOLLOWERS: dict[str, Callable[[nn.Module, DessiLBI], Any]] = {
    "recorder": PathRecorder,
    "held mask": lambda net, opt: HeldMask(net, Mask.magnitude(net, 0.5), opt),
    "frozen support": FrozenSupport,
    "pruning": lambda net, opt: GradualPruning(
        net, opt, 9, density=0.5, param_groups=split_parameters(net)
    ),
    "monitor": lambda net, opt: LyapunovMonitor(opt, lambda: net.weight.sum()),
}


@pytest.mark.parametrize("name", FOLLOWERS)
def test_closing_lets_go(name: str) -> None:
    net = nn.Linear(3, 2)
    opt = DessiLBI(net.parameters())

    def hooks() -> int:
        return len(opt._optimizer_step_pre_hooks) + len(opt._optimizer_step_post_hooks)

    with FOLLOWERS[name](net, opt) as follower:
        assert hooks() > 0
    assert hooks() == 0
    follower.close()  # twice does no harm
