"""Policies on composite observations are accepted if their shapes follow from the hyperparameters of their agent."""

import pytest

from leaderboard.checkpoints.policy_shape import NetworkValues, mismatches

SHAPES = {
    "observation_mean": [9],
    "observation_variance": [9],
    "actor.encoder.0.0.weight": [6, 3],
    "actor.encoder.0.0.bias": [6],
    "actor.encoder.1.0.weight": [6, 4],
    "actor.encoder.1.0.bias": [6],
    "actor.0.weight": [5, 12],
    "actor.0.bias": [5],
    "actor.1.weight": [7, 5],
    "actor.1.bias": [7],
}
TORSO = {"actor.encoder.1.torso.0.weight": [16, 1, 4, 4], "actor.encoder.1.torso.0.bias": [16]}
PLAIN = NetworkValues((6, 5), torso=False, recurrent_size=0, normalizes=True)


def test_encoders_are_the_first_hidden_layer() -> None:
    assert not list(mismatches(SHAPES, PLAIN))
    assert not list(mismatches(SHAPES | TORSO, NetworkValues((6, 5), torso=True, recurrent_size=0, normalizes=True)))
    recurrent = {name: shape for name, shape in SHAPES.items() if not name.startswith("actor.1")} | {
        "actor.recurrent.input_weight": [6, 5],
        "actor.recurrent.input_bias": [6],
        "actor.recurrent.state_weight": [6, 2],
        "actor.recurrent.state_bias": [6],
        "actor.output.0.weight": [7, 2],
        "actor.output.0.bias": [7],
    }
    assert not list(mismatches(recurrent, NetworkValues((6, 5), torso=False, recurrent_size=2, normalizes=True)))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"actor.encoder.1.0.weight": [5, 4]}, "actor.encoder.1.0.weight has the shape"),
        ({"actor.encoder.1.0.weight": []}, "actor.encoder.1.0.weight has the shape"),
        ({"actor.encoder.1.0.bias": [5]}, "actor.encoder.1.0.bias has the shape"),
        ({"actor.0.weight": [5, 13]}, "actor.0.weight has the shape"),
        ({"actor.encoder.3.0.weight": [6, 4]}, "has no tensor 'actor.encoder.2.0.weight'"),
        (TORSO, "has convolutions, and torso is 'none'"),
    ],
)
def test_encoders_of_other_sizes_are_refused(change: dict[str, list[int]], problem: str) -> None:
    assert any(found.startswith(problem) for found in mismatches(SHAPES | change, PLAIN))
    assert "has encoders of entries, and hidden_sizes is empty" in list(
        mismatches(SHAPES, NetworkValues((), torso=False, recurrent_size=0, normalizes=True))
    )


def test_agents_with_separate_parameters_are_the_first_dimension_of_every_tensor() -> None:
    separate = NetworkValues((6, 5), torso=False, recurrent_size=0, normalizes=True, shares_parameters=False)
    stacked = {name: [3, *shape] for name, shape in SHAPES.items()} | {"log_std": [3, 7]}
    assert not list(mismatches(stacked, separate))
    assert list(mismatches(stacked, PLAIN))
    problem = ["has tensors of different numbers of agents, and share_parameters is false"]
    assert list(mismatches(stacked | {"actor.1.bias": [2, 7]}, separate)) == problem
    assert list(mismatches(stacked | {"actor.1.bias": []}, separate)) == problem
    assert list(mismatches({}, separate)) == problem
    found = list(mismatches(stacked | {"actor.1.weight": [3, 7, 4]}, separate))
    assert found == ["actor.1.weight has the shape [7, 4]; the hyperparameters of its agent require [7, 5]"]
