"""Configurations: frozen, to JSON and back, unknown keys refused, a hash for a name."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dessilbi.lab.run.config import (
    Config,
    ConfigError,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    from_json,
    to_json,
)
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.methods import METHODS, GradualPruning, Method
from dessilbi.lab.run.recipes import RECIPES

if TYPE_CHECKING:
    from pathlib import Path

rates = st.floats(min_value=1e-8, max_value=1e8)
configs = st.builds(
    Config,
    name=st.from_regex(r"[a-z0-9][a-z0-9.+_-]{0,12}", fullmatch=True),
    data=st.builds(
        DataConfig,
        validation=st.integers(0, 1000),
        normalize=st.sampled_from([None, True, False]),
        augment=st.booleans(),
    ),
    model=st.builds(ModelConfig, name=st.text(max_size=12)),
    optimizer=st.builds(
        OptimizerConfig,
        lr=rates,
        nu=rates,
        c=st.none() | rates,
        exclude=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    ),
    schedule=st.builds(
        ScheduleConfig,
        kind=st.sampled_from(["constant", "step", "multistep", "cosine"]),
        milestones=st.lists(st.integers(0, 99), max_size=3).map(tuple),
        warmup=st.floats(min_value=0, max_value=5),
    ),
    epochs=st.integers(10, 500),
    seed=st.integers(0, 2**40),
    dtype=st.sampled_from(["float32", "float64"]),
    keep=st.lists(st.integers(0, 10), max_size=3).map(tuple),
)


@settings(deadline=None, max_examples=30)
@given(configs)
def test_out_and_in_again(config: Config) -> None:
    again = from_json(to_json(config))
    assert again == config
    assert again.hash == config.hash


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_every_recipe_survives_json(recipe) -> None:  # type: ignore[no-untyped-def]
    assert from_json(to_json(recipe())) == recipe()


@pytest.mark.parametrize("part", ["", "data", "model", "optimizer", "schedule"])
def test_unknown_keys_are_refused_by_name(part: str) -> None:
    tree = json.loads(to_json(Config()))
    (tree[part] if part else tree)["learning_rate"] = 1
    with pytest.raises(ConfigError, match=rf"{part}\.?learning_rate: Unexpected keyword argument"):
        from_json(json.dumps(tree))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"epochs": "many"}', "epochs: Input should be a valid integer"),
        ('{"dtype": "float8"}', "dtype: Input should be 'float32' or 'float64'"),
        ('{"optimizer": {"name": 3}}', "optimizer.name: Input should be a valid string"),
        ('{"epochs": -1}', "epochs must be >= 0, got -1"),
        ("{", "file: Expecting property name"),
        ("[]", "file: it holds no object"),
    ],
)
def test_a_wrong_value_is_named_with_its_file(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=r"my\.json is not a valid configuration") as caught:
        from_json(text, "my.json")
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"epochs": -1}, "epochs must be >= 0, got -1"),
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"keep": (11,)}, r"keep must lie in \[0, 10\], got \(11,\)"),
        ({"name": "a/b"}, "name must be letters, digits .* got 'a/b'"),
        ({"name": ".hidden"}, "name must be"),
        ({"schedule": ScheduleConfig(warmup=-1)}, "schedule.warmup must be >= 0"),
        ({"schedule": ScheduleConfig(step_size=0)}, "schedule.step_size must be >= 1"),
    ],
)
def test_impossible_numbers_are_refused(changes: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        replace(Config(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "part", [Config(), DataConfig(), ModelConfig(), OptimizerConfig(), ScheduleConfig()]
)
def test_frozen(part: object) -> None:
    field = dataclasses.fields(part)[0].name  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(part, field, "other")


def test_the_hash_changes_with_every_number() -> None:
    config = Config()
    others = [
        replace(config, seed=1),
        replace(config, epochs=11),
        replace(config, keep=(0,)),
        replace(config, dtype="float64"),
        replace(config, precision="bf16"),
        replace(config, compile=True),
        replace(config, label_smoothing=0.1),
        replace(config, test_flips=True),
        replace(config, data=DataConfig(shift=2)),
        replace(config, data=DataConfig(flip="alternating")),
        replace(config, schedule=ScheduleConfig(kind="linear")),
        replace(config, schedule=ScheduleConfig(kind="linear", cooldown=3)),
        replace(config, data=DataConfig(validation=1)),
        replace(config, model=ModelConfig(name="lenet-5")),
        replace(config, optimizer=OptimizerConfig(lr=0.1 + 1e-9)),
        replace(config, schedule=ScheduleConfig(gamma=0.2)),
    ]
    assert len({c.hash for c in [config, *others]}) == 1 + len(others)
    assert config.run_name == f"run-{config.hash}"


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("digits", "digits-795e1bea"),
        ("lenet-5-mnist", "lenet-5-mnist-4cd55b1f"),
        ("vgg-16-cifar10", "vgg-16-cifar10-d89284cb"),
        ("vgg-4-cifar10-nested", "vgg-4-cifar10-nested-3f64bea8"),
        ("char-gpt", "char-gpt-0d183450"),
    ],
)
def test_runs_made_before_an_option_was_added_are_found(recipe: str, name: str) -> None:
    """Names as they were, and a config.json that does not know the options that came later."""
    assert RECIPES[recipe]().run_name == name
    tree = json.loads(to_json(RECIPES[recipe]()))
    for option in ("precision", "compile", "label_smoothing", "test_flips"):
        del tree[option]
    del tree["data"]["shift"], tree["data"]["flip"], tree["schedule"]["cooldown"]
    assert from_json(json.dumps(tree)) == RECIPES[recipe]()


def test_the_method_names_the_run() -> None:
    methods = [*(kind() for kind in METHODS.values()), GradualPruning(density=0.3)]
    assert len({Config(method=method).hash for method in methods}) == len(methods)


@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS.keys())
def test_every_method_survives_json(kind: type[Method]) -> None:
    config = Config(method=kind())
    assert from_json(to_json(config)) == config


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ({"name": "nested-weihgts"}, "unknown method 'nested-weihgts'; did you mean 'nested-weig"),
        ({}, "unknown method ''"),
        ({"name": "dense", "density": 0.1}, "method.density: Unexpected keyword argument"),
        (
            {"name": "nested-widths", "widths": "all"},
            "method.widths: Input should be a valid tuple",
        ),
    ],
)
def test_a_wrong_method_is_refused(method: dict[str, object], fault: str) -> None:
    tree = json.loads(to_json(Config()))
    tree["method"] = method
    with pytest.raises(ConfigError, match=fault):
        from_json(json.dumps(tree))


OLD = """{
  "name": "digits", "data": {"name": "digits"}, "optimizer": {"name": "dessilbi", "nu": 20.0},
  "epochs": 16, "nested": {"on": false, "lowest": null}, "prune": {"density": null},
  "freeze": {"epoch": null, "nu": 1.0}, "stop": {"when_stable": false}, "start": null
}"""
"""A config.json of dessilbi 0.1, shortened."""


def test_a_run_of_version_0_1_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(OLD)
    with pytest.raises(ConfigError, match=r"config\.json is of dessilbi 0\.1.*train anew"):
        RunDir.open(tmp_path).config()


def test_a_configuration_of_a_newer_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="has format 9, this version of dessilbi knows 2"):
        from_json('{"format": 9}')
