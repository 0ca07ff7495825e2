"""Loads published policies from the checkpoint store."""

import asyncio
from functools import partial

from google.protobuf import json_format

from agentpod.algorithms import ALGORITHMS
from agentpod.algorithms.requirements import requirements
from agentpod.learner.evaluation_job import PublishedPolicy
from agentpod.models.description import POLICY_PART, described_network
from agentpod.models.policy import NetworkSpec
from agentpod.storage_waits import StorageWaits
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.publish import fetch
from podrace.checkpoint_store.replay_parts import PREFIX
from podrace.checkpoint_store.store import CheckpointStore
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.specification.environment_search import algorithm_values
from podrace.tensor_transport.codec import decode


async def load_policies(store: CheckpointStore, work: pb.EvaluationWork, waits: StorageWaits) -> list[PublishedPolicy]:
    """Loads the policy that an evaluation names, then the other members of an ensemble, then the opponents.

    While the store does not answer, the call waits.

    Raises:
        NotFound, DataLoss: As `load_published_policy`.
        Unavailable: The work must end, and the store still does not answer.
    """
    digests = [checkpoint.manifest_digest for checkpoint in (work.checkpoint, *work.members, *work.opponents)]
    loads = [partial(asyncio.to_thread, load_published_policy, store, digest) for digest in digests]
    return [await waits.until_stored(load) for load in loads]


def load_published_policy(store: CheckpointStore, manifest_digest: str) -> PublishedPolicy:
    """Loads a policy and the description of its network. Blocks.

    Raises:
        NotFound: The checkpoint is not in the store.
        DataLoss: The checkpoint is damaged.
    """
    manifest, parts = fetch(store, manifest_digest, without=PREFIX)
    return PublishedPolicy(manifest_digest, manifest, _network(manifest), decode(parts[POLICY_PART])[0])


def _network(manifest: Manifest) -> NetworkSpec:
    if manifest.algorithm in ALGORITHMS:
        values = algorithm_values(json_format.MessageToDict(manifest.hyperparameters))
        return requirements(manifest.algorithm, values).network
    # A manifest must not decide which module is imported here.
    return described_network(manifest.policies)
