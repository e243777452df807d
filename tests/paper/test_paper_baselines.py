"""Each pruning method by the property that defines it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.analysis.subnetworks import share_of_macs
from dessilbi.lab.run.config import (
    Config,
    ConfigError,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.files import LAST, MASK
from dessilbi.lab.run.methods import GradualPruning, Method, NetworkSlimming, SoftFilters
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.build import network_without_data
from dessilbi.lab.training.callbacks import Callback, method_callback
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.start import load_start
from dessilbi.paper.baselines import (
    han_round,
    largest_as,
    normalised_convolutions,
    random_as,
    rate_for,
    rethinking,
    scratch,
    slimmed_mask,
    weak_filters_out,
    whole_filters,
)
from dessilbi.path import Mask, count_macs_per_weight
from dessilbi.path.names import weights_with_twin
from dessilbi.subnet import project

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = Config(
    name="net",
    optimizer=OptimizerConfig(name="sgd", lr=0.1, momentum=0.9),
    schedule=ScheduleConfig(kind="multistep", milestones=(2, 3)),
    epochs=4,
    batch_size=256,
)


def conv_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 16, 3),
    )


def begin(method: Method, model: nn.Module, optimizer: torch.optim.Optimizer) -> Callback:
    """The callback of a method, as the training loop makes it."""
    config = replace(CONFIG, method=method)
    return method_callback(SimpleNamespace(config=config, model=model, optimizer=optimizer))  # type: ignore[arg-type]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 1, 8, 8), torch.randint(3, (16,))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return train(CONFIG, RunOptions(runs=tmp_path_factory.mktemp("runs")))


# ---------------------------------------------------------------------- Network Slimming


def test_slimming_adds_exactly_s_sign_gamma_to_the_scales_and_nothing_else() -> None:
    model = conv_net()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([2.0, -0.5, 0.0, 1.0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    begin(NetworkSlimming(strength=0.25), model, optimizer)
    x, y = batch()
    cross_entropy(model(x), y).backward()
    before = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    optimizer.step()
    for name, p in model.named_parameters():
        assert p.grad is not None
        added = p.grad - before[name]
        wanted = 0.25 * p.detach().sign() if name in ("1.weight", "4.weight") else 0 * added
        torch.testing.assert_close(added, wanted, msg=name)


def test_slimming_takes_the_smallest_scales_over_all_layers() -> None:
    model = conv_net()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([0.1, -5.0, 0.3, 4.0]))
        model[4].weight.copy_(torch.tensor([-0.2, 3.0, 2.0, 0.4, 1.0, 6.0]))
    mask = slimmed_mask(model, 0.8)
    gone = torch.cat([model[1].weight[~mask["1.weight"]], model[4].weight[~mask["4.weight"]]])
    stay = torch.cat([model[1].weight[mask["1.weight"]], model[4].weight[mask["4.weight"]]])
    assert len(gone) > 0
    assert gone.abs().max() < stay.abs().min()
    weights = weights_with_twin(model)
    kept = sum(int(mask[n].sum()) if n in mask.names else w.numel() for n, w in weights.items())
    assert kept <= 0.8 * sum(w.numel() for w in weights.values())
    for conv, norm in (("0", "1"), ("3", "4")):
        rows = mask[f"{conv}.weight"].flatten(1)
        assert torch.equal(rows.all(1), mask[f"{norm}.weight"])
        assert torch.equal(rows.any(1), mask[f"{norm}.bias"])


def test_a_slimmed_channel_is_exactly_zero_and_no_layer_is_emptied() -> None:
    model = conv_net().eval()
    mask = slimmed_mask(model, 0.0)
    assert [int(mask[n].sum()) for n in ("1.weight", "4.weight")] == [1, 1]
    with project(model, mask):
        out = model[:3](batch()[0])
    assert torch.equal(out.abs().amax(dim=(0, 2, 3)) > 0, mask["1.weight"])


def test_slimming_pairs_convolutions_with_their_batchnorm_in_a_residual_net() -> None:
    model = network_without_data(replace(CONFIG, model=ModelConfig(name="resnet-20")))
    pairs = normalised_convolutions(model)
    assert len(pairs) == sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert ("stage2.0.shortcut.conv", "stage2.0.shortcut.bn") in pairs


def test_slimming_refuses_a_net_without_batchnorm() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=r"method:network-slimming: .*needs BatchNorm layers"):
        begin(NetworkSlimming(), net, torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="needs convolutions with BatchNorm"):
        slimmed_mask(net, 0.5)


def test_training_with_slimming_shrinks_the_scales(tmp_path: Path, dense: RunDir) -> None:
    config = replace(CONFIG, method=NetworkSlimming(strength=0.05))
    slim = train(config, RunOptions(runs=tmp_path))
    sizes = []
    for run in (slim, dense):
        norms = [m for m in trained_network(run).modules() if isinstance(m, nn.BatchNorm2d)]
        sizes.append(sum(float(m.weight.detach().abs().sum()) for m in norms))
    assert sizes[0] < 0.8 * sizes[1]


# ---------------------------------------------------------------------- Soft Filter Pruning


def zero_weak_filters(model: nn.Module, rate: float) -> None:
    """As after an epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begin(SoftFilters(rate=rate), model, optimizer).on_epoch_trained(
        SimpleNamespace(model=model)  # type: ignore[arg-type]
    )


