"""Draw ``lyapunov.png``: a full-batch run on the digits that obeys the convergence theorem.

    python docs/pictures/lyapunov.py

A tanh net (64-16-10) on scikit-learn's digits, all 1,442 training images in every step, float64,
no momentum, weight decay 1e-2, nu 20, lambd 0.1, at 0.9 of the safe bound of the largest curvature
that the run itself meets. Takes half a minute.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dessilbi import DessiLBI, split_parameters
from dessilbi.lab.data import load_dataset
from dessilbi.theory import LipschitzTrack, LyapunovHistory, LyapunovMonitor, draw, max_lr

STEPS, NU, LAMBD, DECAY = 2000, 20.0, 0.1, 1e-2


def run(lip: float | None) -> tuple[LyapunovHistory, float]:
    """One run at 0.9 of the safe bound for ``lip``, and the largest curvature along it."""
    torch.manual_seed(0)
    data = load_dataset("digits", dtype=torch.float64)
    x, y = data.train.tensors()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)).double()
    track = LipschitzTrack(net, cross_entropy, [(x, y)], weight_decay=DECAY, margin=0.5)
    lr = 0.9 * max_lr(track("start").lip if lip is None else lip, NU).safe
    opt = DessiLBI(split_parameters(net), lr=lr, nu=NU, lambd=LAMBD, weight_decay=DECAY)

    def loss() -> torch.Tensor:
        return cross_entropy(net(x), y)

    with LyapunovMonitor(opt, loss) as monitor:
        for step in range(STEPS):
            opt.zero_grad()
            loss().backward()
            opt.step()
            if step % 100 == 99:
                track(f"step {step + 1}")
    print(f"lr {lr:.4f}, density {opt.density():.2f}, {track.estimate}")
    return monitor.history, track.estimate.value


if __name__ == "__main__":
    torch.set_num_threads(1)
    lip = None
    while True:
        history, met = run(lip)
        if lip is not None and met <= lip:
            break
        lip = 1.01 * met
    print(history.check(lip))
    draw(history, lip, Path(__file__).with_suffix(".png"))
