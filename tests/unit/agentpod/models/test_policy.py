"""Tests policies: the flat buffer, actions, and the map to the environment's units."""

import math

import pytest
import torch

from agentpod.models.policy import NetworkSpec, Policy, policy_shapes
from podrace.errors import InvalidArgument
from simulators.base import Space

OBSERVED = Space("continuous", (3,), torch.float32)
CONTINUOUS = Space("continuous", (2,), torch.float32, low=(-2.0, 0.0), high=(2.0, 10.0))
DISCRETE = Space("discrete", (), torch.int64, n=4)
ACTIONS = pytest.mark.parametrize("action_space", [CONTINUOUS, DISCRETE], ids=lambda space: space.kind)


def new_policy(action_space: Space, *, seed: int = 0, normalize: bool = True) -> Policy:
    policy = Policy(OBSERVED, action_space, NetworkSpec((8, 8), "tanh", normalize))
    policy.initialize(torch.Generator().manual_seed(seed))
    policy.set_head_parameter("log_std", -0.5)
    # The outputs of a new actor hardly depend on the observation; these weights make them depend on it.
    policy.actor.weights[-1].mul_(100.0)
    if normalize:
        policy.set_statistics(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 1.0, 0.25]))
    return policy


def observations(count: int = 5) -> torch.Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(9)) * 2


@ACTIONS
def test_tensors_are_views_that_cover_the_buffer_in_order(action_space: Space) -> None:
    policy = new_policy(action_space)
    tensors = policy.tensors()
    assert torch.equal(torch.cat([tensor.flatten() for tensor in tensors.values()]), policy.flat)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == policy_shapes(
        OBSERVED, action_space, NetworkSpec((8, 8))
    )
    assert tensors["actor.0.weight"].untyped_storage().data_ptr() == policy.flat.untyped_storage().data_ptr()


@ACTIONS
def test_a_loaded_policy_acts_like_the_published_one(action_space: Space) -> None:
    published, loaded = new_policy(action_space, seed=1), new_policy(action_space, seed=2)
    noise = published.noise((5,), torch.Generator().manual_seed(0))
    assert not torch.allclose(published.outputs(observations()), loaded.outputs(observations()))
    loaded.load(published.flat.clone())
    assert torch.equal(published.act(observations(), noise), loaded.act(observations(), noise))
    assert torch.equal(published.act_greedily(observations()), loaded.act_greedily(observations()))


def test_a_policy_of_another_size_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="cannot load"):
        new_policy(CONTINUOUS).load(new_policy(DISCRETE).flat)


def test_a_policy_uses_the_buffer_that_it_is_given() -> None:
    own = new_policy(DISCRETE)
    buffer = torch.zeros(own.flat.numel() + 7)
    guest = Policy(OBSERVED, DISCRETE, NetworkSpec((8, 8)), flat=buffer[3:-4])
    guest.load(own.flat)
    assert torch.equal(buffer[3:-4], own.flat)
    assert torch.equal(guest.act_greedily(observations()), own.act_greedily(observations()))


@ACTIONS
def test_the_action_of_a_lane_depends_only_on_that_lane(action_space: Space) -> None:
    policy = new_policy(action_space)
    noise = policy.noise((5,), torch.Generator().manual_seed(0))
    together = policy.act(observations(), noise)
    alone = [policy.act(observations()[lane : lane + 1], noise[lane : lane + 1]) for lane in range(5)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_observations_are_standardized_and_clamped_to_ten() -> None:
    policy = new_policy(DISCRETE)
    seen = policy.normalize(torch.tensor([[3.0, 2.0, 2.5], [1e9, 2.0, -1e9]]))
    torch.testing.assert_close(seen, torch.tensor([[1.0, 0.0, -1.0], [10.0, 0.0, -10.0]]))


def test_without_normalization_observations_are_unchanged() -> None:
    policy = new_policy(DISCRETE, normalize=False)
    assert "observation_mean" not in policy.tensors()
    assert torch.equal(policy.normalize(observations() * 1e6), observations() * 1e6)


def test_observations_of_higher_rank_are_flattened() -> None:
    space = Space("continuous", (2, 3), torch.uint8)
    policy = Policy(space, DISCRETE, NetworkSpec((8,)))
    policy.initialize(torch.Generator().manual_seed(0))
    pixels = torch.arange(24, dtype=torch.uint8).view(4, 2, 3)
    assert policy.normalize(pixels).shape == (4, 6)
    assert policy.normalize(pixels).dtype == torch.float32
    assert policy.act_greedily(pixels).shape == (4,)


def test_bounded_actions_are_clamped_and_scaled_to_the_bounds() -> None:
    to_environment = new_policy(CONTINUOUS).to_environment
    raw = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [-9.0, 9.0], [0.5, -0.5]])
    expected = torch.tensor([[-2.0, 0.0], [0.0, 5.0], [2.0, 10.0], [-2.0, 10.0], [1.0, 2.5]])
    assert torch.equal(to_environment(raw), expected)


def test_unbounded_actions_are_unchanged_and_half_bounded_ones_are_clamped() -> None:
    half_open = Space("continuous", (2,), torch.float32, low=(-math.inf, 0.5), high=None)
    raw = torch.tensor([[-7.0, 3.0], [7.0, -3.0]])
    assert Policy(OBSERVED, half_open, NetworkSpec((4,))).to_environment(raw).tolist() == [[-7.0, 3.0], [7.0, 0.5]]


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_actions_have_the_shape_of_the_action_space(shape: tuple[int, ...]) -> None:
    policy = Policy(OBSERVED, Space("continuous", shape, torch.float32), NetworkSpec((4,)))
    assert policy.to_environment(policy.act_greedily(observations())).shape == (5, *shape)


def test_the_largest_numbers_as_bounds_mean_unbounded_actions() -> None:
    largest = torch.finfo(torch.float32).max
    policy = new_policy(Space("continuous", (2,), torch.float32, low=(-largest, -1.0), high=(largest, 3.0)))
    raw = torch.tensor([[0.0, 0.0], [7.0, 7.0]])
    assert policy.to_environment(raw).tolist() == [[0.0, 1.0], [7.0, 3.0]]
    one_sided = new_policy(Space("continuous", (1,), torch.float32, low=(largest / 2,), high=(largest,)))
    assert one_sided.to_environment(torch.tensor([[-1.0], [0.0], [1.0]])).isfinite().all()


def test_discrete_actions_are_unchanged() -> None:
    choices = torch.tensor([3, 0, 1])
    assert new_policy(DISCRETE).to_environment(choices) is choices


@pytest.mark.parametrize(
    ("network", "line"),
    [
        ({"activation": "swish"}, "activation 'swish' is unknown: choose one of tanh, relu, elu"),
        ({"hidden_sizes": (64, 0)}, r"hidden_sizes \[64, 0\] must all be at least 1"),
    ],
)
def test_invalid_networks_are_refused(network: dict[str, object], line: str) -> None:
    with pytest.raises(InvalidArgument, match=line):
        NetworkSpec(**network)  # type: ignore[arg-type]


def test_discrete_observations_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="one-hot"):
        Policy(DISCRETE, DISCRETE, NetworkSpec())
