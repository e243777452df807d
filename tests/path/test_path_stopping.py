from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from path_problems import recorded

from dessilbi.path import Mask, SolutionPath, StabilityRule, support_distance
from dessilbi.path._snapshots import Snapshot
from dessilbi.path.layers import make_layers


def synthetic(supports):
    """A path whose marked supports are given, epochs 0, 1, ..."""
    path = SolutionPath(make_layers([("w", (len(supports[0]),), None)]))
    for epoch, support in enumerate(supports):
        bits = np.array(support, dtype=np.bool_)
        path.supports.append(bits)
        one = np.zeros(1)
        norms = np.zeros((3, len(bits)), dtype=np.float32)
        path.snapshots.append(
            Snapshot(epoch, epoch, math.nan, np.array([bits.sum()]), one, one, norms)
        )
    return path


def growing(settled, epochs, size=100, step=2):
    """Two more weights an epoch, until it settles."""
    return [[i < step * min(e, settled) for i in range(size)] for e in range(epochs)]


def test_settles_at_a_known_epoch():
    path = synthetic(growing(settled=10, epochs=20))
    assert path.stable_epoch(window=3, tolerance=0.0) == 13
    # At epoch e the last but `window` support has 2 (e - 3) of 2 e weights: 3 / e <= 0.5 at 6.
    assert path.stable_epoch(window=3, tolerance=0.5) == 6
    assert path.stable_epoch(window=3, tolerance=0.06, distance="hamming") == 3
    assert path.stable_epoch(window=3, tolerance=0.05, distance="hamming") == 11


def test_never_settles():
    flicker = [[(i + e) % 2 == 0 for i in range(10)] for e in range(12)]
    assert synthetic(flicker).stable_epoch(window=2) is None
    assert synthetic(flicker).stable_epoch(window=2, distance="hamming") is None


def test_an_empty_support_has_not_settled():
    path = synthetic([[False] * 8] * 10)
    assert path.stable_epoch(window=2) is None
    assert path.stable_epoch(window=2, distance="hamming") is None


def test_a_return_after_a_detour_counts_every_distance():
    a, b = [True, False], [False, True]
    assert synthetic([a, a, b, a, a, a]).stable_epoch(window=2, tolerance=0) == 5


def test_the_rule_live_is_the_rule_afterwards():
    path = recorded()
    for window in (1, 2, 4):
        for distance in ("hamming", "jaccard"):
            for tolerance in (0.01, 0.1, 0.3):
                rule = StabilityRule(window, tolerance, distance)
                fired = [e for e in path.epochs if rule.update(path.mask(e))]
                found = path.stable_epoch(window, tolerance, distance)
                assert found == (fired[0] if fired else None)


def test_distances():
    a, b = torch.tensor([1, 1, 0, 0]).bool(), torch.tensor([1, 0, 1, 0]).bool()
    assert support_distance(a, b) == pytest.approx(2 / 3)
    assert support_distance(a, b, "hamming") == 0.5
    assert support_distance(a & False, b & False) == 0
    rule = StabilityRule(window=2)
    for t in (a, b, b):
        rule.update(Mask({"w": t}))
    assert rule.distances == (pytest.approx(2 / 3), 0.0)


def test_refuses():
    with pytest.raises(ValueError, match="window must be an integer >= 1, got 0"):
        StabilityRule(window=0)
    with pytest.raises(ValueError, match=r"tolerance must be from 0 to 1, got -0.1"):
        StabilityRule(tolerance=-0.1)
    with pytest.raises(ValueError, match="unknown distance 'jacard'; did you mean 'jaccard'"):
        StabilityRule(distance="jacard")
    rule = StabilityRule()
    rule.update({"w": torch.ones(3, dtype=torch.bool)})
    with pytest.raises(ValueError, match="one rule for one network"):
        rule.update({"w": torch.ones(4, dtype=torch.bool)})
