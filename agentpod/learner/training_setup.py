"""Prepares the training of one agent: opens the roles, restores the agent's checkpoint and builds the training loop."""

import contextlib
from collections.abc import Iterator, Mapping

import structlog
from google.protobuf import json_format
from torch import Tensor

from agentpod import algorithms
from agentpod.algorithms.base import Algorithm
from agentpod.algorithms.requirements import Requirements, requirements
from agentpod.config import FUSED
from agentpod.learner.agent_training import AgentTraining, TrainingContext
from agentpod.learner.checkpoint_files import Counters, StartingState, restore
from agentpod.learner.collect_update_loop import CollectUpdateLoop, open_roles
from agentpod.learner.fusion_session import FusionSession
from agentpod.learner.snapshots import SnapshotRecorder
from agentpod.roles.objectives import measure_of
from agentpod.roles.user_evaluator import user_evaluator_settings
from agentpod.session.role_client import SessionSpec
from podrace.config import unknown
from podrace.errors import UNSUITABLE_SPACE, DataLoss, InvalidArgument
from podrace.limits.file_options import with_paths
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.specification.ancestor import KEY, tournament_of
from podrace.specification.environment_search import (
    algorithm_values,
    evaluation_environment,
    training_environment,
)
from podrace.specification.evaluation_episodes import evaluation_lanes
from podrace.specification.messages import bad_spec
from simulators.messages import with_options

_log = structlog.get_logger(__name__)


class TrainingSetup:
    """Builds the training of one assignment.

        setup = TrainingSetup(context)
        training = await setup.prepare()
        if training:
            await training.run()

    Attributes:
        opened: Whether the roles could be opened. An error before that would meet every other agent of the tournament
            as well.
    """

    def __init__(self, context: TrainingContext) -> None:
        """Starts the clock of the training: opening the roles counts as training time."""
        self._context, self._agent, self._spec = context, context.assignment.train, context.assignment.spec
        self._started = context.clock()
        assigned = context.assignment
        begin = assigned.running_duration.ToNanoseconds() / 1e9 if assigned.HasField("running_duration") else None
        self._snapshots = SnapshotRecorder(context.checkpoints, context.lease, self._spec.evaluation, begin)
        self.opened = False

    async def prepare(self) -> AgentTraining | None:
        """Claims the agent, opens the roles, and restores the agent's checkpoint or its parent's.

        Returns:
            None when a stop came before the roles were open.

        Raises:
            InvalidArgument: The specification cannot work here.
            FailedPrecondition: The agent belongs to another pod by now.
            RoleLost: A role does not answer.
        """
        context, agent = self._context, self._agent
        context.progress.enter(pb.POD_ACTIVITY_OPENING)
        start = await context.checkpoints.start()
        values = algorithm_values(json_format.MessageToDict(agent.hyperparameters))
        hyperparameters = with_paths(agent.algorithm, values, context.config.allow)
        if agent.algorithm not in self._spec.algorithms:
            # What a specification may name has been checked, not what an agent may.
            raise InvalidArgument(unknown("agent", "algorithm", agent.algorithm, self._spec.algorithms))
        needs = await context.compute.run(requirements, agent.algorithm, hyperparameters)
        session = self._session_spec(needs, start.counters)
        with _naming_algorithm(agent.algorithm):
            spaces = await open_roles(context.roles, session, context.lease.stop)
        if spaces is None:
            return None
        self.opened = True
        context.roles.allocate_experience(*spaces)
        algorithm = await context.compute.run(
            algorithms.make, agent.algorithm, *spaces, hyperparameters, seed=agent.seed, device=context.device
        )
        state = await self._restore(algorithm, start) if start.parts else {}
        if context.roles.replay:
            await context.checkpoints.restore_replay(start, context.roles.replay)
        _log.info("training", begins_with=start.note, environment_steps=start.counters.environment_steps)
        fusion = self._fusion_session(algorithm, start.counters, state) if context.config.learners > 1 else None
        loop = self._loop(algorithm, session, start.counters, fusion)
        return AgentTraining(context, loop, fusion, self._snapshots, start.counters, started=self._started)

    def _session_spec(self, needs: Requirements, counters: Counters) -> SessionSpec:
        spec, evaluation = self._spec, self._spec.evaluation
        values = json_format.MessageToDict(self._agent.hyperparameters)
        scored_in = with_options(spec.environment, evaluation.options, evaluation_lanes(spec))
        return SessionSpec(
            assignment=f"{self._agent.number}.{self._context.assignment.lease_epoch}",
            environment=training_environment(spec.environment, values),
            evaluation_environment=evaluation_environment(scored_in, values, spec.environment),
            network=needs.network,
            memory=needs.memory,
            seed=self._agent.seed,
            rollouts=counters.rollouts,
            evaluator=user_evaluator_settings(evaluation),
            objective=measure_of(evaluation),
        )

    async def _restore(self, algorithm: Algorithm, start: StartingState) -> Mapping[str, Tensor]:
        try:
            return await self._context.compute.run(restore, algorithm, start.parts)
        except DataLoss as error:
            parent_id = self._agent.starting_checkpoint.agent_id
            if tournament_of(parent_id) in ("", self._agent.tournament_id):
                raise
            # The specification names an agent of another tournament, so every agent would meet this error.
            raise bad_spec(f"{KEY} = {parent_id!r}: does not fit this environment: {error.message}") from error

    def _fusion_session(self, algorithm: Algorithm, counters: Counters, state: Mapping[str, Tensor]) -> FusionSession:
        context = self._context
        return FusionSession(
            context.config,
            context.assignment,
            algorithm,
            context.compute,
            context.shared_training,
            counters,
            state,
            context.lease.stop,
            device=context.device,
        )

    def _loop(
        self, algorithm: Algorithm, session: SessionSpec, counters: Counters, fusion: FusionSession | None
    ) -> CollectUpdateLoop:
        context = self._context
        return CollectUpdateLoop(
            context.roles,
            context.compute,
            algorithm,
            session,
            context.lease.stop,
            overlap=context.config.layout != FUSED,
            policy_version=counters.policy_version,
            regroup=fusion.fuse if fusion else None,
            precision=context.config.precision,
            captured=context.config.captured,
            device=context.device,
            clock=context.clock,
        )


@contextlib.contextmanager
def _naming_algorithm(algorithm: str) -> Iterator[None]:
    """Adds the algorithm to the error of a role that cannot run its policy; the role knows only the network."""
    try:
        yield
    except InvalidArgument as error:
        if error.reason != UNSUITABLE_SPACE:
            raise
        raise InvalidArgument(f"algorithm {algorithm!r}: {error.message}", reason=error.reason) from error
