"""Tied groups: the step is that of the tensors' slices put side by side in one matrix."""

import copy
import io
import math
import pickle
from typing import Any

import pytest
import torch
from test_reference import IMPLEMENTATIONS, VARIANTS, noise
from torch import Tensor, nn

from compilers import needs_compiler
from dessilbi import DessiLBI
from dessilbi.optim import GroupLasso
from dessilbi.optim._reference import Reference
from dessilbi.optim.prox import TiedGroupLasso

GROUPS = 5
# Shapes with five slices along the dimension.
MEMBERS: dict[int, list[tuple[int, ...]]] = {
    0: [(5, 4, 3, 3), (5, 7), (5, 2, 1, 1), (5,)],
    1: [(4, 5, 3, 3), (7, 5), (1, 5, 2)],
    -1: [(4, 3, 5), (5,), (2, 5)],
}


def as_matrix(tensors: list[Tensor], dim: int) -> Tensor:
    return torch.cat([t.movedim(dim, 0).reshape(GROUPS, -1) for t in tensors], dim=1)


def from_matrix(matrix: Tensor, like: list[Tensor], dim: int) -> list[Tensor]:
    parts = matrix.split([t.numel() // GROUPS for t in like], dim=1)
    shapes = [t.movedim(dim, 0).shape for t in like]
    return [p.reshape(s).movedim(0, dim) for p, s in zip(parts, shapes, strict=True)]


def members(dim: int = 0, channels_last: bool = False) -> list[nn.Parameter]:
    made = [noise(*shape, seed=i) for i, shape in enumerate(MEMBERS[dim])]
    if channels_last:
        made[0] = made[0].contiguous(memory_format=torch.channels_last)
    return [nn.Parameter(W) for W in made]


def tied(params: list[nn.Parameter], **options: Any) -> DessiLBI:
    return DessiLBI(params, penalty="group_lasso", tied=True, **options)


def give_gradients(params: list[nn.Parameter], k: int, dim: int = 0) -> Tensor:
    """Gradients that depend on W, so that errors would feed back; also returned as a matrix."""
    W = as_matrix(params, dim).detach()
    grads = 0.1 * W + 0.3 * noise(*W.shape, seed=k)
    for p, grad in zip(params, from_matrix(grads, list(params), dim), strict=True):
        p.grad = grad
    return grads


def assert_near(found: list[Tensor], wanted: Tensor, dim: int) -> None:
    for mine, other in zip(found, from_matrix(wanted, found, dim), strict=True):
        torch.testing.assert_close(mine.detach(), other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    ("dim", "restricted"),
    [(0, False), (1, False), (-1, False), (0, True)],
    ids=["dim 0", "dim 1", "dim -1", "restricted"],
)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_sixty_steps(how: dict[str, bool], variant: str, dim: int, restricted: bool) -> None:
    options = {"nu": 2.0, "lambd": 0.5, "lr": 0.1} | VARIANTS[variant]
    params = members(dim, channels_last=dim == 0)
    opt = tied(params, group_dim=dim, **options, **how)
    reference = Reference(as_matrix(params, dim).detach(), penalty="group_lasso", **options)
    for k in range(60):
        grads, moves = give_gradients(params, k, dim), None
        if restricted and k % 3:
            moves = noise(*grads.shape, seed=7000 + k) > 0.3
            parts = from_matrix(moves, list(params), dim)
            parts[0].fill_(True)  # the loss moves one of them as a whole
            opt.restrict(dict(list(zip(params, parts, strict=True))[1:]))
        else:
            opt.restrict({})
        reference.step(grads, moves)
        opt.step()
        if k % 10 == 9:
            assert_near(list(params), reference.W, dim)
            assert_near([opt.gamma(p) for p in params], reference.Gamma, dim)
            for p, inside in zip(
                params, from_matrix(reference.Gamma != 0, list(params), dim), strict=True
            ):
                assert torch.equal(opt.support(p), inside)
    assert reference.Gamma.any(), "the test never reached the sparse part"
    if reference.buffer is not None:
        assert_near([opt.state[p]["momentum_buffer"] for p in params], reference.buffer, dim)


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
@pytest.mark.parametrize("scale", ["size", "init"])
def test_scaled_thresholds_are_those_of_the_whole(how: dict[str, bool], scale: str) -> None:
    params = members()
    matrix = as_matrix(params, 0).detach()
    if scale == "size":
        factor: Any = math.sqrt(matrix.shape[1])
    else:
        factor = torch.linalg.vector_norm(matrix, dim=1, keepdim=True)
    options: dict[str, Any] = {"nu": 2.0, "momentum": 0.9}
    opt = tied(params, lambd=0.05, lambd_scale=scale, **options, **how)
    before: Any = opt.penalty(params[1]).lambd
    assert float(sum(before) if scale == "init" else before) > 0  # known before the first step
    reference = Reference(matrix, lambd=0.05 * factor, penalty="group_lasso", **options)
    for k in range(60):
        reference.step(give_gradients(params, k))
        opt.step()
    assert_near(list(params), reference.W, 0)
    assert_near([opt.gamma(p) for p in params], reference.Gamma, 0)
    assert reference.Gamma.any()


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_a_tensor_without_gradient_rests_but_counts(how: dict[str, bool]) -> None:
    params = members()[:2]
    opt = tied(params, lr=0.1, nu=2.0, lambd=0.3, **how)
    for k in range(20):
        give_gradients(params, k)
        opt.step()
    assert opt.support(params[0]).any()
    params[1].grad = None
    W, V = params[1].detach().clone(), opt.state[params[1]]["v"].clone()
    mine = {name: x.clone() for name, x in opt.state[params[0]].items()}
    before, gamma = params[0].detach().clone(), opt.gamma(params[0])
    norms = torch.hypot(mine["v"].flatten(1).norm(dim=1), V.norm(dim=1))
    shrunk = (1 - 0.3 / norms).relu().view(-1, 1, 1, 1) * mine["v"]
    torch.testing.assert_close(gamma, shrunk)
    params[0].grad = torch.zeros_like(params[0])
    opt.step()
    assert torch.equal(params[1], W)
    assert torch.equal(opt.state[params[1]]["v"], V)
    torch.testing.assert_close(params[0].detach(), before - 0.1 / 2.0 * (before - gamma))


def test_thresholds_agree_where_one_tensor_begins_later() -> None:
    params = members()[:2]
    opt = tied(params, lambd_scale="init", lambd=0.3)
    first = opt.penalty(params[1]).lambd
    params[0].grad = torch.ones_like(params[0])
    for _ in range(3):
        opt.step()
    give_gradients(params, 0)
    opt.step()
    a, b = (opt.state[p]["lambd_scale"] for p in params)
    assert a.shape == (5, 1, 1, 1)
    assert b.shape == (5, 1)
    assert torch.equal(a.flatten(), b.flatten())
    assert isinstance(first, Tensor)
    assert torch.equal(0.3 * b, first)


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_one_tensor_alone_is_an_ordinary_group(how: dict[str, bool]) -> None:
    alone, joined = members()[:1], members()[:1]
    options: dict[str, Any] = {"lr": 0.1, "nu": 2.0, "lambd": 0.3, "momentum": 0.9}
    opts = [
        DessiLBI(alone, penalty="group_lasso", **options, **how),
        tied(joined, **options, **how),
    ]
    for k in range(30):
        for params, opt in zip((alone, joined), opts, strict=True):
            give_gradients(params, k)
            opt.step()
    torch.testing.assert_close(alone[0], joined[0], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_slices_enter_and_leave_at_the_same_step(how: dict[str, bool], dtype: torch.dtype) -> None:
    params = [nn.Parameter(p.detach().to(dtype)) for p in members()]
    opt = tied(params, lr=0.1, nu=2.0, lambd=5.0, **how)
    seen = set()
    for k in range(160):
        for p in params:  # drawn to its slice's number, later beyond zero
            target = torch.arange(5, dtype=dtype).view(-1, *[1] * (p.ndim - 1))
            p.grad = p.detach() - (1 if k < 80 else -1) * target
        opt.step()
        insides = {tuple(opt.penalty(p).active(opt.state[p]["v"]).tolist()) for p in params}
        assert len(insides) == 1
        gammas = {tuple((opt.gamma(p) != 0).flatten(1).any(1).tolist()) for p in params[:3]}
        assert gammas == insides
        seen |= insides
    assert len(seen) > 3
    assert opt.density() < 1


def test_the_parts_add_up_to_omega() -> None:
    params = members()
    opt = tied(params, lr=0.1, nu=2.0, lambd=0.5)
    for k in range(30):
        give_gradients(params, k)
        opt.step()
    gammas = [opt.gamma(p) for p in params]
    found = sum(float(opt.penalty(p).value(g)) for p, g in zip(params, gammas, strict=True))
    whole = GroupLasso(0.5).value(as_matrix(gammas, 0))
    assert whole > 0
    assert found == pytest.approx(float(whole), rel=1e-12)
    assert isinstance(opt.penalty(params[0]), TiedGroupLasso)


@pytest.mark.parametrize("scale", [None, "size", "init"])
def test_all_penalties_at_once_are_those_of_each(scale: Any) -> None:
    together, alone = members(), members(1)
    bias = nn.Parameter(torch.ones(3).double())
    groups: list[dict[str, Any]] = [
        {"params": together, "penalty": "group_lasso", "tied": True},
        {"params": [*alone, bias], "group_dim": 1},
    ]
    opt = DessiLBI(groups, lr=0.1, nu=2.0, lambd=0.1, lambd_scale=scale)
    for _ in range(2):  # before the first step and after it
        found = opt.penalties()
        assert list(found) == [p for _, p in opt.twins()]
        assert bias not in found
        for p, penalty in found.items():
            V = noise(*p.shape, seed=3)
            assert type(penalty) is type(opt.penalty(p))
            assert torch.equal(penalty.prox(V), opt.penalty(p).prox(V))
        for p in (*together, *alone, bias):
            p.grad = torch.ones_like(p)
        opt.step()


# ------------------------------------------------------------------ checkpoints and copies


@pytest.mark.parametrize("way", ["state_dict", "deepcopy", "pickle"])
@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_a_restored_run_is_the_same_bit_by_bit(how: dict[str, bool], way: str) -> None:
    options: dict[str, Any] = {
        "lr": 0.1,
        "nu": 2.0,
        "lambd": 0.1,
        "momentum": 0.9,
        "lambd_scale": "init",
        **how,
    }
    params = members()
    opt = tied(params, **options)
    for k in range(10):
        give_gradients(params, k)
        opt.step()
    if way == "state_dict":
        others = [nn.Parameter(p.detach().clone()) for p in params]
        restored = tied(others, **options)
        file = io.BytesIO()
        torch.save(opt.state_dict(), file)
        file.seek(0)
        restored.load_state_dict(torch.load(file))
    else:
        if way == "deepcopy":
            others, restored = copy.deepcopy((params, opt))
        else:
            others, restored = pickle.loads(pickle.dumps((params, opt)))
        assert restored.param_groups[0]["tied"] is True
    for k in range(10, 20):
        for group, one in ((params, opt), (others, restored)):
            give_gradients(group, k)
            one.step()
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)
        assert torch.equal(opt.gamma(p), restored.gamma(q))
        assert opt.state[p].keys() == restored.state[q].keys()
        assert all(torch.equal(opt.state[p][key], restored.state[q][key]) for key in opt.state[p])


def test_checkpoints_from_before_are_not_tied() -> None:
    params = members()
    opt = DessiLBI(params, penalty="group_lasso")
    state = opt.state_dict()
    del state["param_groups"][0]["tied"]
    opt.load_state_dict(state)
    assert opt.param_groups[0]["tied"] is False


def test_tied_groups_had_another_name_in_older_checkpoints() -> None:
    opt = tied(members())
    state = opt.state_dict()
    state["param_groups"][0]["coupled"] = state["param_groups"][0].pop("tied")
    opt.load_state_dict(state)
    assert opt.param_groups[0]["tied"] is True
    assert "coupled" not in opt.param_groups[0]
    with pytest.raises(ValueError, match="option 'coupled' is now called 'tied'"):
        DessiLBI([{"params": members(), "coupled": True}])


@pytest.mark.slow
@needs_compiler
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_under_torch_compile() -> None:
    plain, traced = members()[:2], members()[:2]
    options: dict[str, Any] = {"lr": 0.1, "nu": 2.0, "lambd": 0.3, "momentum": 0.9}
    opts = [tied(plain, **options), tied(traced, **options)]
    step = torch.compile(opts[1].step)
    for k in range(5):
        give_gradients(plain, k)
        give_gradients(traced, k)
        opts[0].step()
        step()
    for p, q in zip(plain, traced, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(opts[0].gamma(p), opts[1].gamma(q), rtol=1e-10, atol=1e-11)


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        ([(5, 2)], {"tied": 1}, "tied must be True or False, got 1"),
        (
            [(5, 2, 2), (5, 3)],
            {"tied": True},
            r"needs penalty 'group_lasso' for every tensor, got 'auto' for parameter 1 of shape "
            r"\(5, 3\) \(parameter group 0\); set penalty",
        ),
        (
            [(5, 2), (4, 2)],
            {"tied": True, "penalty": "group_lasso"},
            "same slices along group_dim 0 for all tensors, got 5 for parameter 0 and 4 for 1",
        ),
    ],
)
def test_what_cannot_be_tied(
    shapes: list[tuple[int, ...]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        DessiLBI([nn.Parameter(torch.zeros(shape)) for shape in shapes], **options)


def test_devices_and_dtypes_must_agree() -> None:
    first = nn.Parameter(torch.zeros(3, 2))
    for other, message in [
        (torch.zeros(3, 2, device="meta"), "same device for all tensors, got cpu"),
        (torch.zeros(3, 2).half(), r"same dtype .* got torch.float32 for parameter 'a' and"),
    ]:
        named = {"a": first, "b": nn.Parameter(other)}
        with pytest.raises(ValueError, match=message):
            DessiLBI(named.items(), penalty="group_lasso", tied=True)
