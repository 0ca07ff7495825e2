"""Tests running moments and the scale of rewards."""

import torch

from agentpod.models.normalizer import RewardScale, RunningMoments, SharedMoments


def samples(count: int, *, seed: int = 0, offset: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, dtype=torch.float64, generator=generator) * torch.tensor([1.0, 5.0, 0.1]) + offset


def assert_same(one: RunningMoments, other: RunningMoments) -> None:
    for name, tensor in vars(one).items():
        torch.testing.assert_close(tensor, vars(other)[name], rtol=1e-10, atol=1e-10)


def test_merging_parts_equals_the_moments_of_the_whole() -> None:
    whole = samples(1000)
    parts = [RunningMoments.of(part) for part in torch.split(whole, [1, 400, 99, 500])]
    merged = RunningMoments.empty((3,))
    for part in parts:
        merged = merged.merge(part)
    assert_same(merged, RunningMoments.of(whole))
    assert merged.count == 1000
    torch.testing.assert_close(merged.variance, whole.var(0, correction=0))


def test_merging_does_not_depend_on_order_or_grouping() -> None:
    a, b, c = (RunningMoments.of(samples(count, seed=count)) for count in (10, 200, 3))
    assert_same(a.merge(b).merge(c), c.merge(b.merge(a)))


def test_merging_no_samples_changes_nothing() -> None:
    empty, some = RunningMoments.empty((3,)), RunningMoments.of(samples(10))
    assert_same(empty.merge(some), some)
    assert_same(some.merge(empty), some)
    assert torch.equal(empty.merge(empty).variance, torch.ones(3))


def test_moments_of_a_learner_alone_are_merged_with_nothing_and_have_the_same_bits() -> None:
    shared, part = SharedMoments((3,)), RunningMoments.of(samples(100, offset=3.0))
    shared.add(part)
    assert shared.total is shared.fresh, "no operation"
    for name, tensor in vars(shared.common.merge(shared.fresh)).items():
        assert torch.equal(tensor, vars(shared.total)[name])
    again = SharedMoments((3,))
    again.load_state_dict(shared.state_dict("seen"), "seen")
    assert again.total is again.fresh
    shared.commit(shared.total)
    assert shared.total is shared.common


def test_a_mean_far_from_zero_loses_no_precision() -> None:
    merged = RunningMoments.empty((3,))
    for seed in range(20):
        merged = merged.merge(RunningMoments.of(samples(500, seed=seed, offset=1e6)))
    near = torch.cat([samples(500, seed=seed) for seed in range(20)])
    torch.testing.assert_close(merged.variance, near.var(0, correction=0), rtol=1e-6, atol=0.0)


def test_moments_survive_their_state_dict() -> None:
    moments = RunningMoments.of(samples(10))
    state = moments.state_dict("m")
    again = RunningMoments.from_state_dict(state, "m", "cpu")
    assert all(torch.equal(tensor, vars(again)[name]) for name, tensor in vars(moments).items())
    assert all(state[f"m.{name}"].data_ptr() != tensor.data_ptr() for name, tensor in vars(moments).items())


def test_rewards_are_scaled_by_the_deviation_of_running_discounted_returns() -> None:
    reward = torch.tensor([[1.0], [2.0], [3.0]])
    done = torch.tensor([[False], [True], [False]])
    scale = RewardScale.empty().advance(reward, done, 0.5)
    running = torch.tensor([1.0, 2.5, 3.0])
    torch.testing.assert_close(scale.deviation, running.std(correction=0))
    assert scale.carry.tolist() == [3.0]


def test_the_scale_of_rewards_does_not_depend_on_rollout_boundaries() -> None:
    generator = torch.Generator().manual_seed(1)
    reward = torch.randn(12, 2, generator=generator)
    done = torch.rand(12, 2, generator=generator) < 0.2
    whole = RewardScale.empty().advance(reward, done, 0.9)
    cut = RewardScale.empty().advance(reward[:5], done[:5], 0.9).advance(reward[5:], done[5:], 0.9)
    assert_same(cut.moments, whole.moments)
    torch.testing.assert_close(cut.carry, whole.carry)


def test_a_changed_number_of_lanes_restarts_running_returns_but_keeps_the_statistics() -> None:
    still = torch.zeros(1, 2, dtype=torch.bool)
    two = RewardScale.empty().advance(torch.tensor([[1.0, 2.0]]), still, 0.9)
    three = two.advance(torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.bool), 0.9)
    assert three.carry.tolist() == [0.0, 0.0, 0.0]
    assert three.moments.count == 5


def test_constant_rewards_stay_finite() -> None:
    scale = RewardScale.empty().advance(torch.zeros(4, 2), torch.zeros(4, 2, dtype=torch.bool), 0.9)
    assert (torch.zeros(4, 2) / scale.deviation).isfinite().all()
    assert scale.deviation > 0
