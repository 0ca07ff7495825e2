"""An evaluation as an assignment: any published checkpoint, scored by a pod's own evaluator on the options it was asked
for.
"""

import asyncio

from google.protobuf import json_format

from agentpod.algorithms.base import Memory
from agentpod.assignment import Lease
from agentpod.messages import with_options
from agentpod.outline import outline
from agentpod.policy import Policy
from agentpod.replay_files import PREFIX
from agentpod.roles import Roles, Session
from agentpod.training import MAXIMUM_EVALUATION_LANES
from agentpod.training_files import POLICY_PART, load_policy
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.checkpoints.publish import fetch
from podrace.checkpoints.store import CheckpointStore
from podrace.errors import DataLoss
from podrace.tensors.codec import decode


async def evaluate_checkpoint(roles: Roles, store: CheckpointStore, lease: Lease) -> Evaluation:
    """Scores the checkpoint that an evaluation assignment names.

    Raises:
        NotFound: The checkpoint is not in the store.
        DataLoss: It is damaged, or a return is not finite.
        InvalidArgument: The environment does not take the options.
        RoleLost: A role was lost.
    """
    work, spec = lease.assignment.evaluate, lease.assignment.spec
    manifest, parts = await asyncio.to_thread(fetch, store, work.checkpoint.manifest_digest, without=PREFIX)
    shape = outline(manifest.algorithm, json_format.MessageToDict(manifest.hyperparameters))
    environment = with_options(spec.environment, work.options, min(work.episodes, MAXIMUM_EVALUATION_LANES))
    session = Session(
        assignment=lease.assignment.assignment_id.rpartition("-")[2],
        environment=environment,
        evaluation_environment=environment,
        network=shape.network,
        memory=Memory(horizon=1),
        seed=work.seed,
        rollouts=0,
    )
    spaces = await roles.open(session)
    policy = Policy(*spaces, shape.network)
    load_policy(policy.tensors(), decode(parts[POLICY_PART])[0])
    roles.ring.publish(policy.flat, manifest.policy_version)
    evaluation = await roles.evaluate(
        roles.ring.hold(), episodes=work.episodes, seed=work.seed, greedy=not work.stochastic
    )
    published = next(part.digest for part in manifest.parts if part.name == POLICY_PART)
    if evaluation.policy_digest != published:
        raise DataLoss(f"checkpoint {work.checkpoint.manifest_digest[:12]}: the policy scored is not the one published")
    return evaluation
