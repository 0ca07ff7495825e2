"""Tests the moments that learners share, on one learner."""

import pytest
import torch

from agentpod.models.normalizer import RunningMoments, SharedMoments


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_learner_normalizes_by_its_own_samples_before_they_are_common() -> None:
    statistics = SharedMoments((2,))
    statistics.add(RunningMoments.of(draw(0, 10, 2)))
    statistics.commit(statistics.merged([statistics.fresh]))
    statistics.add(RunningMoments.of(draw(1, 30, 2)))
    whole = RunningMoments.of(torch.cat([draw(0, 10, 2), draw(1, 30, 2)]))
    assert statistics.common.count == 10
    assert statistics.total.count == 40
    torch.testing.assert_close(statistics.total.variance, whole.variance, rtol=1e-12, atol=0.0)


def test_a_single_learner_has_exactly_the_running_moments_of_its_samples() -> None:
    statistics, running = SharedMoments((2,)), RunningMoments.empty((2,))
    for seed in range(5):
        moments = RunningMoments.of(draw(seed, 7, 2))
        statistics.add(moments)
        running = running.merge(moments)
    for name, tensor in vars(statistics.total).items():
        assert torch.equal(tensor, vars(running)[name]), name


def test_statistics_survive_their_state_dict() -> None:
    statistics, again = SharedMoments((2,)), SharedMoments((2,))
    statistics.commit(RunningMoments.of(draw(0, 10, 2)))
    statistics.add(RunningMoments.of(draw(1, 10, 2)))
    again.load_state_dict(statistics.state_dict("s"), "s")
    for one, other in ((statistics.common, again.common), (statistics.fresh, again.fresh)):
        assert all(torch.equal(tensor, vars(other)[name]) for name, tensor in vars(one).items())


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_moments_survive_flattening(shape: tuple[int, ...]) -> None:
    moments = RunningMoments.of(draw(0, 10, *shape))
    again = RunningMoments.from_flat(moments.flat(), shape)
    assert all(torch.equal(tensor, vars(again)[name]) for name, tensor in vars(moments).items())
    assert again.mean.shape == shape
