"""What is left of a network, channel by channel, and what is refused or kept whole by name."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from compaction_nets import (
    NETS,
    Hardcoded,
    Separable,
    filter_mask,
    lab_net,
    masked,
    randomize,
    relative,
)
from dessilbi import Mask, project
from dessilbi.compaction import Compact, CompactError, compact

X = torch.zeros(1, 3, 8, 8)


def rows_off(model: nn.Module, **off: list[int]) -> Mask:
    """A mask with some rows off; ``a__weight=[0, 2]`` means rows 0 and 2 of ``a.weight``."""
    found = {}
    for key, rows in off.items():
        name = key.replace("__", ".")
        keep = torch.ones_like(model.get_parameter(name), dtype=torch.bool)
        keep[rows] = False
        found[name] = keep
    return Mask(found)


def quick(model: nn.Module, mask: Mask, x: Tensor = X, **options: object) -> Compact:
    return compact(model, mask, x, latency=False, **options)  # type: ignore[arg-type]


def shapes(small: Compact) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in small.model.named_parameters()}


class Net(nn.Sequential):
    """Layers by name."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)


def two_convs(padding: int, *, shift: float = 0.7) -> Net:
    torch.manual_seed(1)
    net = Net(
        a=nn.Conv2d(3, 6, 3, padding=1, bias=False),
        bn=nn.BatchNorm2d(6),
        relu=nn.ReLU(),
        b=nn.Conv2d(6, 4, 3, padding=padding, bias=False),
    )
    nn.init.constant_(net.bn.bias, shift)
    return net


# ---------------------------------------------------------------------- constants


def test_a_padded_convolution_gets_one_carrier_for_all_dead_channels() -> None:
    net = two_convs(padding=1)
    small = quick(net, rows_off(net, a__weight=[1, 2, 5]))
    assert small.report.carriers == 1
    assert shapes(small)["a.weight"][0] == 4  # three alive, one carrier
    assert shapes(small)["b.weight"] == (4, 4, 3, 3)
    carrier = small.plan.tensors["bn.weight"].stays[0].index(1)
    norm = small.model.get_submodule("bn")
    assert norm.weight[carrier] == 0  # scale 0, so that training keeps it constant as well
    assert norm.bias[carrier].item() == pytest.approx(0.7)
    total = net.b.weight[:, [1, 2, 5]].sum(1)
    assert torch.allclose(small.model.get_parameter("b.weight")[:, carrier], total, atol=1e-6)


def test_a_convolution_without_padding_gets_a_bias_instead() -> None:
    net = two_convs(padding=0)
    small = quick(net, rows_off(net, a__weight=[1, 2, 5]))
    assert small.report.carriers == 0
    assert shapes(small) == {
        "a.weight": (3, 3, 3, 3),
        "bn.weight": (3,),
        "bn.bias": (3,),
        "b.weight": (4, 3, 3, 3),
        "b.bias": (4,),
    }


def test_nothing_is_carried_where_the_constant_is_zero() -> None:
    net = two_convs(padding=1, shift=-0.7)  # behind the ReLU
    small = quick(net, rows_off(net, a__weight=[1, 2, 5]))
    assert small.report.carriers == 0
    assert shapes(small)["b.weight"] == (4, 3, 3, 3)
    assert "b.bias" not in shapes(small)


def test_the_border_is_why_a_bias_would_be_wrong() -> None:
    """The masked model differs between border and interior, and so does the compact one."""
    net = two_convs(padding=1).double().eval()
    mask = rows_off(net, a__weight=list(range(6)))
    x = torch.randn(2, 3, 8, 8).double()
    (wanted,) = masked(net, mask, x)
    assert not torch.allclose(wanted[0, 0, 0, 0], wanted[0, 0, 4, 4])
    small = quick(net, mask, x).model
    with torch.no_grad():
        assert relative([small(x)], [wanted]) < 1e-12


def test_a_channel_that_nobody_reads_leaves() -> None:
    net = two_convs(padding=1)
    keep = torch.ones(4, 6, 3, 3).bool()
    keep[:, [0, 3]] = False
    small = quick(net, Mask({"b.weight": keep}))
    assert small.plan.tensors["a.weight"].stays == {0: (1, 2, 4, 5)}
    assert small.plan.tensors["b.weight"].stays == {1: (1, 2, 4, 5)}


def test_rows_and_columns_of_single_weights() -> None:
    net = Net(a=nn.Linear(6, 5), relu=nn.ReLU(), b=nn.Linear(5, 3))
    keep = torch.zeros(5, 6).bool()
    keep[1, 2] = keep[4, 0] = keep[4, 1] = True
    small = quick(net, Mask({"a.weight": keep}), torch.zeros(2, 6))
    assert shapes(small)["a.weight"] == (2, 6)  # the input's columns cannot leave
    assert shapes(small)["b.weight"] == (3, 2)


