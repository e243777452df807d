"""The pruning methods that the paper compares with, each as a method of its own.

==============================  ===================================================================
Network Slimming                :mod:`.slimming`: l1 on BatchNorm's scales, prune channels globally
Soft Filter Pruning             :mod:`.soft_filters`: weak filters are zeroed each epoch, may return
Scratch-E, Scratch-B            :mod:`.scratch`: the pruned structure with new weights
Rethinking-Lottery              :mod:`.tickets`: one-shot magnitude, retrained from the same start
SGD-lottery, random             :mod:`.tickets`: at the layer densities of another mask
Iterative-Pruning-A             :mod:`.iterative`: Han et al., prune and retrain in rounds
Iterative-Pruning-B             gradual pruning, a method of the laboratory: Zhu and Gupta
==============================  ===================================================================
"""

from dessilbi.paper.baselines import callbacks

__all__ = ["callbacks"]
