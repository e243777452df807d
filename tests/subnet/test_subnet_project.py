"""Weights off a mask: zero for a while and back bit for bit, or zero for good."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import prune

from dessilbi import compact
from dessilbi.optim import DessiLBI, split_parameters
from dessilbi.path import Mask
from dessilbi.subnet import HeldMask, project

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

State = dict[str, Tensor]
INPUTS = torch.linspace(-1, 1, 16 * 36).sin().reshape(16, 1, 6, 6)
LABELS = torch.arange(16) % 4


def make_net() -> nn.Sequential:
    """Filters, BatchNorm and a linear layer."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4)
    )


def make_mask(net: nn.Module, seed: int = 0, density: float = 0.4) -> Mask:
    return Mask.random(net, density, generator=torch.Generator().manual_seed(seed))


def state_of(net: nn.Module) -> State:
    return copy.deepcopy(net.state_dict())


def same(a: Tensor, b: Tensor) -> bool:
    """Every bit, also of NaN and of a negative zero."""
    whole = {4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.view(whole), b.view(whole))


def assert_same_state(net: nn.Module, before: State) -> None:
    found = net.state_dict()
    assert found.keys() == before.keys()
    assert [name for name in found if not same(found[name], before[name])] == []


def off(net: nn.Module, mask: Mask) -> Tensor:
    """The weights that the mask does not keep, in one vector."""
    params = dict(net.named_parameters())
    return torch.cat([params[name].detach()[~mask[name]] for name in mask.names])


def assert_off_is_zero(net: nn.Module, mask: Mask) -> None:
    left = off(net, mask)
    assert len(left) == mask.total - mask.kept > 0
    assert bool((left == 0).all()), f"{int((left != 0).sum())} weights left the mask"


# ---------------------------------------------------------------------- for a while


def test_within_the_context_the_weights_are_masked_and_then_back() -> None:
    net = make_net()
    mask, before = make_mask(net), state_of(net)
    with project(net, mask) as projected:
        assert projected is net
        for name, p in net.named_parameters():
            wanted = before[name] * mask[name] if name in mask.names else before[name]
            assert torch.equal(p, wanted), name
    assert_same_state(net, before)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_dense_weights_come_back_after_an_exception(error: type[BaseException]) -> None:
    net = make_net()
    before = state_of(net)
    with pytest.raises(error), project(net, make_mask(net)):
        raise error
    assert_same_state(net, before)


def test_every_bit_comes_back() -> None:
    """Infinite weights, NaN and a negative zero too."""
    net = make_net()
    odd = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 1e-45])
    with torch.no_grad():
        net[4].weight.view(-1)[: len(odd)] = odd
    before = state_of(net)
    off = Mask({"4.weight": torch.zeros(4, 96, dtype=torch.bool)})
    with project(net, off, allow_empty=True):
        assert bool((net[4].weight == 0).all()), "0 * inf would be NaN"
    assert_same_state(net, before)


def test_autocast_sees_the_projected_weights() -> None:
    """It keeps casts of weights by their identity, which a mask does not change."""
    net = make_net().eval()
    mask = make_mask(net)
    with torch.autocast("cpu", torch.bfloat16):
        dense = net(INPUTS)
        with project(net, mask):
            inside = net(INPUTS)
        assert torch.equal(net(INPUTS), dense)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        HeldMask(net, mask, opt)
        held = net(INPUTS)
    assert torch.equal(inside, held)
    assert not torch.equal(inside, dense)


@pytest.mark.parametrize("of", ["optimizer", "budget"])
def test_a_mask_that_keeps_nothing_is_not_evaluated(of: str) -> None:
    net = make_net()
    opt = DessiLBI(split_parameters(net))
    mask = opt.mask() if of == "optimizer" else Mask.random(net, density=0.0)
    before = state_of(net)
    with pytest.raises(ValueError, match="the mask keeps none of 438 weights"), project(net, mask):
        pass
    assert_same_state(net, before)
    with project(net, mask, allow_empty=True):
        assert_off_is_zero(net, Mask.of(mask))


def test_a_wrapped_network_is_projected_by_its_own_names() -> None:
    net = make_net()
    mask = make_mask(net)
    with project(nn.DataParallel(torch.compile(net, backend="eager")), mask):
        assert_off_is_zero(net, mask)