# ---------------------------------------------------------------------- streams


def residual() -> nn.Module:
    return randomize(lab_net("resnet-20", 8, 3)).double()


def test_a_branch_that_is_dead_is_not_computed() -> None:
    model = residual()
    width = model.get_parameter("stage1.1.conv2.weight").shape[0]
    mask = rows_off(model, stage1__1__conv2__weight=list(range(width)))
    modules = quick(model, mask, X.double())
    assert shapes(modules)["stage1.1.conv1.weight"][0] == 1  # its code still calls it
    small = quick(model, mask, X.double(), form="graph")
    assert not any(name.startswith("stage1.1") for name in shapes(small))
    assert small.report.vanished == ("add_1",)
    assert small.report.compact.macs < modules.report.compact.macs
    with torch.no_grad():
        for bias in ("stage1.1.bn2.bias", "stage1.1.bn2.running_mean"):
            dict([*model.named_parameters(), *model.named_buffers()])[bias].zero_()
    small = quick(model, mask, X.double(), form="graph")
    assert small.plan.nodes["add_1"].kind == "skip"  # adds nothing: not even a sum is left


def test_a_stream_loses_what_is_dead_in_all_of_its_summands() -> None:
    model = residual()
    writers = ["conv1", *(f"stage1__{i}__conv2" for i in range(3))]
    mask = rows_off(model, **{f"{name}__weight": [3, 7] for name in writers})
    small = quick(model, mask, X.double())
    kept = small.plan.tensors["stage1.0.conv2.weight"].stays[0]
    assert len(kept) in (14, 15)  # one of the two may stay as a carrier
    assert all(small.plan.tensors[f"stage1.{i}.conv2.weight"].stays[0] == kept for i in range(3))


@pytest.mark.filterwarnings("ignore:nothing was removed")
def test_a_stream_whose_masks_disagree_is_kept_or_scattered() -> None:
    model = residual()
    mask = rows_off(model, stage2__1__conv2__weight=list(range(20)))
    keep, scatter = (quick(model, mask, X.double(), streams=how) for how in ("keep", "scatter"))
    assert shapes(keep)["stage2.1.conv2.weight"][0] == 32
    assert shapes(scatter)["stage2.1.conv2.weight"][0] == 12
    assert scatter.report.scattered == ("add_4",)
    assert scatter.report.compact.macs < keep.report.compact.macs


def test_depthwise_channels_leave_with_both_of_their_layers() -> None:
    model = randomize(Separable())
    mask = rows_off(model, blocks__0__3__weight=[0, 5, 9])  # the depthwise filters
    small = quick(model, mask)
    assert shapes(small)["blocks.0.0.weight"][0] == 21
    assert small.model.get_submodule("blocks.0.3").groups == 21
    assert shapes(small)["blocks.0.6.weight"][1] == 21


def test_grouped_convolutions_keep_equal_groups() -> None:
    net = Net(
        a=nn.Conv2d(3, 8, 1, bias=False),
        b=nn.Conv2d(8, 8, 3, groups=2, bias=False),
        c=nn.Conv2d(8, 4, 1, bias=False),
    )
    small = quick(net, rows_off(net, b__weight=[0, 1, 4], a__weight=[0]))
    b = small.model.get_submodule("b")
    assert (b.groups, b.out_channels, b.in_channels) == (2, 6, 8)
    small = quick(net, rows_off(net, b__weight=[0, 1, 2, 3]))
    b = small.model.get_submodule("b")
    assert (b.groups, b.out_channels, b.in_channels) == (1, 4, 4)  # a whole group went


