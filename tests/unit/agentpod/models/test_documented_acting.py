"""The program in docs/grpc.md acts as podrace does."""

import math
import re
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from agentpod.models.action_heads import HEADS
from agentpod.models.messages import policy_message
from agentpod.models.policy import NetworkSpec, Policy
from simulators.base import Space
from simulators.messages import space_message

PAGE = Path(__file__).parents[4] / "docs/grpc.md"
OBSERVATIONS = 6
BOUNDED = Space("continuous", (3,), torch.float32, (-2.0, -1.0, 0.0), (2.0, 3.0, 0.5))
HALF_OPEN = Space("continuous", (3,), torch.float32, (-2.0, -math.inf, -1.0), (2.0, 1.0, math.inf))
UNBOUNDED = Space("continuous", (3,), torch.float32)
CHOICES = Space("discrete", (), torch.int64, n=4)
CASES = [
    (head, space)
    for head, space in product(HEADS, (BOUNDED, HALF_OPEN, UNBOUNDED, CHOICES))
    if space.kind in HEADS[head].action_kinds and (space in (BOUNDED, CHOICES) or head == "stochastic")
]


@pytest.fixture(scope="module")
def acting() -> ModuleType:
    block = re.search(r"<!-- docs-test: file acting.py -->\n```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.M)
    assert block is not None
    module = ModuleType("acting")
    exec(compile(block[1], "docs/grpc.md", "exec"), vars(module))
    return module


def random_policy(space: Space, network: NetworkSpec, dtype: torch.dtype) -> Policy:
    policy = Policy(Space("continuous", (OBSERVATIONS,), dtype), space, network)
    policy.load(torch.randn(policy.flat.shape, generator=torch.Generator().manual_seed(1)))
    tensors = policy.tensors()
    if policy.normalizes:
        policy.set_statistics(tensors["observation_mean"], tensors["observation_variance"].abs())
    policy.set_head_parameter("exploration", 0.3)
    return policy


def actor_of(acting: ModuleType, policy: Policy, space: Space, network: NetworkSpec):
    arrays = {name: tensor.double().numpy() for name, tensor in policy.tensors().items()}
    return acting.Actor(policy_message(network, policy.tensors()), arrays, space_message(space))


def observations(dtype: torch.dtype, steps: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    if dtype == torch.uint8:
        return torch.randint(0, 256, (steps, 1, OBSERVATIONS), generator=generator, dtype=dtype)
    return 3.0 * torch.randn(steps, 1, OBSERVATIONS, generator=generator)


@pytest.mark.parametrize(("head", "space"), CASES, ids=str)
@pytest.mark.parametrize("recurrent_size", [0, 5])
@pytest.mark.parametrize(
    ("activation", "normalizes", "dtype"),
    [("tanh", True, torch.float32), ("relu", False, torch.float32), ("elu", True, torch.uint8)],
)
def test_the_documented_program_takes_the_actions_of_the_policy(
    acting, head, space, recurrent_size, activation, normalizes, dtype
):
    network = NetworkSpec((7, 8), activation, normalizes, head, recurrent_size=recurrent_size)
    policy = random_policy(space, network, dtype)
    actor = actor_of(acting, policy, space, network)
    state = policy.initial_state(1)
    for observation in observations(dtype, steps=4):
        outputs, state = policy.advance(observation, state)
        expected = policy.to_environment(policy.head.mode(outputs))[0]
        np.testing.assert_allclose(actor.act(observation[0].numpy()), expected.numpy(), atol=2e-5)


class GivenNoise:
    """Gives the documented program the noise that the policy's head was given."""

    def __init__(self, noise: torch.Tensor) -> None:
        self._noise = noise

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        return self._noise.double().numpy().reshape(shape)


@pytest.mark.parametrize(("head", "space"), [case for case in CASES if case[1] is not CHOICES], ids=str)
def test_the_documented_program_explores_as_the_policy_does(acting, head, space):
    network = NetworkSpec((8,), head=head)
    policy = random_policy(space, network, torch.float32)
    actor = actor_of(acting, policy, space, network)
    noise = torch.randn(16, 1, 3, generator=torch.Generator().manual_seed(3))
    for observation, drawn in zip(observations(torch.float32, steps=16), noise, strict=True):
        expected = policy.to_environment(policy.act(observation, drawn))[0]
        np.testing.assert_allclose(actor.act(observation[0].numpy(), GivenNoise(drawn)), expected.numpy(), atol=2e-5)


@pytest.mark.parametrize("head", [head for head, space in CASES if space is CHOICES])
def test_the_documented_program_draws_choices_as_often_as_the_policy_does(acting, head):
    network = NetworkSpec((8,), head=head)
    policy = random_policy(CHOICES, network, torch.float32)
    policy.actor_flat.mul_(0.3)
    actor = actor_of(acting, policy, CHOICES, network)
    observation, draws = observations(torch.float32, steps=1)[0], 4000
    noise = policy.noise((draws,), torch.Generator().manual_seed(4))
    expected = torch.bincount(policy.act(observation.expand(draws, -1), noise), minlength=4) / draws
    random = np.random.default_rng(5)
    found = np.bincount([actor.act(observation[0].numpy(), random) for _ in range(draws)], minlength=4) / draws
    # Five standard errors of the difference of two frequencies.
    np.testing.assert_allclose(found, expected.numpy(), atol=5 * math.sqrt(2 * 0.25 / draws))
