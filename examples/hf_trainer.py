"""A small Llama with a twin beside AdamW, trained by the Hugging Face Trainer; seconds on a CPU.

pip install 'dessilbi[hf]'; python examples/hf_trainer.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from dessilbi import SplitLBI, compact, project, split_parameters
from dessilbi.integrations.hf import DessilbiCallback, NestedTrainer


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences that count up, modulo 16."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(12) + index) % 16
        return {"input_ids": tokens, "labels": tokens}


def small_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=16,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    return TrainingArguments(
        **{
            "output_dir": str(folder), "num_train_epochs": 4, "per_device_train_batch_size": 16,
            "learning_rate": 1e-2, "logging_steps": 4, "save_strategy": "no", "report_to": [],
            "use_cpu": True, "disable_tqdm": True, **more,
        }
    )  # fmt: skip


def with_a_twin(folder: Path) -> DessilbiCallback:
    # The path is recorded each epoch; how long the training is, the callback tells the optimizer.
    model = small_llama()
    opt = SplitLBI(torch.optim.AdamW(split_parameters(model, exclude=["lm_head"]), lr=1e-2))
    callback = DessilbiCallback()
    trainer = Trainer(
        model, arguments(folder), train_dataset=Counting(), optimizers=(opt, None),
        callbacks=[callback],
    )  # fmt: skip
    trainer.train()
    mask = callback.path.mask(density=0.5)
    with project(model, mask):
        print("half of the weights:", trainer.evaluate(Counting())["eval_loss"])
    return callback


def fewer_neurons(folder: Path) -> LlamaForCausalLM:
    # Neurons of the MLP are the groups: what the mask leaves out goes, and the config says so.
    model = small_llama()
    tokens = {"input_ids": torch.arange(12)[None]}
    neurons = {f"*.{name}_proj": {"penalty": "group_lasso"} for name in ("gate", "up")}
    rest = ["lm_head", "*.self_attn", "*.down_proj"]
    opt = SplitLBI(torch.optim.AdamW(split_parameters(model, neurons, exclude=rest), lr=1e-2))
    callback = DessilbiCallback()
    trainer = Trainer(
        model, arguments(folder), train_dataset=Counting(), optimizers=(opt, None),
        callbacks=[callback],
    )  # fmt: skip
    trainer.train()
    small = compact(model, callback.path.mask(density=0.5), tokens, latency=False)
    small.save_pretrained(folder / "small")
    return LlamaForCausalLM.from_pretrained(folder / "small")


def every_budget(folder: Path) -> NestedTrainer:
    # No twin: each step trains several budgets, and backward stays the Trainer's.
    model = small_llama()
    groups = split_parameters(model, exclude=["lm_head"])
    trainer = NestedTrainer(
        model, arguments(folder), train_dataset=Counting(), nested={"groups": groups}
    )
    trainer.train()
    trainer.nested.network(0.1).save_pretrained(folder / "tenth")  # the others are zero
    return trainer


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else mkdtemp())
    print("density by epoch:", *map(with_a_twin(target).path.density, range(1, 5)))
    print("neurons left:", fewer_neurons(target).config.intermediate_size, "of 32")
    every_budget(target)
