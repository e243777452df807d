import pytest
import torch

from dessilbi.lab.models import make_model
from dessilbi.lab.models.conv import conv_2, conv_4, digits_net
from dessilbi.lab.models.task import Task

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
    model = build(Task(10, 1, 28))
    counts = {
        name.removesuffix(".weight"): p.numel()
        for name, p in model.named_parameters()
        if p.ndim > 1
    }
    assert counts == table
    assert sum(p.numel() for p in model.parameters()) == total


@pytest.mark.parametrize(
    ("build", "input_size"), [(conv_2, 2), (conv_2, 13), (conv_4, 4), (digits_net, 11)]
)
def test_other_sizes_and_channels(build, input_size):
    model = build(Task(5, 3, input_size))
    assert model(torch.rand(2, 3, input_size, input_size)).shape == (2, 5)


def test_digits_net():
    # 144 + 32 + 4608 + 64 + 32*4*4*10 + 10
    assert sum(p.numel() for p in digits_net(Task(10, 1, 8)).parameters()) == 9_978


def test_it_learns_a_small_batch():
    torch.manual_seed(0)
    model = make_model("digits-net", num_classes=4, in_channels=1, input_size=8)
    images, labels = torch.rand(32, 1, 8, 8), torch.arange(32) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert (model(images).argmax(1) == labels).float().mean() > 0.95
