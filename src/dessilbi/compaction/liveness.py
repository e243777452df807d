"""Which channels stay: as few as keep the function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dessilbi.graph.channels import KeptChannels

if TYPE_CHECKING:
    from dessilbi.graph.analysis import Analysis
    from dessilbi.graph.steps import Step


def keep_channels(analysis: Analysis) -> KeptChannels:
    """Channels with which the network is the same function; others have no effect left."""
    kept = KeptChannels(analysis.classes)
    while True:
        before = kept.count
        here = live_steps(analysis, kept)
        for step in reversed(here):
            step.need(kept)
        if kept.count > before:
            continue
        for step in reversed(here):
            step.complete(kept)
        for step in here:
            # What is computed has at least one channel, dead or not.
            if step.flow is not None and not bool(kept.of(step.flow).any()):
                kept.add(step.flow, torch.tensor([0]))
        if kept.count == before:
            return kept


def live_steps(analysis: Analysis, kept: KeptChannels) -> list[Step]:
    """Steps whose results still reach the output, in order."""
    wanted = {node for node in analysis.steps if node.op == "output"}
    for node in reversed(analysis.steps):
        if node in wanted:
            wanted.update(analysis.steps[node].reads(kept))
    return [step for node, step in analysis.steps.items() if node in wanted]
