import tomllib
from pathlib import Path

import pytest

from podrace.errors import InvalidArgument
from podrace.specification import resolve
from podrace.specification.files import from_values, load, to_toml, to_values

EXAMPLES = sorted((Path(__file__).parents[4] / "examples").glob("*.toml"))
EVERYTHING = """
name = "every-thing"
seed = 18446744073709551615
synchronous = true
[environment]
id = "python:my_module:make"
[environment.options]
text = 'a "quoted" \\ back\\slash, ünicode'
whole = 1_000_000
fraction = 0.1
flags = [true, false]
"odd key" = "value"
nested = { a = { b = [1.5, "c"] } }
[algorithms.ppo.hyperparameters]
learning_rate = { low = 1e-6, high = 1e-2, scale = "linear", value = 3e-4 }
hidden_sizes = { choices = [[64, 64], [256, 256]] }
activation = "relu"
[objective]
wall_clock_duration = "1d2h3m4s5ms"
target_return = -0.1
environment_steps = 123456789012
[pool]
maximum_pods = 2
[pod]
layout = "separate"
[reports.one.options]
split = "backtest"
[reports.two]
episodes = 3
"""


def test_the_examples_are_found() -> None:
    assert {path.stem for path in EXAMPLES} >= {"ant", "cartpole", "pendulum", "stocks"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_a_valid_specification(path: Path) -> None:
    assert load(path, []).name == path.stem


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_printed_configuration_is_the_same_specification(path: Path) -> None:
    specification = load(path, [])
    assert resolve.parse(tomllib.loads(to_toml(specification)), source="printed") == specification


def test_printing_preserves_every_kind_of_value(tmp_path: Path) -> None:
    path = tmp_path / "everything.toml"
    path.write_text(EVERYTHING)
    specification = load(path, [])
    printed = to_toml(specification)
    assert resolve.parse(tomllib.loads(printed), source="printed") == specification
    assert 'wall_clock_duration = "93784.005s"' in printed
    assert "whole = 1000000" in printed


def test_values_have_the_structure_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "everything.toml"
    path.write_text(EVERYTHING)
    values = to_values(load(path, []))
    hyperparameters = values["algorithms"]["ppo"]["hyperparameters"]
    assert hyperparameters["activation"] == "relu"
    assert hyperparameters["learning_rate"] == {"value": 3e-4, "low": 1e-6, "high": 1e-2, "scale": "linear"}
    assert hyperparameters["hidden_sizes"]["choices"] == [[64, 64], [256, 256]]
    assert values["pod"]["layout"] == "separate"
    assert values["seed"] == 2**64 - 1


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "everything.toml"
    path.write_text(EVERYTHING)
    specification = load(path, ["environment.count=3", "algorithms.ppo.hyperparameters.activation=tanh", "name=other"])
    assert specification.environment.count == 3
    assert specification.algorithms["ppo"].hyperparameters["activation"].value.string_value == "tanh"
    assert specification.name == "other"


def test_errors_found_while_resolving_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "everything.toml"
    path.write_text(EVERYTHING)
    with pytest.raises(InvalidArgument, match=r"everything\.toml: pod\.cores = 0: expected 0\.1 to 1024"):
        load(path, ["pod.cores=0"])


def test_an_option_without_a_value_is_refused() -> None:
    values = {"environment": {"id": "cartpole", "options": {"render_mode": None}}}
    with pytest.raises(InvalidArgument, match=r"environment\.options\.render_mode: null is no value"):
        from_values(values | {"algorithms": {"ppo": {}}, "objective": {"target_return": 475}}, source="test")