def test_soft_pruning_zeroes_the_filters_of_smallest_norm_in_every_layer() -> None:
    model = conv_net()
    norms = [model[i].weight.detach().flatten(1).norm(dim=1) for i in (0, 3)]
    zero_weak_filters(model, 0.5)
    for i, before in zip((0, 3), norms, strict=True):
        zero = model[i].weight.detach().flatten(1).norm(dim=1) == 0
        assert int(zero.sum()) == len(before) // 2
        assert before[zero].max() < before[~zero].min()


def test_a_softly_pruned_filter_is_trained_on_and_may_come_back() -> None:
    """A teacher with one strong filter: the student's, weakest at first, is zeroed and returns."""
    teacher, student = (nn.Conv2d(1, 2, 3, bias=False) for _ in range(2))
    with torch.no_grad():
        for net, sizes in ((teacher, (1.0, 0.1)), (student, (0.01, 0.5))):
            net.weight.copy_(torch.tensor(sizes).reshape(2, 1, 1, 1).expand(2, 1, 3, 3))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    survivors = []
    for _ in range(3):
        zero_weak_filters(student, 0.5)
        survivors.append((student.weight.detach().flatten(1) != 0).any(1).tolist())
        for _ in range(50):
            x = torch.randn(8, 1, 5, 5)
            optimizer.zero_grad()
            (student(x) - teacher(x).detach()).square().mean().backward()
            optimizer.step()
        assert bool((student.weight != 0).all()), "zeroed filters are trained like the others"
    assert survivors == [[False, True], [True, False], [True, False]]


def test_soft_pruning_keeps_a_filter_and_states_its_limits() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Conv2d(1, 10, 3))
    mask = weak_filters_out(model, 0.99)
    assert [int(mask[n].flatten(1).any(1).sum()) for n in mask.names] == [1, 1]
    with pytest.raises(ValueError, match=r"rate must be in \[0, 1\), got 1"):
        weak_filters_out(model, 1.0)
    with pytest.raises(ValueError, match="needs convolutions"):
        weak_filters_out(nn.Linear(2, 2), 0.5)


def test_a_run_with_soft_pruning_ends_pruned(tmp_path: Path) -> None:
    rate = rate_for(network_without_data(CONFIG), 0.7)
    config = replace(CONFIG, method=SoftFilters(rate=rate))
    model = trained_network(train(config, RunOptions(runs=tmp_path)))
    weights = torch.cat([p.detach().flatten() for p in model.parameters() if p.ndim > 1])
    assert float((weights != 0).float().mean()) == pytest.approx(0.7, abs=0.05)


# ---------------------------------------------------------------------- tickets


def ticket() -> Mask:
    filters = torch.tensor([True, False, True, True]).reshape(4, 1, 1, 1).expand(4, 1, 3, 3)
    torch.manual_seed(1)
    return Mask({"0.weight": filters, "7.weight": torch.rand(3, 96) < 0.2})


def test_sgd_lottery_has_the_layer_densities_of_the_ticket_and_the_largest_weights() -> None:
    model, wanted = conv_net(), ticket()
    mask = largest_as(model, wanted)
    assert mask.layer_densities() == wanted.layer_densities()
    norms = model[0].weight.detach().flatten(1).norm(dim=1)
    rows = mask["0.weight"].flatten(1)
    assert torch.equal(rows.all(1), rows.any(1)), "filters as a whole"
    assert norms[rows.all(1)].min() >= norms[~rows.all(1)].max()
    last = model[7].weight.detach().abs()
    assert last[mask["7.weight"]].min() >= last[~mask["7.weight"]].max()


def test_random_has_the_layer_densities_of_the_ticket_and_depends_on_the_seed_alone() -> None:
    mask = random_as(ticket(), seed=0)
    assert mask.layer_densities() == pytest.approx(ticket().layer_densities())
    assert whole_filters(mask["0.weight"])
    assert mask == random_as(ticket(), seed=0)
    assert mask != random_as(ticket(), seed=1)


