from __future__ import annotations

import copy
import math

import pytest
import torch
from path_problems import EPOCH, STEPS, make, recorded, same, train, train_step
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from dessilbi.optim import DessiLBI
from dessilbi.path import PathRecorder, SolutionPath
from dessilbi.path.twins import ranked_weights, twins_by_name

GROUPED = ("conv.weight", "up.weight")


@pytest.mark.parametrize("base", ["sgd", "adamw"])
def test_events_are_those_of_a_replay_of_every_step(base):
    net, opt = make(base)
    rec = PathRecorder(net, opt)
    params = dict(net.named_parameters())
    dims = {"conv.weight": 0, "up.weight": 1}
    was = {name: torch.zeros(params[name].shape[dims[name]], dtype=torch.bool) for name in GROUPED}
    expected = {name: [] for name in GROUPED}
    for step in range(1, STEPS + 1):
        train_step(net, opt, step)
        for name in GROUPED:
            now = opt.support(params[name]).transpose(0, dims[name]).flatten(1)[:, 0]
            for g in torch.nonzero(now != was[name]).flatten().tolist():
                expected[name].append((step, g, bool(now[g])))
            was[name] = now
    for name in GROUPED:
        found = [tuple(e) for e in zip(*(c.tolist() for c in rec.path.events(name)), strict=True)]
        assert found == expected[name]
        first = [min((s for s, g, up in found if g == k and up), default=-1) for k in range(5)]
        assert rec.path.entry_steps(name)[:5].tolist() == first
    groups = [g for _, g, up in expected["conv.weight"] if up]
    assert len(groups) > len(set(groups)), "the problem must make a group re-enter"


@pytest.mark.parametrize("base", ["sgd", "adamw"])
def test_marks_hold_what_the_optimizer_says(base):
    net, opt = make(base)
    rec = PathRecorder(net, opt)
    for step in range(1, EPOCH + 1):
        train_step(net, opt, step)
    rec.record(1, loss=0.5)
    path, params = rec.path, dict(net.named_parameters())
    gap = 0.0
    nu = opt.param_groups[0]["nu"]
    for layer in path.layers:
        W = params[layer.name].detach()
        Gamma, V = opt.gamma(params[layer.name]), opt.state[params[layer.name]]["v"]
        assert torch.equal(path.support(1)[layer.name], opt.support(params[layer.name]))
        assert path.density(1, layer.name) == opt.density(params[layer.name])
        rows = layer.group_dim or 0
        for norms, x in zip(path.norms(1, layer.name), (W, Gamma, V), strict=True):
            expected = x.transpose(0, rows).flatten(1).norm(dim=1)
            assert torch.allclose(norms, expected)
        gap += float((W - Gamma).square().sum())
    assert path.density(1) == opt.density()
    assert path.gap(1) == pytest.approx(math.sqrt(gap))
    assert path.augmented_loss(1) == pytest.approx(0.5 + gap / (2 * nu))


def test_epoch_zero_and_a_mark_without_loss():
    net, opt = make()
    rec = PathRecorder(net, opt)
    rec.record(0)
    assert rec.path.density(0) == 0
    assert rec.path.loss(0) is None
    assert rec.path.augmented_loss(0) is None
    W = [p.detach() for _, p in opt.twins()]
    assert rec.path.gap(0) == pytest.approx(math.sqrt(sum(float(w.square().sum()) for w in W)))


def test_lasso_entries_are_the_marks_at_which_they_are_seen():
    path = recorded()
    expected = torch.full((4 * 125,), -1)
    for e in reversed(path.epochs):
        expected[path.support(e)["fc.weight"].flatten()] = e * EPOCH
    assert torch.equal(path.entry_steps("fc.weight"), expected)
    inside = torch.zeros(500, dtype=torch.bool)
    for step, g, entered in zip(*path.events("fc.weight"), strict=True):
        assert step % EPOCH == 0
        inside[g] = entered
    assert torch.equal(inside, path.support(path.epochs[-1])["fc.weight"].flatten())


@pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}, {"base": "adamw"}])
def test_training_is_not_changed(how):
    net, opt = make(**how)
    for step in range(1, 21):
        train_step(net, opt, step)
    other, watched = make(**how)
    rec = PathRecorder(other, watched)
    train(other, watched, rec, stop=20)
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("stop", [0, 1, 7, EPOCH, 23, STEPS])
@pytest.mark.parametrize("base", ["sgd", "adamw"])
def test_resumed_at_any_step_as_if_never_interrupted(base, stop, tmp_path):
    net, opt = make(base)
    rec = PathRecorder(net, opt)
    rec.record(0)
    train(net, opt, rec, stop=stop)
    saved = copy.deepcopy((net.state_dict(), opt.state_dict()))
    # It went on for a while and saved its path before it was killed.
    train(net, opt, rec, start=stop, stop=min(stop + 8, STEPS))
    rec.path.save(tmp_path / "path.safetensors")

    net, opt = make(base)
    net.load_state_dict(saved[0])
    opt.load_state_dict(saved[1])
    loaded = SolutionPath.load(tmp_path / "path.safetensors")
    loaded = loaded.truncated(step=stop, epoch=stop // EPOCH)
    rec = PathRecorder(net, opt, path=loaded, step=stop)
    train(net, opt, rec, start=stop)
    rec.path.save(tmp_path / "resumed.safetensors")
    recorded(base=base).save(tmp_path / "whole.safetensors")
    assert (tmp_path / "resumed.safetensors").read_bytes() == (
        tmp_path / "whole.safetensors"
    ).read_bytes()


def test_resume_refuses_a_path_that_is_not_the_optimizers():
    path = recorded()
    net, opt = make()
    with pytest.raises(ValueError, match=r"disagree on the support; load the checkpoint"):
        PathRecorder(net, opt, path=path)
    other = nn.Conv2d(1, 3, 2)
    with pytest.raises(ValueError, match="another network"):
        PathRecorder(other, DessiLBI(other.parameters()), path=path.truncated(step=0))
    with pytest.raises(ValueError, match=f"step must be from 0 to {STEPS}"):
        path.truncated(step=STEPS + 1)
    with pytest.raises(ValueError, match="give path="):
        PathRecorder(net, opt, step=3)


def test_truncated_is_the_path_as_it_was():
    net, opt = make()
    rec = PathRecorder(net, opt)
    rec.record(0)
    train(net, opt, rec, stop=17)
    assert same(rec.path.truncated(), rec.path)
    early = rec.path.truncated()
    train(net, opt, rec, start=17)
    assert same(rec.path.truncated(step=17, epoch=3), early)
    assert rec.path.truncated(epoch=2).epochs == (0, 1, 2)
    assert same(rec.path.truncated(epoch=2), rec.path.truncated(step=2 * EPOCH))
    assert rec.path.truncated(epoch=1).step == EPOCH
    assert rec.path.truncated(step=7, epoch=0).step == 7


def test_a_path_is_resumed_at_a_marked_epoch():
    whole = recorded()
    net, opt = make()
    rec = PathRecorder(net, opt)
    rec.record(0)
    train(net, opt, rec, stop=2 * EPOCH)
    resumed = PathRecorder(net, opt, path=whole.truncated(epoch=2))
    rec.close()
    train(net, opt, resumed, start=2 * EPOCH)
    assert same(resumed.path, whole)


def test_a_path_cut_before_its_first_mark_begins_anew():
    net, opt = make()
    rec = PathRecorder(net, opt)
    train(net, opt, rec, stop=EPOCH)
    assert rec.path.epochs == (1,)
    early = rec.path.truncated(epoch=0)
    assert early.step == 0
    assert len(early.event_log.all().steps) == 0


def test_a_step_that_only_creates_state_is_not_counted():
    net, opt = make()
    rec = PathRecorder(net, opt)
    get_optimizer_state_dict(net, opt)
    assert opt.state
    assert rec.step == 0
    train_step(net, opt, 1)
    assert rec.step == 1
    for group in opt.param_groups:
        group["lr"] = torch.tensor(0.0)
    opt.step()
    assert rec.step == 1


def test_closing_stops_the_recorder():
    net, opt = make()
    with PathRecorder(net, opt) as rec:
        train_step(net, opt, 1)
    train_step(net, opt, 2)
    assert rec.step == 1


def test_names_come_from_the_model():
    net, _ = make()
    opt = DessiLBI(net.parameters(), lr=0.1)
    assert [layer.name for layer in PathRecorder(net, opt).path.layers] == [
        "conv.weight",
        "up.weight",
        "fc.weight",
    ]


def test_vectors_and_one_penalty_only():
    net = nn.Linear(3, 2)
    opt = DessiLBI(
        [
            {"params": [net.weight], "penalty": "group_lasso"},
            {"params": [net.bias], "penalty": "lasso"},
        ],
        lr=1.0,
        nu=1.0,
        lambd=0.01,
    )
    rec = PathRecorder(net, opt)
    for step in range(1, 4):
        opt.zero_grad()
        net(torch.ones(1, 3)).sum().backward()
        opt.step()
        rec.record(step)
    assert rec.path.norms(3, "bias").W.shape == (2,)
    assert rec.path.support(3)["weight"].shape == (2, 3)
    assert torch.equal(rec.path.support(3)["bias"], opt.support(net.bias))


def test_parameters_without_gradient_stay_outside():
    net, opt = make()
    rec = PathRecorder(net, opt)
    net.up(torch.ones(1, 6, 2, 2)).sum().backward()
    opt.step()
    rec.record(1)
    assert rec.path.density(1, "conv.weight") == 0
    assert rec.step == 1


def test_refuses_bad_use():
    net, opt = make()
    with pytest.raises(TypeError, match="must be a DessiLBI or SplitLBI optimizer, got SGD"):
        PathRecorder(net, torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="is not one of the model's"):
        PathRecorder(nn.Linear(2, 2), opt)
    with pytest.raises(ValueError, match="nothing to record"):
        PathRecorder(net, DessiLBI(net.parameters(), penalty=None))
    rec = PathRecorder(net, opt)
    with pytest.raises(ValueError, match="epoch must be an integer >= 0, got -1"):
        rec.record(-1)
    rec.record(3)
    with pytest.raises(ValueError, match="larger than the last one recorded, 3, got 3"):
        rec.record(3)
    with pytest.raises(ValueError, match="epoch 2 was not recorded; recorded epochs: 3"):
        rec.path.support(2)
    with pytest.raises(ValueError, match=r"unknown layer 'conv.wieght'; did you mean"):
        rec.path.events("conv.wieght")
    opt.add_param_group({"params": [("late", nn.Parameter(torch.ones(2, 2)))]})
    with pytest.raises(RuntimeError, match="after the recorder was made"):
        rec.record(4)


@pytest.mark.parametrize("needs", [twins_by_name, ranked_weights])
def test_what_needs_whole_weights_refuses_dtensors(needs, monkeypatch):
    # What makes a DTensor one, without starting a process group.
    net, opt = make()
    monkeypatch.setattr(nn.Parameter, "placements", (), raising=False)
    monkeypatch.setattr(nn.Parameter, "to_local", None, raising=False)
    with pytest.raises(ValueError, match=r"'conv.weight' is a DTensor"):
        needs(net, opt)
    assert needs(net, opt, sharded=True)


def test_half_precision_weights_and_channels_last():
    net, _ = make()
    net = net.to(torch.bfloat16).to(memory_format=torch.channels_last)
    opt = DessiLBI(net.parameters(), lr=0.5, nu=1.0, lambd=0.01)
    rec = PathRecorder(net, opt)
    opt.zero_grad()
    net(torch.randn(2, 1, 6, 6, dtype=torch.bfloat16)).sum().backward()
    opt.step()
    rec.record(1)
    for name, p in net.named_parameters():
        if p.ndim > 1:
            assert torch.equal(rec.path.support(1)[name], opt.support(p))
    assert 0 < rec.path.mask(density=0.5).density <= 0.5
