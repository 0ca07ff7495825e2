"""Exported and served policies get the returns of the torch policy in the evaluator of a pod, on the same episodes."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentpod.models.actors import PolicyActor
from agentpod.models.description import describe
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.roles.episodes import Episodes, play
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.client.delivery import FetchedCheckpoint
from podrace.comparison.paired import paired_difference
from podrace.policy.loading import onnx_file, policy_of
from podrace.serving.engine import ActInput, EngineLimits, PolicyEngine
from podrace.tensor_transport.codec import encode
from simulators import make

LANES, EPISODES, SEED = 8, 16, 12345
STUDENT = 2.131
"""Quantile 0.975 of Student's t with EPISODES - 1 degrees of freedom."""
PENDULUM = NetworkSpec((16, 16), "relu", head="squashed")
RECURRENT_PENDULUM = NetworkSpec((16,), recurrent_size=8, head="squashed")
STOCKS = {"split": "validation", "episode_days": 12, "train_end": "2010-06-01"}


class ExportedActor:
    """Acts in the evaluator's loop with an exported policy, as a user of `podrace.load_policy` does."""

    def __init__(self, checkpoint: FetchedCheckpoint) -> None:
        self.policy = policy_of([checkpoint])

    def act(self, observation: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self.policy.act(observation.numpy())))

    def reset(self, done: Tensor) -> None:
        self.policy.reset(done.numpy())

    def begin(self, batch: int) -> None:
        self.policy.reset()

    def close(self) -> None:
        pass


class ServedActor:
    """Acts with the engine of a policy server, in a session that has the state of all lanes."""

    def __init__(self, checkpoint: FetchedCheckpoint) -> None:
        self._runner = asyncio.Runner()
        self._engine = PolicyEngine(EngineLimits(), clock=time.monotonic)
        self._runner.run(self._engine.offer(onnx_file([checkpoint])))
        self._begins = np.ones(LANES, np.bool_)

    def act(self, observation: Tensor) -> Tensor:
        asked = ActInput(observation.numpy().copy(), session="episodes", begins=self._begins)
        acted = self._runner.run(self._engine.act(asked))
        self._begins = np.zeros(LANES, np.bool_)
        return torch.from_numpy(np.array(acted.action))

    def reset(self, done: Tensor) -> None:
        self._begins |= done.numpy()

    def begin(self, batch: int) -> None:
        self._begins = np.ones(LANES, np.bool_)

    def close(self) -> None:
        self._runner.run(self._engine.close())
        self._runner.close()


class ForgetfulActor(ExportedActor):
    """Does not reset the recurrent state when episodes begin."""

    def reset(self, done: Tensor) -> None:
        pass

    def begin(self, batch: int) -> None:
        pass


Pair = Callable[..., tuple[Episodes, Episodes]]


@pytest.fixture
def both() -> Iterator[Pair]:
    """Plays the same episodes with a torch policy in the evaluator and with another actor."""
    opened: list[Any] = []

    def played(
        environment: str, network: NetworkSpec, actor_type: Callable[[FetchedCheckpoint], Any], **options: object
    ) -> tuple[Episodes, Episodes]:
        simulator = make(environment, LANES, options)
        opened.append(simulator)
        policy = Policy(simulator.observation_space, simulator.action_space, network)
        policy.initialize(torch.Generator().manual_seed(1), output_gain=1.0)
        parts = {"policy": encode(policy.tensors(), {})}
        manifest = Manifest(policies={"agent": describe(policy)})
        other = actor_type(FetchedCheckpoint("0" * 64, b"", manifest, parts))
        opened.append(other)
        with torch.no_grad():
            own = PolicyActor(policy, LANES, torch.Generator().manual_seed(1), greedy=True)
            return play(simulator, own, EPISODES, SEED), play(simulator, other, EPISODES, SEED)

    yield played
    for one in reversed(opened):
        one.close()


@pytest.mark.long
@pytest.mark.parametrize("actor_type", [ExportedActor, ServedActor])
@pytest.mark.parametrize(
    ("environment", "network"),
    [
        ("CartPole-v1", NetworkSpec((16,), head="values")),
        ("CartPole-v1", NetworkSpec((16,), recurrent_size=8)),
        ("Pendulum-v1", PENDULUM),
    ],
)
def test_returns_are_equal_episode_by_episode(both: Pair, environment: str, network: Any, actor_type: Any) -> None:
    wanted, found = both(environment, network, actor_type)
    assert torch.equal(found.lengths, wanted.lengths)
    assert (found.returns - wanted.returns).abs().max() < 1e-3


@pytest.mark.long
@pytest.mark.parametrize("actor_type", [ExportedActor, ServedActor])
@pytest.mark.parametrize(
    ("environment", "network", "options"),
    [
        ("Pendulum-v1", RECURRENT_PENDULUM, {}),
        ("stocks", NetworkSpec((16,), head="squashed"), STOCKS),
        ("stocks", NetworkSpec((16,), recurrent_size=8), STOCKS),
    ],
)
def test_the_paired_interval_of_the_difference_contains_zero(
    both: Pair, environment: str, network: Any, options: Any, actor_type: Any
) -> None:
    wanted, found = both(environment, network, actor_type, **options)
    assert wanted.returns.std() > 0.01, "the episodes differ from each other"
    assert contains_zero(found, wanted)


@pytest.mark.long
@pytest.mark.parametrize("actor_type", [ExportedActor, ServedActor])
def test_ant_is_equal_for_ten_steps_and_its_paired_interval_contains_zero_afterwards(
    both: Pair, actor_type: Any
) -> None:
    """The contacts of Ant are chaotic: after some tens of steps, a rounding of 1e-7 has become another episode."""
    network = NetworkSpec((32, 32), "tanh", normalize_observations=True)
    wanted, found = both("Ant-v5", network, actor_type, max_episode_steps=10)
    assert (found.returns - wanted.returns).abs().max() < 1e-3
    wanted, found = both("Ant-v5", network, actor_type, max_episode_steps=100)
    difference, error = paired_difference(found.returns.tolist(), wanted.returns.tolist())
    assert STUDENT * error < float(wanted.returns.std())
    assert abs(difference) <= STUDENT * error


def test_a_policy_that_keeps_its_state_between_episodes_gets_other_returns(both: Pair) -> None:
    wanted, found = both("Pendulum-v1", RECURRENT_PENDULUM, ForgetfulActor)
    assert (found.returns[:LANES] - wanted.returns[:LANES]).abs().max() < 1e-3
    assert (found.returns[LANES:] - wanted.returns[LANES:]).abs().max() > 1e-3


def contains_zero(found: Episodes, wanted: Episodes) -> bool:
    """Whether the paired 95 % interval of the mean difference contains 0, up to rounding.

    Its half width may not exceed 1 % of the spread of the episodes: a wide interval would contain 0 for any policy.
    """
    difference, error = paired_difference(found.returns.tolist(), wanted.returns.tolist())
    half, spread = STUDENT * error, float(wanted.returns.std())
    assert half < 0.01 * spread
    return abs(difference) <= half + 1e-4 * spread