def test_concatenation_loses_an_input_that_is_gone() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 1, bias=False), nn.Conv2d(3, 5, 1, bias=False)
            self.c = nn.Conv2d(9, 2, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(torch.cat([self.a(x), F.relu(self.b(x))], 1))

    net = Two()
    mask = rows_off(net, a__weight=[0, 1, 2, 3], b__weight=[2])
    assert shapes(quick(net, mask))["c.weight"] == (2, 5, 3, 3)  # the code joins two
    small = quick(net, mask, form="graph")
    assert shapes(small)["c.weight"] == (2, 4, 3, 3)
    assert not any(name.startswith("a.") for name in shapes(small))


def test_flatten_before_a_linear_layer() -> None:
    model = lab_net("conv-4", 8, 3)
    small = quick(model, rows_off(model, conv4__weight=list(range(100))))
    assert shapes(small)["fc1.weight"] == (256, 28 * 4)


# ---------------------------------------------------------------------- kept whole, refused


@pytest.mark.parametrize("name", ["padded-shortcut", "channels-moved", "tokens", "oddments"])
def test_what_was_once_unknown_is_cut(name: str) -> None:
    """Padded channels, permuted ones, those beside a LayerNorm, a layer that is used twice."""
    make, shape = NETS[name]
    model = randomize(make())
    small = quick(model, filter_mask(model, 0.5), torch.zeros(1, *shape))
    assert not small.report.kept_whole
    assert small.report.compact.macs < small.report.dense.macs / 1.5


def test_what_cannot_be_read_is_kept_whole_by_name() -> None:
    make, shape = NETS["opaque"]
    model = randomize(make())
    small = quick(model, filter_mask(model, 0.5), torch.zeros(1, *shape))
    assert small.report.kept_whole == ("part: cannot be read by torch.export",)
    assert "part: cannot be read by torch.export" in str(small.report)
    assert shapes(small)["part.conv.weight"] == (6, 6, 3, 3)


def test_layers_that_share_a_weight_are_cut_together() -> None:
    net = Net(a=nn.Linear(6, 6), relu=nn.ReLU(), b=nn.Linear(6, 6), c=nn.Linear(6, 2))
    net.b.weight = net.a.weight
    with pytest.warns(UserWarning, match="nothing was removed"):  # inputs are its columns
        small = quick(net, rows_off(net, a__weight=[1, 2]), torch.zeros(2, 6))
    assert small.model.a.weight is small.model.b.weight


def test_the_check_is_against_the_model_itself_not_a_copy_of_it() -> None:
    net = Net(a=nn.Linear(6, 6, bias=False), relu=nn.ReLU(), b=nn.Linear(6, 4), c=nn.Linear(4, 2))
    net.b.weight = nn.Parameter(net.a.weight.detach()[:4])  # of a's memory, which no copy shares
    with pytest.raises(CompactError, match="the compact model is not the masked model"):
        quick(net.eval(), rows_off(net, a__weight=[1, 2]), torch.zeros(2, 6))


def test_hooks_and_parametrizations_are_refused() -> None:
    net = two_convs(1)
    handle = net.a.register_forward_hook(lambda *_: None)
    with pytest.raises(CompactError, match="module 'a' has hooks"):
        quick(net, Mask({}))
    handle.remove()
    prune.random_unstructured(net.b, "weight", 0.5)
    with pytest.raises(CompactError, match=r"module 'b' has hooks.*prune\.remove"):
        quick(net, Mask({}))
    prune.remove(net.b, "weight")
    parametrizations.weight_norm(net.a)
    with pytest.raises(CompactError, match="module 'a' is parametrized"):
        quick(net, Mask({}))


class Overwrites(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y = x.flatten(1)  # a view
        x.relu_()
        return y


class AlwaysDrops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x)


class Undecided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (AlwaysDrops(), "dropout drops values at random also in evaluation"),
        (Undecided(), "the forward of Undecided cannot be read"),
    ],
)
def test_what_has_no_exact_answer_is_refused(net: nn.Module, message: str) -> None:
    with pytest.raises(CompactError, match=message):
        quick(net, Mask({}))


def test_a_view_that_is_overwritten_is_followed() -> None:
    net = Overwrites()
    with pytest.warns(UserWarning, match="what is off is tied to what is not"):
        small = quick(net, rows_off(net, a__weight=[1]), form="graph")
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad(), project(net, rows_off(net, a__weight=[1])):
        assert torch.allclose(small.model(x), net(x), atol=1e-6)


def test_bad_arguments() -> None:
    net = two_convs(1)
    with pytest.raises(CompactError, match="example_input must be a batch"):
        quick(net, Mask({}), torch.zeros(3))
    with pytest.raises(CompactError, match="empty batch"):
        quick(net, Mask({}), torch.zeros(0, 3, 8, 8))
    with pytest.raises(CompactError, match="streams must be auto, keep or scatter, got 'x'"):
        quick(net, Mask({}), streams="x")
    with pytest.raises(CompactError, match="does not run on example_input"):
        quick(net, Mask({}), torch.zeros(1, 5, 8, 8))
    with pytest.raises(ValueError, match="lacks a masked parameter"):
        quick(net, Mask({"c.weight": torch.ones(2).bool()}))


def test_a_difference_is_an_error_and_the_model_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    net = two_convs(1).train()
    before, mask = deepcopy(net.state_dict()), rows_off(net, a__weight=[1, 2])
    monkeypatch.setattr("dessilbi.graph.matrix.SMALLEST_CARRIER", 2.0)  # none will do

    def wrong(self: object, kept: object) -> int:
        return 0

    monkeypatch.setattr("dessilbi.graph.matrix.Matrix._carrier", wrong)
    with pytest.raises(CompactError, match=r"compact model is not the masked model.*as it was"):
        quick(net, mask)
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert all(m.training for m in net.modules())


