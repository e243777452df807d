"""Guided backpropagation and activation maximisation on nets small enough to check by hand."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from dessilbi.paper.figures import tiled
from dessilbi.paper.visual import by_norm, guided_gradients, maximised, min_max


def chain(first: float, second: float, third: float) -> nn.Sequential:
    """Three 1x1 convolutions with ReLUs between them; their product is the gradient."""
    net = nn.Sequential(
        OrderedDict(
            a=nn.Conv2d(1, 1, 1, bias=False),
            r1=nn.ReLU(inplace=True),
            b=nn.Conv2d(1, 1, 1, bias=False),
            r2=nn.ReLU(inplace=True),
            c=nn.Conv2d(1, 1, 1, bias=False),
        )
    )
    with torch.no_grad():
        for conv, value in zip((net[0], net[2], net[4]), (first, second, third), strict=True):
            conv.weight.fill_(value)
    return net


def test_guided_gradients_pass_where_inputs_and_gradients_are_positive() -> None:
    image = torch.tensor([[[1.0, -1.0]]])
    (found,) = guided_gradients(chain(2.0, 3.0, 5.0), "c", image)
    torch.testing.assert_close(found, torch.tensor([[[30.0, 0.0]]]))


def test_guided_gradients_stop_negative_gradients_that_plain_ones_let_through() -> None:
    image = torch.ones(1, 1, 2)
    net = chain(2.0, 3.0, -5.0)
    (found,) = guided_gradients(net, "c", image)
    assert torch.equal(found, torch.zeros(1, 1, 2))
    x = image.unsqueeze(0).requires_grad_()
    (plain,) = torch.autograd.grad(chain(2.0, 3.0, -5.0)(x.clone()).sum(), x)
    assert bool((plain == -30.0).all())


def test_guided_gradients_leave_the_network_as_it_was() -> None:
    net = chain(1.0, 1.0, 1.0).train()
    guided_gradients(net, "c", torch.ones(1, 1, 2))
    assert net.training
    assert net[1].inplace
    assert not any(m._backward_hooks or m._forward_hooks for m in net.modules())
    assert all(p.grad is None for p in net.parameters())


def test_the_image_that_excites_a_linear_filter_most_is_the_filter() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 5, bias=False))
    found = maximised(net, "0", [2, 0], (1, 5, 5), steps=200, lr=0.3, rms=0.2)
    for image, i in zip(found, (2, 0), strict=True):
        wanted = net[0].weight[i].detach()
        torch.testing.assert_close(image, wanted / wanted.norm(), atol=1e-3, rtol=0)


def test_images_are_as_large_as_asked_and_zero_for_a_filter_that_nothing_excites() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3))
    with torch.no_grad():
        net[0].bias.fill_(-0.5)
        net[0].weight.normal_(generator=torch.Generator().manual_seed(0))
        net[2].weight[1] = 0
    images = maximised(net, "2", [0, 1], (1, 6, 6), rms=2.0)
    assert images[0].square().mean().sqrt() == pytest.approx(2.0)
    assert not images[1].any()
    assert not maximised(net, "2", [0], (1, 6, 6), rms=0.001).any(), "every ReLU is off"
    with torch.no_grad():
        noise = maximised(net, "2", [0], (1, 6, 6), rms=2.0, steps=0)
        better = [net(one[None])[0, 0].sum() for one in (images[0], noise[0])]
    assert better[0] > better[1] + 1


def test_images_are_stretched_each_for_itself_and_ordered_by_norm() -> None:
    images = torch.stack([torch.tensor([[[-1.0, 3.0]]]), torch.zeros(1, 1, 2)])
    assert min_max(images).tolist() == [[[[0.0, 1.0]]], [[[0.0, 0.0]]]]
    weight = torch.tensor([1.0, 3.0, -2.0]).reshape(3, 1, 1, 1)
    assert by_norm(weight).tolist() == [1, 2, 0]


def test_tiles_go_from_the_upper_left_to_the_lower_right() -> None:
    sheet = tiled(torch.arange(3.0).reshape(3, 1, 1, 1))
    assert sheet.shape == (4, 4)
    assert [sheet[0, 0], sheet[0, 2], sheet[2, 0]] == [0, 1, 2]
    assert tiled(torch.zeros(2, 3, 4, 4)).shape == (10, 10, 3)
