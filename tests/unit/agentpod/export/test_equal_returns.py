"""An exported policy gets the returns that the evaluator of a pod gives the torch policy, on the same episodes."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentpod.models.actors import PolicyActor
from agentpod.models.description import describe
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.roles.episodes import play
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.client.delivery import FetchedCheckpoint
from podrace.policy import runtime
from podrace.policy.loading import policy_of
from podrace.tensor_transport.codec import encode
from simulators import make

LANES, EPISODES, SEED = 8, 8, 12345


class ExportedActor:
    """Acts in the evaluator's loop with an exported policy, as a user of `podrace.load_policy` does."""

    def __init__(self, policy: runtime.Policy) -> None:
        self.policy = policy

    def act(self, observation: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self.policy.act(observation.numpy())))

    def reset(self, done: Tensor) -> None:
        self.policy.reset(done.numpy())

    def begin(self, batch: int) -> None:
        self.policy.reset()


@pytest.mark.parametrize(
    ("environment", "network"),
    [
        ("CartPole-v1", NetworkSpec((16,), head="values")),
        ("CartPole-v1", NetworkSpec((16,), recurrent_size=8)),
        ("Pendulum-v1", NetworkSpec((16, 16), "relu", head="squashed")),
    ],
)
def test_returns_are_equal_episode_by_episode(environment: str, network: Any) -> None:
    simulator = make(environment, LANES)
    policy = Policy(simulator.observation_space, simulator.action_space, network)
    policy.initialize(torch.Generator().manual_seed(1), output_gain=1.0)
    parts = {"policy": encode(policy.tensors(), {})}
    manifest = Manifest(policies={"agent": describe(policy)})
    exported = ExportedActor(policy_of([FetchedCheckpoint("0" * 64, b"", manifest, parts)]))
    with torch.no_grad():
        actor = PolicyActor(policy, LANES, torch.Generator().manual_seed(1), greedy=True)
        wanted = play(simulator, actor, EPISODES, SEED)
        found = play(simulator, exported, EPISODES, SEED)
    simulator.close()
    assert torch.equal(found.lengths, wanted.lengths)
    assert (found.returns - wanted.returns).abs().max() < 1e-3
