"""Dense, projected and recalibrated scores against computations by hand; all given back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dessilbi.lab.data import Dataset, batches, load_dataset
from dessilbi.lab.models import make_model
from dessilbi.lab.run.config import OptimizerConfig
from dessilbi.lab.training import evaluate as lab_evaluate
from dessilbi.lab.training.evaluate import Score, evaluate, evaluate_sparse
from dessilbi.lab.training.optimizers import make_optimizer
from dessilbi.optim import DessiLBI
from dessilbi.subnet import project, recalibrate_batchnorm
from dessilbi.subnet.batchnorm import has_batchnorm

_HALF_IN_GAMMA = OptimizerConfig(lr=0.05, nu=1.0, momentum=0.9, c=0.5)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits", dtype=torch.float64, validation=200)


def trained(digits: Dataset, name: str = "digits-net") -> tuple[nn.Module, DessiLBI]:
    """A network after some steps, with a part of its weights in Gamma's support."""
    torch.manual_seed(0)
    model = make_model(name, num_classes=10, in_channels=1, input_size=8, dtype=torch.float64)
    optimizer = make_optimizer(model, _HALF_IN_GAMMA)
    assert isinstance(optimizer, DessiLBI)
    x, y = first(digits, 128)
    for _ in range(16):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    assert 0 < optimizer.density() < 1
    return model, optimizer


def first(digits: Dataset, images: int) -> tuple[Tensor, Tensor]:
    return next(batches(digits.train, images, seed=0, epoch=0, shuffle=False))


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


def assert_same_state(model: nn.Module, before: dict[str, Tensor]) -> None:
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def masked_copy(model: nn.Module, optimizer: DessiLBI) -> nn.Module:
    """Weights outside Gamma's support set to zero, by hand, in another network."""
    copied = copy.deepcopy(model)
    weights = dict(copied.named_parameters())
    originals = dict(model.named_parameters())
    twins = {id(p) for _, p in optimizer.twins()}
    with torch.no_grad():
        for name, p in originals.items():
            if id(p) in twins:
                weights[name][optimizer.gamma(p) == 0] = 0
    return copied


# ---------------------------------------------------------------------- dense


def test_score_is_cross_entropy_and_share_of_right_answers(digits: Dataset) -> None:
    model, _ = trained(digits)
    x, y = first(digits, len(digits.train))
    model.eval()
    with torch.no_grad():
        logits = model(x)
    model.train()
    score = evaluate(model, digits.train)
    assert score.labels == len(y)
    assert score.correct == int((logits.argmax(1) == y).sum())
    assert score.mean_loss == pytest.approx(float(cross_entropy(logits, y)), rel=1e-12)
    assert score.accuracy == 100 * score.correct / len(y)


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_changes_nothing(digits: Dataset, training: bool) -> None:
    model, _ = trained(digits)
    model.train(training)
    before = state_of(model)
    evaluate(model, digits.test)
    assert model.training is training
    assert_same_state(model, before)


# ---------------------------------------------------------------------- projected


@pytest.mark.parametrize("name", ["digits-net", "lenet-300-100"])
def test_projected_is_the_support_of_gamma_and_gives_back_exactly(
    digits: Dataset, name: str
) -> None:
    model, optimizer = trained(digits, name)
    before = state_of(model)
    by_hand = masked_copy(model, optimizer)
    with project(model, optimizer.mask(model)):
        assert_same_state(model, by_hand.state_dict())
    assert_same_state(model, before)


def test_projected_gives_back_after_an_exception(digits: Dataset) -> None:
    model, optimizer = trained(digits)
    before = state_of(model)
    with pytest.raises(KeyboardInterrupt), project(model, optimizer.mask(model)):
        raise KeyboardInterrupt
    assert_same_state(model, before)


