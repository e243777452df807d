"""Networks and batches that have no program: refused, and never run otherwise than torch does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from lean_nets import F64, Written, kinds
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody does
from torch.nn.utils import parametrizations

from compilers import needs_compiler
from dessilbi.lean import Program, Programs, UnsuitedError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = needs_compiler


def conv(**options: Any) -> nn.Conv2d:
    return nn.Conv2d(3, 4, 3, padding=1, **options)


def net_with(change: Callable[[nn.Sequential], Any]) -> nn.Module:
    net = nn.Sequential(conv(), nn.BatchNorm2d(4), nn.ReLU())
    change(net)
    return net


def written(forward: Callable[[Any, Tensor], Any], **layers: nn.Module) -> nn.Module:
    return Written(forward, **{"c": conv(), "d": conv(), **layers})


class Own(nn.Module):
    """Weights of its own."""

    def __init__(self, use: Callable[[Own, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("offset", torch.zeros(3))
        self._use = use

    def forward(self, x: Tensor) -> Tensor:
        return self._use(self, self.linear(x))


class TwoArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c = conv()

    def forward(self, x: Tensor, factor: Any = 1.0) -> Tensor:
        y: Tensor = self.c(x) * factor
        return y


class Negative(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


def overwritten(how: Callable[[Any, Tensor], Any]) -> nn.Module:
    """What is overwritten is read again."""

    def forward(net: Any, x: Tensor) -> Tensor:
        y = net.c(x)
        how(net, y)
        return net.relu(y) + y

    return written(forward, relu=nn.ReLU(), inplace=nn.ReLU(inplace=True), elu=nn.ELU(inplace=True))


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "a forward hook": lambda: net_with(lambda n: n[0].register_forward_hook(lambda *_: None)),
    "a forward pre-hook": lambda: net_with(lambda n: n[2].register_forward_pre_hook(print)),
    "a hook of the whole": lambda: net_with(lambda n: n.register_forward_hook(lambda *_: None)),
    "a backward hook": lambda: net_with(lambda n: n[1].register_full_backward_hook(print)),
    "a backward pre-hook": lambda: net_with(lambda n: n[1].register_full_backward_pre_hook(print)),
    "a parametrization": lambda: net_with(lambda n: parametrizations.weight_norm(n[0])),
    "a hook of a parameter": lambda: net_with(lambda n: n[0].weight.register_hook(print)),
    "a later hook of one": lambda: net_with(
        lambda n: n[1].bias.register_post_accumulate_grad_hook(print)
    ),
    "BatchNorm in use": lambda: net_with(lambda n: n.eval()),
    "half precision": lambda: net_with(lambda n: n.half()),
    "half of it in half precision": lambda: net_with(lambda n: n[0].bfloat16()),
    "no memory": lambda: net_with(lambda n: n.to("meta")),
    "a branch by numbers": lambda: written(lambda n, x: n.c(x) if x.sum() > 0 else n.d(x)),
    "a branch by size": lambda: written(lambda n, x: n.c(x) if len(x) > 9 else n.d(x)),
    "a loop over examples": lambda: written(lambda n, x: torch.stack([n.c(e) for e in x])),
    "a parameter": lambda: Own(lambda net, x: x * net.scale),
    "a parameter of a function": lambda: Own(lambda net, x: F.linear(x, net.linear.weight)),
    "a buffer": lambda: Own(lambda net, x: x + net.offset),
    "a constant": lambda: written(lambda n, x: n.c(x) * torch.ones(8)),
    "another argument": TwoArguments,
    "another class": lambda: nn.Sequential(Negative(3, 4, 3)),
    "two results": lambda: written(lambda n, x: (n.c(x), n.d(x))),
    "results by name": lambda: written(lambda n, x: {"logits": n.c(x)}),
    "no result": lambda: written(lambda n, x: None),
    "ReLU in place": lambda: overwritten(lambda n, y: n.inplace(y)),
    "ELU in place": lambda: overwritten(lambda n, y: n.elu(y)),
    "a function in place": lambda: overwritten(lambda n, y: F.relu(y, inplace=True)),
    "the same by position": lambda: overwritten(lambda n, y: F.relu(y, True)),
    "a method in place": lambda: overwritten(lambda n, y: y.mul_(2)),
    "a result into it": lambda: overwritten(lambda n, y: torch.mul(y, 2, out=y)),
    "the batch in place": lambda: nn.Sequential(nn.ReLU(inplace=True), conv()),
    "keywords": lambda: written(lambda n, x: n.c(input=x)),
    "buffers of other layers": lambda: nn.Sequential(
        conv(), nn.InstanceNorm2d(4, track_running_stats=True)
    ),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_no_program_for(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    net = make()
    with pytest.raises(UnsuitedError):
        Program(net)
    x = torch.rand(16, 3) if isinstance(net, Own) else torch.rand(16, 3, 8, 8)
    assert Programs(net, 1).get((x,), 0) is None


UNFIT: dict[str, Callable[[], nn.Module]] = {
    "no tensor": lambda: written(lambda n, x: n.c(x).size(1)),
    "sums of different shapes": lambda: written(lambda n, x: n.c(x) + n.d(x).mean(1, keepdim=True)),
    "sums of three dimensions": lambda: written(lambda n, x: n.c(x).flatten(2) + n.d(x).flatten(2)),
    "linear layers of images": lambda: nn.Sequential(conv(), nn.Linear(8, 2)),
    "BatchNorm of three dimensions": lambda: nn.Sequential(
        nn.Flatten(2), nn.BatchNorm1d(3), nn.Conv1d(3, 2, 1)
    ),
    "what a defaulted argument decides": lambda: Defaulted(),
    "aliases in place": lambda: written(
        lambda n, x: (lambda y: F.relu(y.flatten(1), inplace=True) + y.sum())(n.c(x))
    ),
}


class Defaulted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c = conv()

    def forward(self, x: Tensor, twice: Any = None) -> Tensor:
        y: Tensor = self.c(x)
        return y if twice is None else 2 * y


@pytest.mark.parametrize("make", UNFIT.values(), ids=UNFIT)
def test_what_only_a_batch_shows_is_refused_then(make: Callable[[], nn.Module]) -> None:
    net = make()
    assert Program(net)
    assert Programs(net, 1).get((torch.randn(16, 3, 8, 8),), 0) is None


def test_batches_that_torch_has_to_take() -> None:
    net = nn.Sequential(conv(), nn.ReLU())
    programs = Programs(net, 10)
    x = torch.randn(16, 3, 8, 8)
    for arguments in (
        (x[:7],), (x.half(),), (x.double(),), (x, x), (), ([x],), ({"x": x},), (x.to_sparse(),),
        (x.to("meta"),), (torch.randn(16),),
    ):  # fmt: skip
        assert programs.get(arguments, 0) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert programs.get((x,), 0) is None
    assert programs.get((x,), 0) is not None
    assert programs.get((x[:8],), 1) is not None
    assert Programs(nn.ReLU(), 10).get((x,), 0) is None


def test_a_program_is_made_once() -> None:
    net = nn.Sequential(conv(), nn.BatchNorm2d(4), nn.ReLU())
    programs = Programs(net, 3)
    x = torch.randn(16, 3, 8, 8)
    first = programs.get((x,), 0)
    assert first is not None
    for step in range(1, 10):
        with torch.no_grad():
            for p in net.parameters():
                p += torch.randn_like(p)
        assert programs.get((x,), step) is first


def test_comparing_leaves_no_trace() -> None:
    net = nn.Sequential(conv(), nn.BatchNorm2d(4), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    Programs(net, 3).get((torch.randn(16, 3, 8, 8, generator=torch.Generator()),), 0)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in net.parameters())


def test_a_counter_in_the_network_is_noticed() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.calls = conv(), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            y: Tensor = self.c(x) * self.calls
            return y

    assert Programs(Counting(), 1).get((torch.randn(16, 3, 8, 8),), 0) is None


def test_code_that_changes_later_is_noticed_by_the_next_comparison() -> None:
    calls = []

    def forward(net: Any, x: Tensor) -> Tensor:
        calls.append(x)  # one to read it, and two to compare, twice
        return net.c(x) if len(calls) < 6 else -net.c(x)

    programs = Programs(written(forward), 5)
    x = torch.randn(16, 3, 8, 8)
    assert all(programs.get((x,), step) is not None for step in range(10))
    assert all(programs.get((x,), step) is None for step in range(10, 20))


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.c.register_forward_hook(lambda *_: None),
        lambda net: net.c.weight.register_hook(lambda g: 2 * g),
        lambda net: setattr(net, "c", nn.Conv2d(3, 4, 1)),
        lambda net: setattr(net, "_forward", lambda net, x: net.c(x) * 1.1),
        lambda net: setattr(net, "_forward", lambda net, x: net.c(x)[:, :2]),
        lambda net: setattr(net, "_forward", lambda net, x: [net.c(x)]),
    ],
)
def test_changes_of_the_network_are_noticed(change: Callable[[Any], Any]) -> None:
    net = written(lambda net, x: net.c(x))
    programs = Programs(net, 5)
    x = torch.randn(16, 3, 8, 8)
    first = programs.get((x,), 0)
    change(net)
    assert programs.get((x,), 4) is first
    assert programs.get((x,), 5) is None
    assert programs.get((x,), 6) is None


def test_a_network_that_has_gone_astray_keeps_its_program() -> None:
    net = nn.Sequential(conv(), nn.ReLU())
    programs = Programs(net, 1)
    x = torch.randn(16, 3, 8, 8)
    first = programs.get((x,), 0)
    net[0].weight.data.fill_(torch.nan)
    assert programs.get((x,), 1) is first is not None


def test_a_mode_without_a_program_is_no_end() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    programs = Programs(net, 100)
    x = torch.randn(16, 6)
    there = []
    for training in (True, False, False, True):
        net.train(training)
        there.append(programs.get((x,), 0) is not None)
    assert there == [True, False, False, True]


def test_a_change_of_mode_is_followed() -> None:
    net = written(lambda net, x: net.c(x).relu() if net.training else net.c(x)).double()
    programs = Programs(net, 100)
    x = torch.randn(16, 3, 8, 8, dtype=F64)
    found = []
    for training in (True, False, False, True):
        net.train(training)
        program = programs.get((x,), 0)
        assert program is not None
        found.append(kinds(program))
    assert found == [["Convolution", *(["Finish"] if t else [])] for t in (1, 0, 0, 1)]


def test_a_layer_of_another_mode_is_followed() -> None:
    net = nn.Sequential(conv(), nn.BatchNorm2d(4))
    programs = Programs(net, 100)
    x = torch.randn(16, 3, 8, 8)
    assert programs.get((x,), 0) is not None
    net[1].eval()
    assert programs.get((x,), 1) is None
