"""Chooses the policy of one agent from a checkpoint whose agents have separate parameters."""

from dataclasses import replace

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint.v1.policy_pb2 import PolicyDescription
from podrace.checkpoint_store.manifest import manifest_bytes
from podrace.client.delivery import FetchedCheckpoint
from podrace.errors import DataLoss, InvalidArgument, NotFound
from podrace.policy.tensor_file import read_tensors, written_tensors

AGENT = "agent"
"""Name of the only agent of an environment with one agent, and of agents that share one policy."""


def of_agent(checkpoint: FetchedCheckpoint, agent: str = "") -> FetchedCheckpoint:
    """Returns a checkpoint that has the policy of one agent alone, under the name `agent`.

    Args:
        checkpoint: A checkpoint with the parts of its policies.
        agent: Name of the agent in its environment; empty if all agents share one policy.

    Raises:
        InvalidArgument: No agent is named, and agents have separate parameters, or the reverse.
        NotFound: There is no agent of that name.
        DataLoss: A part cannot be read, or has fewer agents.
    """
    policies = checkpoint.manifest.policies
    if AGENT in policies or not policies:
        if agent:
            raise InvalidArgument(f"agent {agent!r}: all agents of this environment share one policy; name none")
        return checkpoint
    names = ", ".join(sorted(policies))
    if not agent:
        raise InvalidArgument(f"the agents of this candidate have separate policies: name one of {names} (--agent)")
    if agent not in policies:
        raise NotFound(f"agent {agent!r}: the agents of this candidate are {names}")
    manifest = Manifest()
    manifest.CopyFrom(checkpoint.manifest)
    description = PolicyDescription()
    description.CopyFrom(policies[agent])
    index, parts = description.agent_index, dict(checkpoint.parts)
    description.ClearField("agent_index")
    for name in (description.part, description.test_vectors_part):
        if name in parts:
            tensors = read_tensors(parts[name])
            if any(not array.ndim or len(array) <= index for array in tensors.values()):
                raise DataLoss(f"{name}: has no tensors of agent {agent!r}, whose number is {index}")
            parts[name] = written_tensors({key: array[index] for key, array in tensors.items()})
    manifest.ClearField("policies")
    manifest.policies[AGENT].CopyFrom(description)
    return replace(checkpoint, manifest=manifest, manifest_json=manifest_bytes(manifest), parts=parts)
