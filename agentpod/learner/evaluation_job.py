"""An evaluation as an assignment: any published checkpoint, scored by a pod's own evaluator on the options it was asked
for.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf import json_format
from torch import Tensor

from agentpod.algorithms.requirements import requirements
from agentpod.experience.memory_spec import MemorySpec
from agentpod.learner.agent_training import MAXIMUM_EVALUATION_LANES
from agentpod.learner.checkpoint_files import POLICY_PART, load_policy
from agentpod.learner.lease import Lease
from agentpod.learner.replay_files import PREFIX
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.roles.user_evaluator import asked_of
from agentpod.session.role_client import SessionSpec
from agentpod.session.session import Roles
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Manifest
from podrace.checkpoint_store.publish import fetch
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import DataLoss
from podrace.tensor_transport.codec import decode
from simulators.messages import with_options


@dataclass(frozen=True)
class PublishedPolicy:
    """A published policy."""

    manifest: Manifest
    network: NetworkSpec
    tensors: Mapping[str, Tensor]

    @property
    def policy_digest(self) -> str:
        """Of its part of that name."""
        return next(part.digest for part in self.manifest.parts if part.name == POLICY_PART)


async def evaluate_checkpoint(roles: Roles, store: CheckpointStore, lease: Lease) -> Evaluation:
    """Scores the checkpoint that an evaluation assignment names, alone or with the other members of an ensemble.

    Raises:
        NotFound: A checkpoint is not in the store.
        DataLoss: It is damaged, or a return is not finite.
        InvalidArgument: The environment does not take the options.
        RoleLost: A role was lost.
    """
    work, spec = lease.assignment.evaluate, lease.assignment.spec
    digests = [checkpoint.manifest_digest for checkpoint in (work.checkpoint, *work.members)]
    members = [await asyncio.to_thread(load_published_policy, store, digest) for digest in digests]
    environment = with_options(spec.environment, work.options, min(work.episodes, MAXIMUM_EVALUATION_LANES))
    session = SessionSpec(
        assignment=lease.assignment.assignment_id.rpartition("-")[2],
        environment=environment,
        evaluation_environment=environment,
        network=members[0].network,
        memory=MemorySpec(horizon=1),
        seed=work.seed,
        rollouts=0,
        members=tuple(member.network for member in members[1:]),
        evaluator=asked_of(spec.evaluation),
    )
    spaces = await roles.open(session)
    for member, ring in zip(members, roles.rings, strict=True):
        policy = Policy(*spaces, member.network)
        load_policy(policy.tensors(), member.tensors)
        ring.publish(policy.flat, member.manifest.policy_version)
    held = [ring.hold() for ring in roles.rings]
    evaluation = await roles.evaluate(*held, episodes=work.episodes, seed=work.seed, greedy=not work.stochastic)
    lease.progress.evaluator_fault = evaluation.evaluator_fault
    scored = [evaluation.policy_digest, *evaluation.member_policy_digests]
    for member, digest, found in zip(members, digests, scored, strict=True):
        if found != member.policy_digest:
            raise DataLoss(f"checkpoint {digest[:12]}: the policy scored is not the one published")
    return evaluation


def load_published_policy(store: CheckpointStore, manifest_digest: str) -> PublishedPolicy:
    """Fetches a policy and how its network is built; raises as `podrace.checkpoint_store.publish.fetch`."""
    manifest, parts = fetch(store, manifest_digest, without=PREFIX)
    shape = requirements(manifest.algorithm, json_format.MessageToDict(manifest.hyperparameters))
    return PublishedPolicy(manifest, shape.network, decode(parts[POLICY_PART])[0])
