"""The policy of one agent is read from a checkpoint whose agents have separate parameters."""

import numpy as np
import pytest
import torch
from policies import published

from agentpod.learner.checkpoint_files import Counters, manifest_of
from agentpod.models import description
from agentpod.models.description import describe_all, described_network, policies_of_agents
from agentpod.models.policy import NetworkSpec, Policy
from podrace.checkpoint_store.manifest import manifest_bytes, manifest_from_bytes
from podrace.client.delivery import FetchedCheckpoint
from podrace.errors import DataLoss, InvalidArgument, NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.policy.agents import of_agent
from podrace.policy.loading import checked_onnx_file
from podrace.policy.runtime import Policy as LoadedPolicy
from podrace.tensor_transport.codec import encode
from simulators.base import Space

NAMES = ("north", "south", "east")
SEEN = Space("continuous", (4,), torch.float32, agents=NAMES)
STEERED = Space("continuous", (2,), torch.float32, (-2.0, -2.0), (2.0, 2.0))


def team() -> tuple[Policy, FetchedCheckpoint]:
    policy = Policy(SEEN, STEERED, NetworkSpec((8,), share_parameters=False))
    policy.initialize(torch.Generator().manual_seed(1), output_gain=1.0)
    policy.set_head_parameter("log_std", -0.7)
    mean, spread = torch.randn(2, len(NAMES), 4, generator=torch.Generator().manual_seed(2))
    policy.set_statistics(mean, spread.square())
    manifest = manifest_of(Agent(agent_id="race-1-a3", algorithm="ippo"), Counters(), describe_all(policy), 0.0)
    manifest.format_version = 1
    data = manifest_bytes(manifest)
    parts = {"policy": encode(policy.tensors(), {}), "test_vectors": encode(description.test_vectors(policy), {})}
    return policy, FetchedCheckpoint("ab" * 32, data, manifest_from_bytes(data), parts)


def test_the_manifest_names_each_agent_and_describes_its_network() -> None:
    policy, checkpoint = team()
    assert set(checkpoint.manifest.policies) == set(NAMES)
    assert described_network(checkpoint.manifest.policies) == policy.network


def test_the_exported_policy_of_an_agent_acts_as_the_agent_does_in_the_team() -> None:
    policy, checkpoint = team()
    seen = torch.randn(6, 4, generator=torch.Generator().manual_seed(4))
    for number, name in enumerate(NAMES):
        # Its test vectors are compared when the file is written.
        loaded = LoadedPolicy(checked_onnx_file([of_agent(checkpoint, name)]))
        rows = seen.repeat_interleave(len(NAMES), 0)
        wanted = policy.to_environment(policy.act_greedily(rows))[number :: len(NAMES)]
        found = loaded.run(seen.numpy(), np.zeros((6, 0), np.float32))["action"]
        np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)


def test_the_manifest_of_one_agent_is_that_of_a_policy_without_other_agents() -> None:
    _, checkpoint = team()
    alone = of_agent(checkpoint, "south")
    assert list(manifest_from_bytes(alone.manifest_json).policies) == ["agent"]
    assert not alone.manifest.policies["agent"].HasField("agent_index")
    assert of_agent(alone) is alone


def test_agents_with_separate_policies_must_be_named() -> None:
    _, checkpoint = team()
    with pytest.raises(InvalidArgument, match="separate policies: name one of east, north, south"):
        checked_onnx_file([checkpoint])
    with pytest.raises(NotFound, match="agent 'west': the agents of this candidate are east, north, south"):
        of_agent(checkpoint, "west")
    with pytest.raises(InvalidArgument, match="agent 'north': all agents of this environment share one policy"):
        of_agent(published("flags").checkpoint, "north")


def test_policies_of_agents_are_those_that_their_descriptions_name() -> None:
    policy, _ = team()
    own = policies_of_agents(policy)["east"]
    assert torch.equal(own.tensors()["actor.0.weight"], policy.tensors()["actor.0.weight"][2])


def test_a_checkpoint_that_has_fewer_agents_than_it_describes_is_damaged() -> None:
    _, checkpoint = team()
    checkpoint.manifest.policies["south"].agent_index = len(NAMES)
    with pytest.raises(DataLoss, match=r"policy: has no tensors of agent 'south', whose number is 3"):
        of_agent(checkpoint, "south")
