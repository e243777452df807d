import pytest
import torch

from dessilbi.lab.models import make_model
from dessilbi.lab.models.lenet import lenet_5, lenet_300_100
from dessilbi.lab.models.task import Task


def weight_counts(model: torch.nn.Module) -> dict[str, int]:
    return {name: p.numel() for name, p in model.named_parameters() if p.ndim > 1}


def test_lenet_300_100_has_the_layers_of_the_papers_table():
    # Table "sparsity for every layer of Lenet-3": 235200, 30000, 1000.
    model = lenet_300_100(Task(10, 1, 28))
    assert weight_counts(model) == {"fc1.weight": 235200, "fc2.weight": 30000, "fc3.weight": 1000}
    assert sum(p.numel() for p in model.parameters()) == 266_610


def test_lenet_3_is_another_name_for_lenet_300_100():
    models = [
        make_model(name, num_classes=10, in_channels=1, input_size=28)
        for name in ("lenet-3", "lenet-300-100")
    ]
    assert weight_counts(models[0]) == weight_counts(models[1])


def test_lenet_5_names_its_third_convolution_as_the_paper_does():
    model = lenet_5(Task(10, 1, 28))
    assert weight_counts(model) == {
        "conv.c1.weight": 150,
        "conv.c3.weight": 2400,
        "conv.c5.weight": 48000,
        "fc.f6.weight": 10080,
        "fc.f7.weight": 840,
    }
    assert sum(p.numel() for p in model.parameters()) == 61_706


@pytest.mark.parametrize("input_size", [28, 31, 32, 33, 48])
def test_lenet_5_reads_other_sizes(input_size):
    model = lenet_5(Task(7, 3, input_size))
    assert model(torch.rand(2, 3, input_size, input_size)).shape == (2, 7)


def test_lenet_5_on_32_pixels_is_the_original_without_padding():
    small = lenet_5(Task(10, 1, 28))
    original = lenet_5(Task(10, 1, 32))
    assert weight_counts(small) == weight_counts(original)
    original.load_state_dict(small.state_dict())
    images = torch.rand(3, 1, 28, 28)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    torch.testing.assert_close(small(images), original(padded))


def test_pooling_before_relu_is_the_same_net_as_after_it():
    torch.manual_seed(0)
    model = lenet_5(Task(10, 1, 28)).double()
    x = torch.randn(8, 1, 28, 28, dtype=torch.float64)

    def textbook(x):
        conv, relu, pool = model.conv, torch.relu, torch.nn.functional.max_pool2d
        x = pool(relu(conv.c1(x)), 2)
        x = relu(conv.c5(pool(relu(conv.c3(x)), 2)))
        return model.fc(x.flatten(1))

    logits = model(x)
    assert torch.equal(logits, textbook(x))
    for ours, theirs in zip(
        torch.autograd.grad(logits.square().sum(), list(model.parameters())),
        torch.autograd.grad(textbook(x).square().sum(), list(model.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
