"""Evaluates a published checkpoint, or an ensemble of them, with the evaluator of a pod: an evaluation assignment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.protobuf import json_format
from torch import Tensor

from agentpod.experience.memory_spec import MemorySpec
from agentpod.learner.checkpoint_files import load_policy
from agentpod.learner.progress_reporter import ProgressReporter
from agentpod.models.description import POLICY_PART
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.roles.objectives import measure_of, penalize_folds
from agentpod.roles.user_evaluator import user_evaluator_settings
from agentpod.session.opponents import OpponentPolicy
from agentpod.session.role_client import SessionSpec
from agentpod.session.session import Roles
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Manifest
from podrace.errors import DataLoss, InvalidArgument
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.specification.declared_algorithms import NETWORK_CLASS, names_code, unnamed_code
from podrace.specification.environment_search import evaluation_environment
from podrace.specification.evaluation_episodes import efficient_lanes
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec
from simulators import Space
from simulators.messages import with_options


@dataclass(frozen=True)
class PublishedPolicy:
    """A policy as a checkpoint holds it."""

    manifest_digest: str
    manifest: Manifest
    network: NetworkSpec
    tensors: Mapping[str, Tensor]

    @property
    def policy_digest(self) -> str:
        """Digest of the part `policy`."""
        return next(part.digest for part in self.manifest.parts if part.name == POLICY_PART)


async def evaluate_policies(
    roles: Roles, policies: Sequence[PublishedPolicy], assignment: pb.Assignment, progress: ProgressReporter
) -> Evaluation:
    """Evaluates the policies of an evaluation assignment.

    Args:
        roles: Whose evaluator is used.
        policies: The policy of the checkpoint that the assignment names, the other members of an ensemble, and the
            opponents.
        assignment: An evaluation assignment.
        progress: Where a fault of the tournament's own evaluator is reported.

    Raises:
        DataLoss: A return is not finite, or the evaluator scored other parameters than those published.
        InvalidArgument: The environment does not accept the options.
        RoleLost: A role was lost.
    """
    work = assignment.evaluate
    acting = len(policies) - len(work.opponents)
    policies, opponents = policies[:acting], policies[acting:]
    for published in (*policies, *opponents):
        if not names_code(assignment.spec, NETWORK_CLASS, published.network.network_class):
            raise InvalidArgument(unnamed_code(NETWORK_CLASS, published.network.network_class))
    spaces = await roles.open(_session_spec(policies, assignment))
    roles.free_spares()
    for published, ring in zip(policies, roles.rings, strict=True):
        policy = Policy(*spaces, published.network)
        load_policy(policy.tensors(), published.tensors)
        ring.publish(policy.flat, published.manifest.policy_version)
    seated = [opponent_of(published, spaces) for published in opponents]
    held = [ring.hold() for ring in roles.rings]
    try:
        evaluation = await roles.evaluate(
            *held, episodes=work.episodes, seed=work.seed, greedy=not work.stochastic, opponents=seated
        )
    finally:
        for slot in held:
            slot.release()
    progress.report_evaluator_fault(evaluation)
    scored = [evaluation.policy_digest, *evaluation.member_policy_digests]
    for published, digest in zip(policies, scored, strict=True):
        if digest != published.policy_digest:
            raise DataLoss(
                f"checkpoint {published.manifest_digest[:12]}: the policy that was scored is not the one that was"
                " published"
            )
    # A report may be of data without folds.
    return penalize_folds(evaluation, assignment.spec.evaluation.fold_deviations, required=False)


def opponent_of(published: PublishedPolicy, spaces: tuple[Space, Space]) -> OpponentPolicy:
    """Returns a published policy as an opponent; raises DataLoss or InvalidArgument if it does not fit the spaces."""
    policy = Policy(*spaces, published.network)
    load_policy(policy.tensors(), published.tensors)
    version = published.manifest.policy_version
    return OpponentPolicy(published.network, policy.flat, version, published.manifest_digest)


def _environment_of(published: PublishedPolicy, assignment: pb.Assignment) -> EnvironmentSpec:
    work, spec = assignment.evaluate, assignment.spec
    lanes = work.lanes or efficient_lanes(spec.environment.id, work.episodes)
    environment = with_options(spec.environment, work.options, lanes)
    values = json_format.MessageToDict(published.manifest.hyperparameters)
    return evaluation_environment(environment, values, spec.environment)


def _session_spec(policies: Sequence[PublishedPolicy], assignment: pb.Assignment) -> SessionSpec:
    work, spec = assignment.evaluate, assignment.spec
    first, *others = policies
    environment = _environment_of(first, assignment)
    for other in others:
        if _environment_of(other, assignment) != environment:
            raise InvalidArgument(
                f"checkpoint {other.manifest_digest[:12]}: was trained with other observations or actions than"
                f" {first.manifest_digest[:12]} (environment.search); an ensemble needs equal ones"
            )
    return SessionSpec(
        assignment=assignment.assignment_id.rpartition("-")[2],
        environment=environment,
        evaluation_environment=environment,
        network=first.network,
        memory=MemorySpec(horizon=1),
        seed=work.seed,
        rollouts=0,
        members=tuple(other.network for other in others),
        evaluator=user_evaluator_settings(spec.evaluation),
        objective=measure_of(spec.evaluation),
    )
