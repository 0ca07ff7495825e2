import numpy as np
import torch

from benchmarks.tournament_tasks import docking, swing


def test_docking_rewards_every_digit_of_precision_with_one_unit() -> None:
    simulator = docking(3)
    simulator.set_state(np.arange(3), np.array([[0.1, 0.01, 0.0], [0.0] * 3, [0.0] * 3], np.float32))
    rewards = simulator.step(torch.zeros(3, 1)).reward
    assert torch.allclose(rewards, torch.tensor([1.0, 2.0, 5.0]), atol=1e-2)


def test_docking_moves_where_it_is_pushed() -> None:
    simulator = docking(2)
    simulator.set_state(np.arange(2), np.zeros((3, 2), np.float32))
    seen = simulator.step(torch.tensor([[1.0], [-1.0]])).observation
    assert seen[0, 0] > 0 > seen[1, 0]
    assert torch.equal(seen[0, :2], -seen[1, :2])


def test_a_swing_at_rest_at_the_top_costs_nothing_and_its_torque_cannot_lift_it_from_the_side() -> None:
    simulator = swing(2)
    simulator.set_state(np.arange(2), np.array([[0.0, np.pi / 2], [0.0, 0.0]], np.float32))
    step = simulator.step(torch.tensor([[0.0], [-0.5]]))
    assert step.reward[0] == 0
    # Gravity turns it down, away from 0, for any torque.
    assert step.observation[1, 2] > 0


def test_episodes_are_truncated_after_their_steps() -> None:
    for make, steps in ((docking, 100), (swing, 300)):
        simulator = make(2)
        ended = [bool(simulator.step(torch.zeros(2, 1)).truncated.all()) for _ in range(steps)]
        assert ended == [False] * (steps - 1) + [True]
