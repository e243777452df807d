"""Plans as plain values: they come back as they were, and what is none is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dessilbi.graph.errors import CompactError
from dessilbi.graph.plan import NodeCut, Plan, TensorCut, indices, spans


@given(st.lists(st.integers(0, 40)))
def test_numbers_come_back_from_their_text(numbers: list[int]) -> None:
    assert indices(spans(numbers)) == tuple(numbers)


def test_runs_are_short() -> None:
    assert spans([0, 1, 2, 3, 7]) == "0-3,7"
    assert spans([]) == ""


@pytest.mark.parametrize("text", ["1-", "a", "1,,2", "-1", "1 2"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(CompactError, match="indices must read like"):
        indices(text)


def test_a_plan_comes_back_from_json() -> None:
    tensors = {
        "conv.weight": TensorCut({0: (0, 2, 3), 1: (1,)}, 4, 2, (4, 1, 3, 3)),
        "bn.weight": TensorCut({0: (0, 1)}),
    }
    nodes = {
        "add": NodeCut("scatter", (1, 0), (0, 5), {"dim": 1}, shift=True),
        "view": NodeCut("numbers", numbers={"1.2": 5}),
        "split": NodeCut("numbers", numbers={"1": [2, 3]}, operator="split_with_sizes"),
    }
    plan = Plan(
        "0123456789abcdef", "graph", tensors, ("fc.weight",), {"a.heads": 2}, nodes, [[], {}]
    )
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(CompactError, match="node of unknown kind 'linear'"):
        NodeCut.from_json({"kind": "linear"})
    values = Plan("0123456789abcdef").to_json() | {"form": "tree"}
    with pytest.raises(CompactError, match="of unknown form 'tree'"):
        Plan.from_json(values)