def test_rethinking_retrains_the_largest_weights_from_the_same_start(
    dense: RunDir,
) -> None:
    config = rethinking(dense, density=0.2)
    assert config.start is not None
    weights, *_, mask = load_start(RunDir(dense.path.parent / config.run_name), config.start)
    initial = dense.read_tensors("init.safetensors")
    assert all(torch.equal(weights[name], initial[name]) for name in initial)
    found = dict(trained_network(dense).named_parameters())
    kept = torch.cat([found[n][mask[n]].abs() for n in mask.names])
    gone = torch.cat([found[n][~mask[n]].abs() for n in mask.names])
    assert kept.min() >= gone.max()
    assert mask.density == pytest.approx(0.2, abs=0.01)


# ---------------------------------------------------------------------- scratch


def test_scratch_starts_from_new_weights_and_e_keeps_the_epochs(
    dense: RunDir,
) -> None:
    config = scratch(dense, rate=0.5, kind="e")
    assert config.epochs == CONFIG.epochs
    assert config.start is not None
    weights, *_ = load_start(RunDir(dense.path.parent / config.run_name), config.start)
    initial = dense.read_tensors("init.safetensors")
    assert not torch.equal(weights["conv1.weight"], initial["conv1.weight"])


def test_scratch_b_spends_the_multiply_adds_of_the_dense_net_but_at_most_twice_the_epochs(
    dense: RunDir,
) -> None:
    share = share_of_macs(CONFIG, weak_filters_out(network_without_data(CONFIG), 0.25))
    assert 0.5 < share < 1
    config = scratch(dense, rate=0.25, kind="b")
    assert config.epochs == round(CONFIG.epochs / share)
    twice = scratch(dense, rate=0.9, kind="b")
    assert twice.epochs == 2 * CONFIG.epochs
    assert twice.schedule.milestones == (4, 6), "the schedule is stretched with the epochs"
    assert share_of_macs(CONFIG, Mask({})) == 1


def test_a_filter_that_is_gone_takes_what_reads_it_along() -> None:
    model = network_without_data(CONFIG)
    each = count_macs_per_weight(model, torch.zeros(1, 1, 8, 8))
    mask = weak_filters_out(model, 0.5)
    conv1, conv2, fc = (each[f"{n}.weight"] * w.numel() for n, w in weights_of(model).items())
    first, second = (float(mask[f"{n}.weight"].float().mean()) for n in ("conv1", "conv2"))
    kept = first * conv1 + first * second * conv2 + second * fc
    assert share_of_macs(CONFIG, mask) == pytest.approx(kept / (conv1 + conv2 + fc))


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    kinds = (nn.Conv2d, nn.Linear)
    return {name: m.weight for name, m in model.named_modules() if isinstance(m, kinds)}


# ---------------------------------------------------------------------- iterative


def test_han_retrains_the_weights_that_are_left_and_never_takes_one_back(
    dense: RunDir,
) -> None:
    parent, masks, runs = dense, [], dense.path.parent
    for wanted in (0.5, 0.2, 0.1):
        config = han_round(parent, density=wanted, epochs=1)
        assert config.start is not None
        *_, mask = load_start(RunDir(runs / config.run_name), config.start)
        last = parent.load(LAST)
        assert last is not None
        weights = last.part("model")
        kept = torch.cat([weights[n][mask[n]].abs() for n in mask.names])
        gone = torch.cat([weights[n][~mask[n]].abs() for n in mask.names])
        assert kept.min() >= gone.max()
        assert mask.density == pytest.approx(wanted, abs=0.002)
        masks.append(mask)
        parent = train(config, RunOptions(runs=runs))
        assert (parent.path / MASK).is_file()
        assert config.optimizer.lr == pytest.approx(0.001), "the last learning rate"
    assert masks[2].issubset(masks[1])
    assert masks[1].issubset(masks[0])


def test_gradual_pruning_ends_at_its_density_in_every_layer(tmp_path: Path) -> None:
    method = GradualPruning(density=0.2, penalty="lasso", every=2, per_layer=True)
    config = replace(CONFIG, method=method)
    train(config, RunOptions(runs=tmp_path))
    run = RunDir(tmp_path / config.run_name)
    for name, weight in weights_of(trained_network(run)).items():
        left = float((weight != 0).float().mean())
        assert left == pytest.approx(0.2, abs=0.02), f"{name}: Zhu and Gupta prune each layer alike"
    record = run.records()[-1]
    assert record["density"] == pytest.approx(0.2, abs=0.01)
    densities = [r["density"] for r in run.records() if "density" in r]
    assert densities == sorted(densities, reverse=True)
