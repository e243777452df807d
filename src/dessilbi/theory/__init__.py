"""Convergence you can check: curvature, step bounds, and the Lyapunov function of a run."""

from .bounds import StepBounds, StepVerdict, judge_step, max_lr
from .history import LyapunovCheck, LyapunovHistory
from .lipschitz import Curvature, LipschitzEstimate, LipschitzTrack, lipschitz
from .lyapunov import LyapunovMonitor
from .plot import draw

__all__ = [
    "Curvature",
    "LipschitzEstimate",
    "LipschitzTrack",
    "LyapunovCheck",
    "LyapunovHistory",
    "LyapunovMonitor",
    "StepBounds",
    "StepVerdict",
    "draw",
    "judge_step",
    "lipschitz",
    "max_lr",
]