def test_projected_gives_back_when_a_support_fails(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = trained(digits)
    before = state_of(model)

    def failing() -> None:
        raise MemoryError

    monkeypatch.setattr(optimizer, "penalties", failing)
    with pytest.raises(MemoryError), project(model, optimizer.mask(model)):
        pass
    assert_same_state(model, before)


def test_sparse_scores_are_those_of_a_masked_copy(digits: Dataset) -> None:
    model, optimizer = trained(digits)
    before = state_of(model)
    sparse, recalibrated = evaluate_sparse(model, optimizer, digits.test, digits.train)
    assert_same_state(model, before)

    by_hand = masked_copy(model, optimizer)
    assert sparse == evaluate(by_hand, digits.test)
    recalibrate_batchnorm(by_hand, lab_evaluate.recalibration_inputs(digits.train))
    assert recalibrated == evaluate(by_hand, digits.test)
    assert recalibrated != sparse


def test_without_batchnorm_there_is_nothing_to_recalibrate(digits: Dataset) -> None:
    model, optimizer = trained(digits, "lenet-300-100")
    sparse, recalibrated = evaluate_sparse(model, optimizer, digits.test, digits.train)
    assert sparse == recalibrated == evaluate(masked_copy(model, optimizer), digits.test)


def test_buffers_are_given_back_after_an_exception(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = trained(digits)
    before = state_of(model)
    scores = iter([Score(0.0, 0, 1)])
    monkeypatch.setattr(lab_evaluate, "evaluate", lambda *_: next(scores))
    with pytest.raises(StopIteration):
        evaluate_sparse(model, optimizer, digits.test, digits.train)
    assert_same_state(model, before)


def test_recalibration_survives_a_single_image_left_over() -> None:
    """Of one image a BatchNorm1d layer has no variance."""
    digits = load_dataset("digits", validation=441)
    assert len(digits.train) % lab_evaluate.BATCH == 1
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))
    optimizer = make_optimizer(model, OptimizerConfig())
    assert isinstance(optimizer, DessiLBI)
    evaluate_sparse(model, optimizer, digits.test, digits.train)


def test_recalibration_takes_a_small_set_whole() -> None:
    digits = load_dataset("digits", validation=1100)
    assert sum(len(x) for x in lab_evaluate.recalibration_inputs(digits.train)) == 342


# ---------------------------------------------------------------------- recalibration


def test_statistics_are_those_of_all_batches() -> None:
    torch.manual_seed(3)
    conv, norm = nn.Conv2d(2, 5, 3).double(), nn.BatchNorm2d(5).double()
    model = nn.Sequential(conv, norm)
    inputs = [3 * torch.randn(20, 2, 6, 6, dtype=torch.float64) + 1 for _ in range(4)]
    recalibrate_batchnorm(model, inputs)

    with torch.no_grad():
        seen = [conv(x).transpose(0, 1).flatten(1) for x in inputs]  # (channel, values)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    torch.testing.assert_close(norm.running_mean, torch.cat(seen, 1).mean(1), rtol=1e-12, atol=0)
    of_batches = torch.stack([s.var(1) for s in seen]).mean(0)
    torch.testing.assert_close(norm.running_var, of_batches, rtol=1e-12, atol=0)


def test_earlier_statistics_do_not_matter() -> None:
    torch.manual_seed(3)
    norm, x = nn.BatchNorm1d(4), torch.randn(50, 4)
    other = copy.deepcopy(norm)
    other.running_mean.fill_(9.0)  # type: ignore[union-attr]
    other.num_batches_tracked.fill_(1000)  # type: ignore[union-attr]
    recalibrate_batchnorm(norm, [x])
    recalibrate_batchnorm(other, [x])
    assert_same_state(norm, other.state_dict())


def test_modes_momentum_and_weights_are_given_back() -> None:
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.3), nn.Dropout(), nn.BatchNorm1d(4)
    )
    model.train()
    model[3].eval()  # a frozen layer
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    recalibrate_batchnorm(model, [torch.randn(10, 4)])
    assert [m.training for m in model] == [True, True, True, False]
    assert (model[1].momentum, model[3].momentum) == (0.3, 0.1)
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())


def test_dropout_stays_off_and_draws_nothing() -> None:
    model = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(3))
    x = torch.randn(40, 3)
    before = torch.get_rng_state()
    recalibrate_batchnorm(model, [x])
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(model[1].running_mean, x.mean(0))


def test_modes_are_given_back_after_an_exception() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.3))
    model.eval()
    with pytest.raises(RuntimeError):
        recalibrate_batchnorm(model, [torch.randn(10, 5)])
    assert not model[1].training
    assert model[1].momentum == 0.3


def test_no_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least one batch of inputs, got none"):
        recalibrate_batchnorm(nn.BatchNorm1d(3), [])


def test_a_model_without_statistics_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False))
    assert not has_batchnorm(model)
    recalibrate_batchnorm(model, [])
