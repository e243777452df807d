"""SplitLBI: DessiLBI around SGD, a literal reference around AdamW, any base beside it."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from contract_problems import (
    LIVELY,
    SHAPES,
    VARIANTS,
    assert_same,
    make_grads,
    make_params,
    needs_compiler,
    run,
    set_grads,
    state_of,
)
from torch import Tensor, nn

from dessilbi import DessiLBI, SplitLBI, project, split_parameters
from dessilbi.optim._reference import Reference

# Of what an optimizer with SGD inside knows, torch's SGD has not the coupling inside of the
# momentum and not the paper's decay.
OF_SGD = ("momentum", "nesterov", "weight_decay", "maximize")
WITH_SGD = {
    name: options
    for name, options in VARIANTS.items()
    if not {"coupling", "decoupled_weight_decay"} & options.keys()
}
ALL_AT_ONCE = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True}
IMPLEMENTATIONS = [
    pytest.param({}, id="loop"),
    pytest.param({"fused": True}, id="fused", marks=needs_compiler),
]


def split_sgd(named: dict[str, nn.Parameter], options: dict[str, Any], **own: Any) -> SplitLBI:
    inside = {k: v for k, v in options.items() if k in ("lr", *OF_SGD)}
    twin = {k: v for k, v in options.items() if k not in inside}
    return SplitLBI(torch.optim.SGD(named.items(), **inside), **twin, **own)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", [*WITH_SGD, "all"])
def test_around_sgd_it_is_dessilbi(name: str, implementation: dict[str, Any]) -> None:
    options = {**LIVELY, **(ALL_AT_ONCE if name == "all" else WITH_SGD[name])}
    one, other = make_params(), make_params()
    theirs = DessiLBI(one.items(), **options)
    ours = split_sgd(other, options, **implementation)
    for k in range(30):
        for params in (one, other):
            set_grads(params.values(), k)
        theirs.step()
        ours.step()
    a, b = state_of(theirs), state_of(ours)
    for key in a:
        torch.testing.assert_close(b[key], a[key], rtol=1e-12, atol=1e-12, msg=key)
    for (_, p), (_, q) in zip(theirs.twins(), ours.twins(), strict=True):
        assert torch.equal(theirs.support(p), ours.support(q))
    if options.get("penalty", "auto") is not None:
        assert ours.density() > 0


class AdamWReference(Reference):
    """The coupling, then AdamW as its paper has it, in plain arithmetic."""

    beta1, beta2, eps, decay = 0.9, 0.99, 1e-8, 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.m, self.u, self.t = torch.zeros_like(self.W), torch.zeros_like(self.W), 0

    def step(self, grad: Tensor, update_mask: Tensor | None = None) -> None:
        C = torch.zeros_like(self.W) if self.penalty is None else (self.W - self.Gamma) / self.nu
        W = self.W - self.lr * C
        self.V = self.V + self.lr / self.kappa * C
        self.Gamma = self.kappa * self.prox(self.V)
        self.t += 1
        self.m = self.beta1 * self.m + (1 - self.beta1) * grad
        self.u = self.beta2 * self.u + (1 - self.beta2) * grad * grad
        mean, square = self.m / (1 - self.beta1**self.t), self.u / (1 - self.beta2**self.t)
        W = W - self.lr * self.decay * W
        self.W = W - self.lr * mean / (square.sqrt() + self.eps)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kappa", [1.0, 3.0])
@pytest.mark.parametrize("base", [{}, {"fused": True}, {"foreach": True}], ids=str)
def test_around_adamw_it_is_the_literal_iteration(
    base: dict[str, Any], kappa: float, implementation: dict[str, Any]
) -> None:
    named = make_params()
    twin = {"kappa": kappa, "nu": 2.0, "lambd": 0.3}
    kinds = {"conv": "group_lasso", "linear": "lasso", "bias": None}
    truth = {
        name: AdamWReference(W=p.detach().clone(), penalty=kinds[name], lr=0.1, **twin)
        for name, p in named.items()
    }
    adamw = torch.optim.AdamW(named.items(), lr=0.1, betas=(0.9, 0.99), weight_decay=0.1, **base)
    opt = SplitLBI(adamw, **twin, **implementation)
    for k in range(30):
        set_grads(named.values(), k)
        for name, grad in zip(named, make_grads(named.values(), k), strict=True):
            truth[name].step(grad)
        opt.step()
    for name, p in named.items():
        torch.testing.assert_close(p.detach(), truth[name].W, rtol=1e-10, atol=1e-10)
        if kinds[name] is not None:
            torch.testing.assert_close(opt.state[p]["v"], truth[name].V, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(opt.gamma(p), truth[name].Gamma, rtol=1e-10, atol=1e-10)
            assert torch.equal(opt.support(p), truth[name].Gamma != 0)
    assert 0 < opt.density() < 1


BASES: dict[str, Any] = {
    "sgd": lambda g: torch.optim.SGD(g, lr=0.05, momentum=0.9),
    "adamw": lambda g: torch.optim.AdamW(g, lr=0.05),
    "adamw-fused": lambda g: torch.optim.AdamW(g, lr=0.05, fused=True),
    "radam": lambda g: torch.optim.RAdam(g, lr=0.05),
    "adafactor": lambda g: torch.optim.Adafactor(g, lr=0.05),
    "rmsprop": lambda g: torch.optim.RMSprop(g, lr=0.05),
    "adagrad": lambda g: torch.optim.Adagrad(g, lr=0.05),
    "muon": lambda g: torch.optim.Muon(g, lr=0.05),
}


def matrices() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(6, 9, bias=False), nn.Tanh(), nn.Linear(9, 3, bias=False)
    return nn.Sequential(*layers).double()


def train(net: nn.Module, opt: torch.optim.Optimizer, steps: int, start: int = 0) -> None:
    for k in range(start, start + steps):
        g = torch.Generator().manual_seed(k)
        x = torch.randn(8, 6, generator=g, dtype=torch.float64)
        opt.zero_grad()
        nn.functional.mse_loss(net(x), x[:, :3].sin()).backward()
        opt.step()


@pytest.mark.parametrize("name", BASES)
def test_any_base(name: str) -> None:
    """Each grows a twin, and goes on from its state dict bit by bit."""
    net = matrices()
    opt = SplitLBI(BASES[name](split_parameters(net)), nu=1.0, c=0.3)
    train(net, opt, 12)
    assert 0 < opt.density() < 1
    assert {n for n, _ in opt.twins()} == {"0.weight", "2.weight"}

    weights, saved = copy.deepcopy(net.state_dict()), copy.deepcopy(opt.state_dict())
    train(net, opt, 6, start=12)
    again = matrices()
    again.load_state_dict(weights)
    resumed = SplitLBI(BASES[name](split_parameters(again)), nu=1.0, c=0.3)
    resumed.load_state_dict(saved)
    train(again, resumed, 6, start=12)
    assert_same(dict(net.state_dict()), dict(again.state_dict()))
    for p, q in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(opt.state[p]["v"], resumed.state[q]["v"])


def test_a_twin_that_is_never_felt_changes_nothing() -> None:
    """With infinite nu the base is alone."""
    net, other = matrices(), matrices()
    train(net, SplitLBI(torch.optim.AdamW(net.parameters(), lr=0.05), nu=math.inf), 8)
    train(other, torch.optim.AdamW(other.parameters(), lr=0.05), 8)
    assert_same(dict(net.state_dict()), dict(other.state_dict()))


def test_groups_and_state_are_the_bases() -> None:
    net = matrices()
    base = torch.optim.AdamW(split_parameters(net), lr=0.1)
    opt = SplitLBI(base, nu=1.0, lambd=0.1)
    assert opt.param_groups is base.param_groups
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
    train(net, opt, 1)
    scheduler.step()
    assert base.param_groups[0]["lr"] == 0.05
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert opt.param_groups is base.param_groups
    assert opt.state is base.state
    extra = nn.Parameter(torch.ones(3, 4, dtype=torch.float64))
    opt.add_param_group({"params": [("extra", extra)], "penalty": "lasso", "c": 0.5})
    assert base.param_groups[-1]["params"] == [extra]
    assert (base.param_groups[-1]["lambd"], base.param_groups[-1]["lambd_scale"]) == (0.5, "init")
    with pytest.raises(ValueError, match="kappa must be > 0, got -1"):
        opt.add_param_group({"params": [("more", torch.ones(2, 2))], "kappa": -1})
    assert len(opt.param_groups) == len(base.param_groups) == 2


def test_a_checkpoint_of_the_base_alone_begins_a_twin() -> None:
    net = matrices()
    base = torch.optim.AdamW(net.parameters(), lr=0.05)
    train(net, base, 5)
    opt = SplitLBI(torch.optim.AdamW(net.parameters(), lr=0.05), nu=1.0, c=0.3)
    opt.load_state_dict(base.state_dict())
    assert opt.density() == 0
    train(net, opt, 12)
    assert 0 < opt.density() < 1
    assert {int(s["step"]) for s in opt.state.values()} == {17}


def test_a_refused_state_changes_nothing() -> None:
    net = matrices()
    opt = SplitLBI(torch.optim.AdamW(split_parameters(net), lr=0.05), nu=1.0, c=0.3)
    train(net, opt, 3)
    before = state_of(opt)
    wrong = copy.deepcopy(opt.state_dict())
    wrong["state"][1]["v"] = torch.zeros(5)
    with pytest.raises(ValueError, match="was saved for another parameter"):
        opt.load_state_dict(wrong)
    assert_same(before, state_of(opt))


def test_deepcopy_and_closure() -> None:
    net = matrices()
    opt = SplitLBI(torch.optim.AdamW(split_parameters(net), lr=0.05), nu=1.0, c=0.3)
    train(net, opt, 3)
    twin_net, twin_opt = copy.deepcopy((net, opt))
    train(net, opt, 3, start=3)
    train(twin_net, twin_opt, 3, start=3)
    assert_same(state_of(opt), state_of(twin_opt))
    x = torch.ones(8, 6, dtype=torch.float64)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    expected = net(x).square().mean().item()
    assert opt.step(closure).item() == expected
    assert net(x).square().mean().item() < expected


def test_hooks_see_every_step() -> None:
    net, seen = matrices(), []
    opt = SplitLBI(torch.optim.AdamW(split_parameters(net), lr=0.05))
    opt.register_step_pre_hook(lambda o, *_: seen.append(("before", o)))
    opt.register_step_post_hook(lambda o, *_: seen.append(("after", o)))
    opt.register_state_dict_post_hook(lambda o, found: {**found, "note": "ours"})
    opt.register_load_state_dict_pre_hook(lambda o, found: seen.append(found.pop("note")))
    opt.register_load_state_dict_post_hook(lambda o: seen.append("loaded"))
    train(net, opt, 1)
    opt.load_state_dict(opt.state_dict())
    assert seen == [("before", opt), ("after", opt), "ours", "loaded"]


def test_grad_scaler_skips_what_overflowed() -> None:
    """Also around a fused base, which could unscale by itself but is not asked to."""
    net = matrices().float()
    opt = SplitLBI(torch.optim.AdamW(net.parameters(), lr=0.05, fused=True), nu=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x = torch.ones(4, 6)
    for bad in (False, True):
        opt.zero_grad()
        scaler.scale(net(x).square().mean()).backward()
        if bad:
            next(net.parameters()).grad[0, 0] = torch.inf
        before = {k: v.clone() for k, v in net.state_dict().items()}
        gradients = [p.grad.clone() for p in net.parameters()]
        scaler.step(opt)
        scaler.update()
        same = all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
        assert same == bad
        if not bad:
            for p, g in zip(net.parameters(), gradients, strict=True):
                torch.testing.assert_close(p.grad, g / 1024)


def test_v_in_bfloat16_sums_small_steps() -> None:
    """Each is far below half of the last digit of a sum near one."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.ones(1000))
    opt = SplitLBI(
        torch.optim.SGD([p], lr=1e-3), nu=1.0, lambd=10.0, penalty="lasso", v_dtype=torch.bfloat16
    )
    for _ in range(1000):
        p.grad = torch.zeros_like(p)
        opt.step()
        p.data.fill_(1.0)
    V = opt.state[p]["v"]
    assert V.dtype is torch.bfloat16
    assert opt.dual(p).dtype is torch.float32
    assert float(V.float().mean()) == pytest.approx(1.0, abs=0.01)
    opt.load_state_dict(opt.state_dict())
    assert torch.equal(opt.state[p]["v"], V)
    assert opt.state[p]["v"].dtype is torch.bfloat16


