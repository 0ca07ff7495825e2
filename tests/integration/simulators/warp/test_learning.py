"""PPO learns on MuJoCo Warp's ant: collect, update, score. Marked slow."""

import learning
import pytest
import torch

from agentpod.algorithms import Algorithm
from simulators import Simulator, make

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS, SCORE_EVERY = 150_000, 30_000
SETTINGS: dict[str, object] = {
    "hidden_sizes": [64, 64],
    "horizon": 64,
    "normalize_observations": True,
    "learning_rate": 1e-3,
    "epochs": 5,
    "minibatch_size": 256,
    "discount": 0.98,
}
BETTER = 20.0
"""Standing still for 300 steps returns about 250; walking at 1 m/s for 6 s returns as much again."""


def isaac_ant(id: str, count: int) -> Simulator:
    """Makes Isaac Gym's ant. Gymnasium's first learns to fall, for a million steps, as random actions cost too much."""
    return make(id, count, {"style": "isaac", "max_episode_steps": 300})


def test_ppo_learns_to_move_an_ant(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(learning, "make_simulator", isaac_ant)
    scores: list[float] = []

    def is_better(algorithm: Algorithm, steps: int) -> bool:
        if steps // SCORE_EVERY >= len(scores):
            scores.append(learning.evaluate("warp:ant", algorithm.policy))
        return scores[-1] > scores[0] + BETTER

    learning.train("ppo", "warp:ant", SETTINGS, 0, STEPS, is_better)
    assert max(scores) > scores[0] + BETTER
