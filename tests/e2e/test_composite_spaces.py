"""A tournament on an environment with a Dict observation, a MultiDiscrete action and an action mask."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
EXAMPLE = Path(__file__).parents[2] / "examples/dict.toml"


def test_the_example_with_a_dict_observation_reaches_its_target(home):
    trained = home.json("train", str(EXAMPLE))
    assert trained["state"] == "COMPLETED"
    assert trained["best_score"] >= 17.0
    assert not home.left_behind()