def test_the_support_is_a_subnetwork() -> None:
    net = matrices()
    opt = SplitLBI(torch.optim.AdamW(split_parameters(net), lr=0.05), nu=1.0, c=0.3)
    train(net, opt, 12)
    weight = net[0].weight.detach().clone()
    with project(net, opt.mask()):
        assert torch.equal(net[0].weight != 0, opt.support(net[0].weight) & (weight != 0))
    assert torch.equal(net[0].weight, weight)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: SplitLBI([p]), "base must be a torch optimizer"),
        (lambda p: SplitLBI(DessiLBI([p])), "must not have a twin already, got DessiLBI"),
        (lambda p: SplitLBI(torch.optim.LBFGS([p])), "LBFGS takes several gradients a step"),
    ],
)
def test_what_is_no_base(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make(nn.Parameter(torch.ones(2, 2)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nu": 0}, "nu must be > 0, got 0"),
        ({"tau": 0}, "tau must be > 0, got 0"),
        ({"c": -1}, "c must be >= 0, got -1"),
        ({"v_dtype": torch.int8}, "v_dtype must be a floating point type"),
        ({"penalty": "l2"}, "penalty must be"),
        ({"steps": 0}, "steps must be >= 1, got 0"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SplitLBI(torch.optim.SGD(make_params().values(), lr=0.1), **options)


def test_what_the_base_alone_has_is_reached() -> None:
    class Moody(torch.optim.SGD):
        mood = "calm"

        def train(self) -> None:
            self.mood = "training"

    opt = SplitLBI(Moody(make_params().values(), lr=0.1))
    opt.train()
    assert opt.mood == opt.base.mood == "training"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = opt.nothing


class Clashing(torch.optim.SGD):
    """Its velocity is called as our V is."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["v"] = torch.ones_like(p)


def test_a_base_whose_state_has_the_name_of_ours_is_refused() -> None:
    """Else one would overwrite the other."""
    named = make_params()
    opt = SplitLBI(Clashing(named.values(), lr=0.1))
    set_grads(named.values(), 0)
    with pytest.raises(ValueError, match="Clashing keeps a 'v' of its own in its state"):
        opt.step()
    alone = Clashing(make_params().values(), lr=0.1)
    run(alone, 1)
    opt = SplitLBI(Clashing(make_params().values(), lr=0.1))
    with pytest.raises(ValueError, match="Clashing keeps a 'v' of its own"):
        opt.load_state_dict(alone.state_dict())


def test_shapes_are_checked_before_anything_moves() -> None:
    named = make_params(shapes=SHAPES)
    opt = SplitLBI(torch.optim.AdamW(named.items(), lr=0.1), **{k: LIVELY[k] for k in ("nu",)})
    run(opt, 2)
    named["linear"].data = torch.randn(3, 3, dtype=torch.float64)
    before = {n: p.detach().clone() for n, p in named.items()}
    named["conv"].grad, named["linear"].grad = torch.ones(SHAPES["conv"]).double(), None
    with pytest.raises(ValueError, match="the v of parameter 'linear' has shape"):
        opt.step()
    for name, p in named.items():
        assert torch.equal(p, before[name])


@pytest.mark.parametrize("v_dtype", [None, torch.bfloat16])
def test_large_matrices_are_coupled_in_parts_as_they_are_whole(
    v_dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for part in (1 << 17, 12):
        monkeypatch.setattr("dessilbi.optim._step.PART", part)
        torch.manual_seed(0)
        p = nn.Parameter(torch.randn(7, 5))
        opt = SplitLBI(torch.optim.AdamW([p], lr=0.05), nu=0.5, c=0.3, v_dtype=v_dtype)
        for _ in range(6):
            p.grad = torch.randn(7, 5)
            torch.manual_seed(1)
            opt.step()
        found.append((p.detach().clone(), opt.dual(p), opt.density()))
    assert 0 < found[0][2] < 1
    # bfloat16 is rounded at random, by other numbers for each part.
    near = 0.0 if v_dtype is None else 0.01
    for whole, parts in zip(found[0][:2], found[1][:2], strict=True):
        torch.testing.assert_close(whole, parts, rtol=near, atol=near)