def test_outputs_that_are_not_finite_are_refused() -> None:
    net = two_convs(1)
    net.bn.running_mean[0] = torch.nan  # type: ignore[index]
    with pytest.raises(CompactError, match="output is not finite"):
        quick(net, Mask({}))


# ---------------------------------------------------------------------- modes, report


def test_modes_gradients_and_devices_stay_as_they_were() -> None:
    net = two_convs(1).train()
    net.bn.eval()
    net.a.weight.requires_grad_(False)
    small = quick(net, rows_off(net, a__weight=[1, 2])).model
    assert (net.training, net.bn.training) == (True, False)
    assert {n: m.training for n, m in small.named_modules()} == {
        n: m.training for n, m in net.named_modules()
    }
    assert not small.get_parameter("a.weight").requires_grad
    assert small.get_parameter("b.weight").requires_grad


def test_the_compact_model_can_be_trained() -> None:
    model = randomize(Hardcoded())
    small = quick(model, filter_mask(model, 0.5)).model.train()
    assert small.training
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    x, y = torch.randn(16, 3, 8, 8), torch.randint(5, (16,))
    losses = []
    for _ in range(10):
        loss = F.cross_entropy(small(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_a_carrier_is_the_same_constant_in_training() -> None:
    net = two_convs(padding=1)
    small = quick(net, rows_off(net, a__weight=[1, 2, 5])).model
    layers = nn.Sequential(small.get_submodule("a"), small.get_submodule("bn"))
    x = torch.randn(4, 3, 8, 8)
    for mode in (False, True):
        carrier = layers.train(mode)(x)[:, 1]
        assert torch.equal(carrier, torch.full_like(carrier, 0.7))


@pytest.mark.parametrize("form", ["modules", "graph"])
def test_dropout_and_batchnorm_know_the_mode(form: str) -> None:
    make, shape = NETS["oddments"]
    model = randomize(make())
    small = quick(model, filter_mask(model, 0.5), torch.zeros(1, *shape), form=form).model
    x = torch.randn(8, *shape)
    assert torch.equal(small(x), small(x))
    before = {n: b.clone() for n, b in small.named_buffers()}
    small.train()
    assert not torch.equal(small(x), small(x))
    after = dict(small.named_buffers())
    assert not torch.equal(after["norm.running_mean"], before["norm.running_mean"])


def test_a_dense_model_that_cannot_have_its_channels_last() -> None:
    model = randomize(Hardcoded())  # reshapes by view, which the compact model does not
    report = compact(model, filter_mask(model, 0.5), X, channels_last=True).report
    assert report.channels_last
    assert all(one.dense_channels_last is None for one in report.latency)
    assert report.latency[0].ratio_in_one_format == report.latency[0].ratio


def test_streams_are_cut_as_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    model = residual()
    mask = rows_off(model, stage2__1__conv2__weight=list(range(20)), stage3__1__conv2__weight=[1])
    asked: list[tuple[bool, bool]] = []

    def faster(*arguments: object) -> bool:
        formats = arguments[-1]
        assert isinstance(formats, tuple)
        asked.append(formats)
        return len(asked) == 2  # not the memory format, the first stage, not the second

    for place in ("_compact", "cutting"):
        monkeypatch.setattr(f"dessilbi.compaction.{place}.is_faster", faster)
    small = compact(model, mask, X.double())
    assert asked == [(True, False), (False, False), (False, False)]
    assert small.report.scattered == ("add_4",)
    assert not small.report.channels_last


def test_report_as_a_table_and_as_json() -> None:
    net = two_convs(1)
    mask = rows_off(net, a__weight=[1, 2, 5])
    given = [torch.randn(2, 3, 8, 8), torch.randn(3, 3, 8, 8)]
    report = compact(net, mask, X, inputs=given).report
    values = json.loads(json.dumps(report.to_json()))
    assert values["dense"]["parameters"] == sum(p.numel() for p in net.parameters())
    assert values["dense"]["macs"] == 64 * (6 * 27 + 4 * 54)
    assert {d["inputs"] for d in values["differences"]} == {"random", "given"}
    assert [one["batch"] for one in values["latency"]] == [1, 128]
    assert values["largest_difference"] <= 1e-5
    text = str(report)
    for words in ("parameters", "macs", "bytes", "batch 128", "carrier channels: 1", "float64"):
        assert words in text
    assert all(one.ratio > 0 and one.ratio_in_one_format > 0 for one in report.latency)