def test_infinite_weights_on_the_mask_stay() -> None:
    net = make_net()
    with torch.no_grad():
        net[4].weight[0, :2] = math.inf
    keep = torch.ones(4, 96, dtype=torch.bool)
    keep[0, 0] = False
    with project(net, Mask({"4.weight": keep})):
        assert net[4].weight[0, :2].tolist() == [0.0, math.inf]


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"5.weight": (2, 2)}, "lacks a masked parameter"),
        ({"4.weight": (96, 4)}, r"has shape \(96, 4\), but the model has \(4, 96\)"),
    ],
)
@pytest.mark.parametrize("hold", [False, True])
def test_a_mask_that_does_not_fit_changes_nothing(
    wrong: dict[str, tuple[int, ...]], fault: str, hold: bool
) -> None:
    """Also when a part of it would fit."""
    net = make_net()
    before, opt = state_of(net), torch.optim.SGD(net.parameters(), lr=0.1)
    shapes = {"0.weight": (6, 1, 3, 3), **wrong}
    mask = Mask({name: torch.zeros(shape, dtype=torch.bool) for name, shape in shapes.items()})
    with pytest.raises(ValueError, match=fault):
        HeldMask(net, mask, opt) if hold else project(net, mask).__enter__()
    assert_same_state(net, before)
    assert not opt._optimizer_step_post_hooks


def test_nested_projections_are_the_intersection() -> None:
    net = make_net()
    a, b, before = make_mask(net, 1), make_mask(net, 2), state_of(net)
    with project(net, a):
        outer = state_of(net)
        with project(net, b):
            inner = state_of(net)
        assert_same_state(net, outer)
    assert_same_state(net, before)
    with project(net, a & b):
        assert_same_state(net, inner)


def test_nested_projections_come_back_after_an_exception() -> None:
    net = make_net()
    before = state_of(net)
    with (
        pytest.raises(RuntimeError),
        project(net, make_mask(net, 1)),
        project(net, make_mask(net, 2)),
    ):
        raise RuntimeError
    assert_same_state(net, before)


def test_what_the_mask_does_not_name_can_be_written_within() -> None:
    net = make_net()
    before = state_of(net)
    with project(net, make_mask(net)), torch.no_grad():
        net[4].bias.fill_(7.0)
        net[4].weight.fill_(7.0)
    assert bool((net[4].bias == 7).all())
    assert same(net[4].weight, before["4.weight"])


def test_an_empty_mask_and_frozen_weights_are_fine() -> None:
    net = make_net().requires_grad_(False)
    before = state_of(net)
    with project(net, Mask({})):
        assert_same_state(net, before)
    with torch.inference_mode(), project(net, make_mask(net)):
        assert_off_is_zero(net, make_mask(net))
    assert_same_state(net, before)


def test_gradients_flow_through_a_projected_network() -> None:
    net = make_net()
    with project(net, make_mask(net)):
        cross_entropy(net(INPUTS), LABELS).backward()
    assert all(p.grad is not None for p in net.parameters())


def test_a_model_under_torchs_pruning_is_masked_by_its_plain_names() -> None:
    """Masks call fc.weight what the model then keeps as fc.weight_orig."""
    net = make_net()
    prune.identity(net[4], "weight")
    before = state_of(net)
    mask = Mask({"4.weight": torch.arange(4 * 96).reshape(4, 96) % 3 == 0})
    with project(net, mask):
        assert bool((net[4].weight_orig[~mask["4.weight"]] == 0).all())
    assert_same_state(net, before)


# ---------------------------------------------------------------------- for good


def dessilbi(**options: Any) -> Callable[[nn.Module], Optimizer]:
    settings = {"lr": 0.1, "nu": 1.0, "lambd": 0.05, "momentum": 0.9} | options
    return lambda net: DessiLBI(split_parameters(net), **settings)


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda net: torch.optim.SGD(
        net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True
    ),
    "adam": lambda net: torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=0.01),
    "adamw": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1),
    "dessilbi-loop": dessilbi(foreach=False, fused=False, weight_decay=0.01),
    "dessilbi-foreach": dessilbi(foreach=True, weight_decay=0.01),
    "dessilbi-fused": dessilbi(fused=True, weight_decay=0.01),
    "dessilbi-decoupled": dessilbi(weight_decay=0.1, decoupled_weight_decay=True),
    "dessilbi-fused-decoupled": dessilbi(fused=True, weight_decay=0.1, decoupled_weight_decay=True),
    "dessilbi-coupled-momentum": dessilbi(coupling="momentum", nesterov=True),
}


