import pytest
import torch

from dessilbi.lab.models import ModelError
from dessilbi.lab.models.conv import conv_2, conv_4

# The paper's tables "sparsity for every layer of Conv-2" and "... of Conv-4", number of weights.
CONV_2 = {"conv1": 576, "conv2": 36864, "fc1": 3211264, "fc2": 65536, "fc3": 2560}
CONV_4 = {
    "conv1": 576,
    "conv2": 36864,
    "conv3": 73728,
    "conv4": 147456,
    "fc1": 1605632,
    "fc2": 65536,
    "fc3": 2560,
}


@pytest.mark.parametrize(
    ("build", "table", "total"), [(conv_2, CONV_2, 3_317_450), (conv_4, CONV_4, 1_933_258)]
)
def test_layers_are_those_of_the_papers_table(build, table, total):
    model = build(num_classes=10, in_channels=1, input_size=28)
    counts = {
        name.removesuffix(".weight"): p.numel()
        for name, p in model.named_parameters()
        if p.ndim > 1
    }
    assert counts == table
    assert sum(p.numel() for p in model.parameters()) == total


@pytest.mark.parametrize(("build", "input_size"), [(conv_2, 2), (conv_2, 13), (conv_4, 4)])
def test_other_sizes_and_channels(build, input_size):
    model = build(num_classes=5, in_channels=3, input_size=input_size)
    assert model(torch.rand(2, 3, input_size, input_size)).shape == (2, 5)


@pytest.mark.parametrize(("build", "smallest"), [(conv_2, 2), (conv_4, 4)])
def test_too_small_an_image_is_refused_with_the_smallest_allowed(build, smallest):
    with pytest.raises(ModelError, match=f"input_size >= {smallest}, got {smallest - 1}"):
        build(num_classes=10, in_channels=1, input_size=smallest - 1)
