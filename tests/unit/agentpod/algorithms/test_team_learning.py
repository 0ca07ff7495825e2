"""Trains every algorithm for teams on simple spread in one process, with three seeds. Marked slow."""

import pytest
from learning import best_score

ON_POLICY: dict[str, object] = {
    "horizon": 25,
    "learning_rate": 7e-4,
    "entropy_coefficient": 0.01,
    "epochs": 10,
    "minibatch_size": 600,
    "shared_reward": True,
}
CONTINUOUS = {"continuous_actions": True}
TASKS: dict[str, tuple[dict[str, object], dict[str, object], int, float]] = {
    "ippo": (ON_POLICY, {}, 500_000, -62.0),
    "mappo": (ON_POLICY, {}, 200_000, -62.0),
    "maddpg": ({"shared_reward": True}, CONTINUOUS, 200_000, -56.0),
    "maddpg, discrete": ({"shared_reward": True}, {}, 200_000, -56.0),
    "matd3": ({"shared_reward": True}, CONTINUOUS, 200_000, -56.0),
}
"""Hyperparameters, options, environment steps, and the return to reach; teams that act at random are at -82."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", TASKS)
def test_teams_learn_to_cover_the_landmarks(name: str, seed: int) -> None:
    hyperparameters, options, steps, wanted = TASKS[name]
    assert best_score(name.partition(",")[0], "spread", hyperparameters, seed, steps, wanted, options) >= wanted
