"""Hugging Face models, by their own classes: heads and neurons leave, and the files load."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from dessilbi import Mask, compact, project
from dessilbi.compaction import CompactError, load_compact, tied_channels

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import nn

transformers = pytest.importorskip("transformers")

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
IDS = torch.arange(3, 27).view(2, 12)


def bert() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.BertConfig(vocab_size=99, intermediate_size=48, **SIZES)
    return transformers.BertForSequenceClassification(config), {
        "input_ids": IDS,
        "attention_mask": torch.ones(2, 12).long(),
    }


def gpt2() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.GPT2Config(
        vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), {"input_ids": IDS}


def llama() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.LlamaConfig(
        vocab_size=99, intermediate_size=48, num_key_value_heads=2, **SIZES
    )
    return transformers.LlamaForCausalLM(config), {"input_ids": IDS}


def vit() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.ViTConfig(intermediate_size=48, image_size=32, patch_size=8, **SIZES)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return transformers.ViTForImageClassification(config), {"pixel_values": images}


MODELS = {"bert": bert, "gpt2": gpt2, "llama": llama, "vit": vit}


def made(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """A model with weights as training might leave them."""
    torch.manual_seed(0)
    model, example = MODELS[name]()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model.eval(), example


def half_off(
    model: nn.Module, example: Mapping[str, Any], *, heads: bool = True, equal: bool = True
) -> Mask:
    """Half of the heads and neurons, of each layer or of any, with all that goes with them."""
    generator = torch.Generator().manual_seed(0)
    params = dict(model.named_parameters())
    found: dict[str, torch.Tensor] = {}
    for one in tied_channels(model, example, blocks=True):
        if (
            not one.free
            or (one.channels <= 4 and not heads)
            or "pooler" in one.members[0].parameter
        ):
            continue
        drawn = torch.randperm(one.channels, generator=generator)
        off = drawn[: one.channels // 2]
        if not equal:
            off = drawn[: 1 + len(found) % (one.channels - 1)]
        for member in one.members:
            bits = found.setdefault(member.parameter, torch.ones_like(params[member.parameter]) > 0)
            bits.index_fill_(member.dim, member.index[off].flatten(), value=False)
    return Mask(found)


def logits(model: Any, example: Mapping[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(**example).logits
    return found


@pytest.mark.parametrize("name", MODELS)
def test_half_of_heads_and_neurons_leave_a_model_of_the_same_class(name: str) -> None:
    model, example = made(name)
    mask = half_off(model, example)
    small = compact(model, mask, example, latency=False)
    assert type(small.model) is type(model)
    assert not small.report.kept_whole
    assert small.report.dense.macs / small.report.compact.macs > 1.5
    with project(model, mask):
        assert torch.allclose(logits(small.model, example), logits(model, example), atol=1e-5)


def test_layers_may_keep_different_numbers() -> None:
    model, example = made("llama")
    mask = half_off(model, example, equal=False)
    small = compact(model, mask, example, latency=False)
    with project(model, mask):
        assert torch.allclose(logits(small.model, example), logits(model, example), atol=1e-5)
    with pytest.raises(CompactError, match=r"different numbers of .*per_layer=0.5.*load_compact"):
        small.save_pretrained("nowhere")


def test_a_language_model_still_generates_with_its_cache() -> None:
    model, example = made("llama")
    mask = half_off(model, example)
    small: Any = compact(model, mask, example, latency=False).model
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    with project(model, mask):
        wanted = model.generate(example["input_ids"], use_cache=True, **options)
    assert torch.equal(small.generate(example["input_ids"], use_cache=True, **options), wanted)


LOADS = """
import sys, torch, transformers
loaded = getattr(transformers, sys.argv[1]).from_pretrained(sys.argv[2]).eval()
example, wanted = torch.load(sys.argv[3])
with torch.no_grad():
    assert torch.allclose(loaded(**example).logits, wanted, atol=1e-5)
assert not any(name.startswith("dessilbi") for name in sys.modules)
print(sum(p.numel() for p in loaded.parameters()))
"""


@pytest.mark.parametrize(
    ("name", "auto", "heads"),
    [
        ("llama", "AutoModelForCausalLM", True),
        ("vit", "AutoModelForImageClassification", True),
        ("bert", "AutoModelForSequenceClassification", False),
        ("gpt2", "AutoModelForCausalLM", False),
    ],
)
def test_files_load_without_this_library(name: str, auto: str, heads: bool, tmp_path: Path) -> None:
    model, example = made(name)
    mask = half_off(model, example, heads=heads)
    small = compact(model, mask, example, latency=False)
    small.save_pretrained(tmp_path)
    with project(model, mask):
        torch.save((example, logits(model, example)), tmp_path / "wanted.pt")
    found = subprocess.run(
        [sys.executable, "-c", LOADS, auto, str(tmp_path), str(tmp_path / "wanted.pt")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) == small.report.compact.parameters


def test_a_config_that_cannot_say_the_size_of_a_head_is_refused() -> None:
    model, example = made("gpt2")
    small = compact(model, half_off(model, example), example, latency=False)
    with pytest.raises(CompactError, match="cannot lose heads, only neurons; use save"):
        small.save_pretrained("nowhere")


def make_gpt2() -> nn.Module:
    return gpt2()[0]


def test_any_sizes_come_back_by_a_constructor(tmp_path: Path) -> None:
    model, example = made("gpt2")
    small = compact(model, half_off(model, example, equal=False), example, latency=False)
    small.save(tmp_path, "test_compact_transformers:make_gpt2")
    again = load_compact(tmp_path, make_gpt2)
    assert torch.equal(logits(again, example), logits(small.model, example))


def test_what_is_no_hugging_face_model_has_no_pretrained_files() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    small = compact(net, Mask({}), torch.zeros(2, 4), latency=False)
    with pytest.raises(CompactError, match="save_pretrained needs a Hugging Face model"):
        small.save_pretrained("nowhere")