@pytest.fixture(params=OPTIMIZERS)
def make_opt(request: pytest.FixtureRequest) -> Callable[[nn.Module], Optimizer]:
    return OPTIMIZERS[request.param]


def step(net: nn.Module, opt: Optimizer) -> None:
    opt.zero_grad()
    cross_entropy(net(INPUTS), LABELS).backward()
    opt.step()


def test_training_never_leaves_the_mask(make_opt: Callable[[nn.Module], Optimizer]) -> None:
    net = make_net()
    opt, mask = make_opt(net), make_mask(net)
    for _ in range(3):  # momentum and second moments that pull on every weight
        step(net, opt)
    HeldMask(net, mask, opt)
    assert_off_is_zero(net, mask)
    before = state_of(net)
    for _ in range(8):
        step(net, opt)
        assert_off_is_zero(net, mask)
    for name in mask.names:
        moved = dict(net.named_parameters())[name] != before[name]
        assert torch.equal(moved, mask[name]), "what the mask keeps is trained"


def test_a_loaded_checkpoint_needs_apply(make_opt: Callable[[nn.Module], Optimizer]) -> None:
    net = make_net()
    opt = make_opt(net)
    for _ in range(3):
        step(net, opt)
    dense = copy.deepcopy((net.state_dict(), opt.state_dict()))

    net = make_net()
    opt, mask = make_opt(net), make_mask(net)
    held = HeldMask(net, mask, opt)
    net.load_state_dict(dense[0])
    opt.load_state_dict(dense[1])
    assert bool(off(net, mask).any())
    held.apply()
    assert_off_is_zero(net, mask)
    step(net, opt)
    assert_off_is_zero(net, mask)


def test_release_lets_go(make_opt: Callable[[nn.Module], Optimizer]) -> None:
    net = make_net()
    opt, mask = make_opt(net), make_mask(net)
    held = HeldMask(net, mask, opt)
    step(net, opt)
    held.close()
    assert_off_is_zero(net, mask)
    step(net, opt)
    assert bool(off(net, mask).any())


def test_gamma_grows_on_the_mask_only() -> None:
    """A weight that is held at zero moves no V."""
    net = make_net()
    opt = DessiLBI(split_parameters(net, {"*": {"penalty": "lasso"}}), lr=0.1, nu=1.0, lambd=0.05)
    mask = make_mask(net)
    HeldMask(net, mask, opt)
    for _ in range(20):
        step(net, opt)
    params = dict(net.named_parameters())
    assert opt.density() > 0
    for name in mask.names:
        assert not bool((opt.support(params[name]) & ~mask[name]).any())


def test_a_held_mask_trains_as_a_network_that_is_masked_by_hand() -> None:
    net, other = make_net(), make_net()
    mask = make_mask(net)
    opt, reference = OPTIMIZERS["sgd"](net), OPTIMIZERS["sgd"](other)
    HeldMask(net, mask, opt)
    params = dict(other.named_parameters())
    for _ in range(5):
        with torch.no_grad():
            for name in mask.names:
                params[name][~mask[name]] = 0
        step(net, opt)
        step(other, reference)
    with project(other, mask):
        assert_same_state(net, other.state_dict())


@pytest.mark.filterwarnings("ignore:nothing was removed")
def test_the_support_goes_straight_into_project_and_compact():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    opt = DessiLBI(split_parameters(net), lr=0.1, nu=1.0, lambd=0.02)
    for _ in range(4):
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()
    mask = opt.mask()
    assert list(mask) == ["0.weight", "3.weight"]
    assert 0 < Mask(mask).density < 1
    assert all(torch.equal(mask[name], opt.support(net.get_parameter(name))) for name in mask)
    with project(net, mask):
        assert not net[3].weight[~mask["3.weight"]].any()
        expected = net(x)
    small = compact(net, mask, x)
    torch.testing.assert_close(small.model(x), expected)
    held = HeldMask(net, mask, opt)
    assert not net[3].weight[~mask["3.weight"]].any()
    held.close()


def test_an_optimizer_without_names_asks_for_the_model():
    net = nn.Linear(3, 2)
    opt = DessiLBI(net.parameters())
    with pytest.raises(ValueError, match=r"parameter 0 of its group.*use opt.mask\(model\)"):
        opt.mask()
    assert list(opt.mask(net)) == ["weight"]
    with pytest.raises(ValueError, match="use the model that it trains"):
        opt.mask(nn.Linear(3, 2))
