"""Public networks, half of the groups off in each layer: is the compact one exact, and how small?

    pip install torchvision timm transformers        # beside torch, in an environment of its own
    python benchmarks/zoo.py                         # a table, and zoo.json
    python benchmarks/zoo.py resnet18 gpt2           # some of them

Networks are made from their configs, with random weights and BatchNorm statistics; nothing is
downloaded. In every set of channels, neurons, heads or groups that leave together half are off,
drawn at random, with everything that goes with them (ties are respected, biases included).
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dessilbi import Mask, compact
from dessilbi.compaction import CompactError, tied_channels

if TYPE_CHECKING:
    from collections.abc import Callable

TIMM = (
    "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "seresnet50", "ecaresnet50d",
    "resnetv2_50", "regnety_002", "regnetx_002", "repvgg_a0", "vgg11_bn", "densenet121",
    "mobilenetv2_100", "mobilenetv3_small_100", "efficientnet_b0", "tf_efficientnet_b0",
    "mnasnet_100", "ghostnet_100", "cspresnet50", "cspdarknet53", "dla34", "hrnet_w18_small",
    "inception_v3", "xception41", "convnext_atto", "vit_tiny_patch16_224",
    "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "mixer_s32_224", "poolformer_s12",
    "levit_128s",
)  # fmt: skip
TORCHVISION = ("resnet34", "shufflenet_v2_x1_0", "squeezenet1_1", "googlenet", "vit_b_32", "r3d_18")
SIZED = ("vit", "deit", "swin", "mixer", "levit", "inception")
"""Beginnings of the names of networks that take only images of their own size."""


def texts() -> dict[str, Callable[[], tuple[nn.Module, Any]]]:
    """Transformers of Hugging Face, small ones."""
    import transformers as hf

    ids = {"input_ids": torch.arange(3, 27).view(2, 12)}
    common = {"vocab_size": 199, "hidden_size": 128, "num_hidden_layers": 2}
    wide = {**common, "num_attention_heads": 8, "intermediate_size": 512}
    grouped = {**wide, "num_key_value_heads": 4}

    def one(model: Any, config: Any, **options: Any) -> Callable[[], tuple[nn.Module, Any]]:
        return lambda: (model(config(**options)), ids)

    return {
        "bert": one(hf.BertForSequenceClassification, hf.BertConfig, **wide),
        "roberta": one(hf.RobertaModel, hf.RobertaConfig, **wide),
        "distilbert": one(
            hf.DistilBertModel, hf.DistilBertConfig, vocab_size=199, dim=128, n_layers=2, n_heads=8,
            hidden_dim=512,
        ),
        "gpt2": one(
            hf.GPT2LMHeadModel, hf.GPT2Config, vocab_size=199, n_embd=128, n_layer=2, n_head=8,
            bos_token_id=0, eos_token_id=0,
        ),
        "gpt_neox": one(hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, **wide),
        "opt": one(
            hf.OPTForCausalLM, hf.OPTConfig, vocab_size=199, hidden_size=128, num_hidden_layers=2,
            num_attention_heads=8, ffn_dim=512, word_embed_proj_dim=128,
        ),
        "llama": one(hf.LlamaForCausalLM, hf.LlamaConfig, **grouped),
        "qwen2": one(hf.Qwen2ForCausalLM, hf.Qwen2Config, **grouped),
        "t5-encoder": one(
            hf.T5EncoderModel, hf.T5Config, vocab_size=199, d_model=128, num_layers=2, num_heads=8,
            d_ff=512, d_kv=16,
        ),
    }  # fmt: skip


def torchvision_models() -> Any:
    """torchvision, also where it was built for another torch: its own operators are not needed."""
    register = torch.library.register_fake

    def tolerant(name: Any, *args: Any, **kwargs: Any) -> Any:
        if str(name).startswith("torchvision::"):
            return lambda function: function
        return register(name, *args, **kwargs)

    torch.library.register_fake = tolerant
    try:
        import torchvision.models

        return torchvision.models
    finally:
        torch.library.register_fake = register


def zoo() -> dict[str, Callable[[], tuple[nn.Module, Any]]]:
    """Name and maker of each network, with an example."""
    models = torchvision_models()
    import timm

    def image(name: str) -> tuple[nn.Module, Any]:
        model = timm.create_model(name)
        side = model.default_cfg["input_size"][-1] if name.startswith(SIZED) else 96
        return model, torch.randn(2, 3, side, side)

    def vision(name: str) -> tuple[nn.Module, Any]:
        if name == "r3d_18":
            return models.video.r3d_18(), torch.randn(2, 3, 8, 48, 48)
        options = {"init_weights": True} if name == "googlenet" else {}
        return getattr(models, name)(**options), torch.randn(2, 3, 224, 224)

    return (
        {name: partial(image, name) for name in TIMM}
        | {f"torchvision/{name}": partial(vision, name) for name in TORCHVISION}
        | texts()
    )


def trained_looks(model: nn.Module) -> None:
    """BatchNorm and biases as training might leave them: dead channels send constants."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_var is not None:
                assert m.running_mean is not None
                m.running_mean.normal_(0, 0.1, generator=generator)
                m.running_var.uniform_(0.5, 1.5, generator=generator)
                if m.affine:
                    m.weight.uniform_(0.5, 1.5, generator=generator)
                    m.bias.normal_(0, 0.2, generator=generator)


def half_off(model: nn.Module, example: Any) -> Mask:
    """Half of every set of channels that leave together, at random."""
    generator = torch.Generator().manual_seed(0)
    params = dict(model.named_parameters())
    found: dict[str, torch.Tensor] = {}
    for one in tied_channels(model, example, blocks=True):
        if one.free:
            off = torch.randperm(one.channels, generator=generator)[: one.channels // 2]
            for member in one.members:
                p = params[member.parameter]
                bits = found.setdefault(member.parameter, torch.ones(p.shape, dtype=torch.bool))
                bits.index_fill_(member.dim, member.index[off].flatten(), value=False)
    return Mask(found)


def row(name: str, make: Callable[[], tuple[nn.Module, Any]]) -> dict[str, Any]:
    """What became of one network."""
    torch.manual_seed(0)
    model, example = make()
    trained_looks(model.eval())
    start = time.process_time()
    try:
        report = compact(model, half_off(model, example), example, latency=False).report
    except CompactError as error:
        return {"network": name, "exact": False, "reason": str(error)}
    return {
        "network": name,
        "exact": True,
        "difference": report.largest_difference,
        "macs": report.dense.macs / report.compact.macs,
        "parameters": report.dense.parameters / report.compact.parameters,
        "form": report.form,
        "kept_whole": list(report.kept_whole),
        "notes": list(report.notes),
        "cpu_seconds": time.process_time() - start,
    }


def main() -> None:
    """Print a row for each network, and write them all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--output", type=Path, default=Path("zoo.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    makers = zoo()
    for name in arguments.names or makers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows.append(one := row(name, makers[name]))
        if one["exact"]:
            print(
                f"| {name} | {one['difference']:.0e} | {one['macs']:.2f} | "
                f"{one['parameters']:.2f} | {one['form']} | {'; '.join(one['kept_whole'][:2])} |",
                flush=True,
            )
        else:
            print(f"| {name} | refused | | | | {one['reason'][:200]} |", flush=True)
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    exact = sum(one["exact"] for one in rows)
    gained = sum(one.get("macs", 0) >= 1.5 for one in rows)
    print(f"{len(rows)} networks: {exact} exact, {gained} with 1.5 times fewer multiply-adds")


if __name__ == "__main__":
    main()
