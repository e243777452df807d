import pytest
import torch
from torch import nn

from dessilbi.lab.models import ModelError, make_model
from dessilbi.lab.models.digits import digits_net


def test_parameter_count():
    # 144 + 32 + 4608 + 64 + 32*4*4*10 + 10
    model = digits_net(num_classes=10, in_channels=1, input_size=8)
    assert sum(p.numel() for p in model.parameters()) == 9_978


@pytest.mark.parametrize("input_size", [2, 8, 11])
def test_output_shape(input_size):
    model = digits_net(num_classes=3, in_channels=2, input_size=input_size)
    assert model(torch.rand(4, 2, input_size, input_size)).shape == (4, 3)


def test_too_small_an_image_is_refused():
    with pytest.raises(ModelError, match="digits-net needs input_size >= 2, got 1"):
        digits_net(num_classes=10, in_channels=1, input_size=1)


def test_it_learns_a_small_batch():
    torch.manual_seed(0)
    model = make_model("digits-net", num_classes=4, in_channels=1, input_size=8)
    images, labels = torch.rand(32, 1, 8, 8), torch.arange(32) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert (model(images).argmax(1) == labels).float().mean() > 0.95
