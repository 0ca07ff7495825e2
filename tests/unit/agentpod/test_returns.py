"""Tests the recurrences over time against loops that follow the definitions literally."""

import pytest
import torch
from torch import Tensor

from agentpod.returns import discounted_returns, generalized_advantages, linear_scan

HORIZONS = [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 128]


def random_flags(generator: torch.Generator, shape: tuple[int, ...], probability: float) -> Tensor:
    return torch.rand(shape, generator=generator) < probability


def looped_advantages(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    discount: float,
    lam: float,
) -> Tensor:
    horizon, count = reward.shape
    advantage = torch.zeros_like(reward)
    for lane in range(count):
        following = 0.0
        for t in reversed(range(horizon)):
            bootstrap = 0.0 if terminated[t, lane] else discount * float(next_value[t, lane])
            residual = float(reward[t, lane]) + bootstrap - float(value[t, lane])
            ended = bool(terminated[t, lane] or truncated[t, lane])
            following = residual + (0.0 if ended else discount * lam * following)
            advantage[t, lane] = following
    return advantage


@pytest.mark.parametrize("horizon", HORIZONS)
def test_the_scan_solves_its_recurrence(horizon: int) -> None:
    generator = torch.Generator().manual_seed(horizon)
    value, coefficient = torch.randn(2, horizon, 3, dtype=torch.float64, generator=generator)
    expected, following = torch.zeros_like(value), torch.zeros(3, dtype=torch.float64)
    for t in reversed(range(horizon)):
        following = value[t] + coefficient[t] * following
        expected[t] = following
    torch.testing.assert_close(linear_scan(value, coefficient), expected, rtol=1e-12, atol=1e-12)


def test_the_scan_does_not_modify_its_inputs() -> None:
    value, coefficient = torch.ones(5, 2), torch.full((5, 2), 0.5)
    linear_scan(value, coefficient)
    assert torch.equal(value, torch.ones(5, 2))
    assert torch.equal(coefficient, torch.full((5, 2), 0.5))


@pytest.mark.parametrize("horizon", HORIZONS)
def test_advantages_follow_their_definition(horizon: int) -> None:
    for seed in range(5):
        generator = torch.Generator().manual_seed(1000 * horizon + seed)
        reward, value, next_value = torch.randn(3, horizon, 4, dtype=torch.float64, generator=generator)
        terminated = random_flags(generator, (horizon, 4), 0.2)
        truncated = random_flags(generator, (horizon, 4), 0.2)
        arguments = (reward, value, next_value, terminated, truncated, 0.97, 0.9)
        expected = looped_advantages(*arguments)
        torch.testing.assert_close(generalized_advantages(*arguments), expected, rtol=1e-12, atol=1e-12)


def one_ending(terminated: bool, truncated: bool, next_value: float) -> Tensor:
    """Returns the advantages of three steps of one lane, whose second step ends an episode; rewards 1, values 0."""
    flag = torch.zeros(3, 1, dtype=torch.bool)
    terminations, truncations = flag.clone(), flag.clone()
    terminations[1], truncations[1] = terminated, truncated
    following = torch.tensor([[0.0], [next_value], [0.0]])
    return generalized_advantages(torch.ones(3, 1), torch.zeros(3, 1), following, terminations, truncations, 0.5, 1.0)


def test_truncation_bootstraps_from_the_final_observation() -> None:
    assert one_ending(False, True, next_value=8.0).flatten().tolist() == [1.0 + 0.5 * 5.0, 1.0 + 0.5 * 8.0, 1.0]


def test_termination_does_not_bootstrap() -> None:
    expected = [1.0 + 0.5 * 1.0, 1.0, 1.0]
    assert one_ending(True, False, next_value=8.0).flatten().tolist() == expected
    assert one_ending(True, False, next_value=float("nan")).flatten().tolist() == expected


def test_termination_takes_precedence_over_truncation() -> None:
    assert torch.equal(one_ending(True, True, 8.0), one_ending(True, False, 8.0))


def test_no_advantage_crosses_the_end_of_an_episode() -> None:
    for terminated, truncated in ((True, False), (False, True)):
        flags = torch.tensor([[False], [True], [False], [False]])
        reward = torch.tensor([[1.0], [1.0], [1.0], [1.0]])
        other = torch.tensor([[1.0], [1.0], [50.0], [-50.0]])
        zeros = torch.zeros(4, 1)
        of = [
            generalized_advantages(rewards, zeros, zeros, flags & terminated, flags & truncated, 0.9, 0.9)[:2]
            for rewards in (reward, other)
        ]
        assert torch.equal(of[0], of[1])


def test_running_returns_follow_their_definition() -> None:
    generator = torch.Generator().manual_seed(3)
    reward = torch.randn(33, 4, generator=generator)
    done = random_flags(generator, (33, 4), 0.15)
    carry = torch.randn(4, dtype=torch.float64, generator=generator)
    running, handed_on = discounted_returns(reward, done, 0.9, carry)
    expected, following = torch.zeros(33, 4, dtype=torch.float64), carry
    for t in range(33):
        following = reward[t].double() + 0.9 * following
        expected[t] = following
        following = torch.where(done[t], 0.0, following)
    torch.testing.assert_close(running, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(handed_on, following, rtol=1e-12, atol=1e-12)


def test_running_returns_do_not_depend_on_rollout_boundaries() -> None:
    generator = torch.Generator().manual_seed(4)
    reward = torch.randn(20, 3, generator=generator)
    done = random_flags(generator, (20, 3), 0.2)
    carry = torch.zeros(3, dtype=torch.float64)
    whole, _ = discounted_returns(reward, done, 0.95, carry)
    pieces = []
    for cut in (slice(0, 7), slice(7, 8), slice(8, 20)):
        piece, carry = discounted_returns(reward[cut], done[cut], 0.95, carry)
        pieces.append(piece)
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-12, atol=1e-12)
