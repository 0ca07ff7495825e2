"""Prepares the training of one agent: opens the roles, restores the agent's checkpoint and builds the training loop."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import structlog
from google.protobuf import json_format
from torch import Tensor

from agentpod import algorithms
from agentpod.algorithms.base import Algorithm
from agentpod.algorithms.requirements import Requirements, requirements
from agentpod.compute_thread import ComputeThread
from agentpod.config import FUSED, PodConfig
from agentpod.experience.mixed_replay import MixedReplay
from agentpod.fusion.shared_training import SharedTraining
from agentpod.learner.agent_training import AgentTraining, TrainingContext
from agentpod.learner.checkpoint_files import Counters, StartingState, restore
from agentpod.learner.collect_update_loop import CollectUpdateLoop, open_roles
from agentpod.learner.fusion_session import FusionSession
from agentpod.learner.opponents.training import TrainingOpponents
from agentpod.learner.sharing.crossover import Crossover
from agentpod.learner.sharing.feed import ExperienceFeed
from agentpod.learner.snapshots import SnapshotRecorder
from agentpod.roles.objectives import measure_of
from agentpod.roles.user_evaluator import user_evaluator_settings
from agentpod.session.role_client import SessionSpec
from agentpod.session.session import Roles
from podrace.agentpod.v1 import agentpod_pb2 as pb_pod
from podrace.config import unknown
from podrace.errors import UNSUITABLE_SPACE, DataLoss, InvalidArgument, PodraceError
from podrace.limits.file_options import with_paths
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.specification.ancestor import KEY, tournament_of
from podrace.specification.declared_algorithms import LEARNER_CODE, NETWORK_CLASS, names_code, unnamed_code
from podrace.specification.environment_search import (
    algorithm_values,
    evaluation_environment,
    training_environment,
)
from podrace.specification.evaluation_episodes import evaluation_lanes
from podrace.specification.known.opponents import BUILT_IN
from podrace.specification.messages import bad_spec
from podrace.specification.pods.sizes import batch_of_a_learner, environments_of_a_worker
from simulators import Space
from simulators.messages import with_options

_log = structlog.get_logger(__name__)


class TrainingSetup:
    """Builds the training of one assignment.

        setup = TrainingSetup(context)
        training = await setup.prepare()
        if training:
            await training.run()

    Attributes:
        opened: Whether the roles could be opened. An error before that would affect every other agent of the tournament
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
            None if a stop was requested before the roles were open.

        Raises:
            InvalidArgument: The specification cannot work here.
            FailedPrecondition: The agent belongs to another pod by now.
            RoleLost: A role does not answer.
        """
        context, agent, assignment = self._context, self._agent, self._context.assignment
        context.progress.enter(pb.POD_ACTIVITY_OPENING)
        start = await context.checkpoints.start()
        hyperparameters = hyperparameters_of(assignment, context.config)
        needs = await context.compute.run(requirements, agent.algorithm, hyperparameters)
        session = session_of(assignment, needs, start.counters, context.config)
        with _naming_algorithm(agent.algorithm):
            spaces = await open_roles(context.roles, session, context.lease.stop)
        if spaces is None:
            return None
        self.opened = True
        context.roles.allocate_experience(*spaces)
        algorithm, state = await self._algorithm(spaces, hyperparameters, start)
        _log.info("training", begins_with=start.note, environment_steps=start.counters.environment_steps)
        # Before the fusion, whose store would stay open if there is too little memory for the feed.
        feed = self._feed(spaces)
        fusion = self._fusion_session(algorithm, start.counters, state) if context.config.learners > 1 else None
        loop = self._loop(algorithm, session, start.counters, fusion, feed)
        opponents = None
        if self._spec.opponents.training not in ("", BUILT_IN):
            held = context.roles, context.checkpoints, context.lease
            opponents = TrainingOpponents(*held, self._spec, agent.seed)
        parts = loop, fusion, self._snapshots, start.counters, feed, opponents
        return AgentTraining(context, *parts, started=self._started, scored=start.scored)

    async def _algorithm(
        self, spaces: tuple[Space, Space], hyperparameters: dict[str, Any], start: StartingState
    ) -> tuple[Algorithm, Mapping[str, Tensor]]:
        """Makes the algorithm in its starting state; returns the tensors of the restored checkpoint with it."""
        context, agent = self._context, self._agent

        def make() -> Algorithm:
            return algorithms.make(agent.algorithm, *spaces, hyperparameters, seed=agent.seed, device=context.device)

        with algorithms.reports_user_code(agent.algorithm, "__init__"):
            algorithm = await context.compute.run(make)
        state = await self._restore(algorithm, start) if start.parts else {}
        if start.mates:
            held = context.roles, context.compute, context.lease
            crossover = Crossover(*held, self._spec, context.evaluation_time)
            with algorithms.reports_user_code(algorithm, "fusible"):
                used = await crossover.choose(algorithm, make, start)
            if used:
                context.checkpoints.record_mates()
        if context.roles.replay:
            await context.checkpoints.restore_replay(start, context.roles.replay)
        return algorithm, state

    def _feed(self, spaces: tuple[Space, Space]) -> ExperienceFeed | None:
        """Returns the feed of other agents' experience; None if it is not shared, or the algorithm cannot use it."""
        context, experience = self._context, self._spec.experience
        if not experience.shared:
            return None
        memory = context.roles.allocate_foreign_memory(*spaces, experience.capacity_steps)
        if memory is None:
            return None
        return ExperienceFeed(context.checkpoints, memory, context.progress, context.lease, clock=context.clock)

    async def _restore(self, algorithm: Algorithm, start: StartingState) -> Mapping[str, Tensor]:
        try:
            with algorithms.reports_user_code(algorithm, "load_state_dict"):
                return await self._context.compute.run(restore, algorithm, start.parts)
        except DataLoss as error:
            parent_id = self._agent.starting_checkpoint.agent_id
            if tournament_of(parent_id) in ("", self._agent.tournament_id):
                raise
            # The specification names an agent of another tournament, so every agent would fail with this error.
            raise bad_spec(f"{KEY} = {parent_id!r}: does not fit this environment: {error.message}") from error

    def _fusion_session(self, algorithm: Algorithm, counters: Counters, state: Mapping[str, Tensor]) -> FusionSession:
        context = self._context
        with algorithms.reports_user_code(algorithm, "fusible"):
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
        self,
        algorithm: Algorithm,
        session: SessionSpec,
        counters: Counters,
        fusion: FusionSession | None,
        feed: ExperienceFeed | None,
    ) -> CollectUpdateLoop:
        context, own_share = self._context, self._spec.experience.own_share
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
            mix=(lambda own: MixedReplay(own, feed.memory, own_share)) if feed else None,
            device=context.device,
            clock=context.clock,
        )


class Preparation:
    """Opens the roles for an agent that another pod still trains, so that this one can take it over at once.

        preparation.begin(assignment)        # an answer `prepare`; repeated ones change nothing
        request.prepared_agent_id = preparation.agent_id
        await preparation.end()              # before the roles are used for an assignment

    What takes long is kept: the simulator, the connections, and the code that the algorithm needs.

    Attributes:
        agent_id: Agent for which the roles are open; empty if they are not.
    """

    def __init__(
        self,
        roles: Roles,
        compute: ComputeThread,
        config: PodConfig,
        shared_training: SharedTraining,
        check: Callable[[pb.Assignment], None],
        *,
        device: str = "cpu",
    ) -> None:
        """Starts without open roles.

        Args:
            roles: Roles of the leader.
            compute: Its compute thread.
            config: Configuration of the pod.
            shared_training: Where the followers ask what to train.
            check: Refuses an assignment that this pod must not work on, by an InvalidArgument.
            device: Device that the leader computes on.
        """
        self._roles, self._compute, self._config, self._device = roles, compute, config, device
        self._shared_training, self._check = shared_training, check
        self._opening: asyncio.Task[None] | None = None
        self._opening_for = self.agent_id = ""

    def begin(self, assignment: pb.Assignment) -> None:
        """Opens the roles in the background, unless this has begun for the same agent."""
        if self._opening is None or (self._opening.done() and self._opening_for != assignment.train.agent_id):
            self._opening_for, self.agent_id = assignment.train.agent_id, ""
            self._opening = asyncio.create_task(self._open(assignment))

    async def end(self) -> None:
        """Waits until the roles of the leader are no longer being opened."""
        opening, self._opening, self.agent_id = self._opening, None, ""
        if opening is not None:
            if self._config.learners > 1:
                self._shared_training.withdraw()
            await asyncio.wait([opening])

    async def _open(self, assignment: pb.Assignment) -> None:
        agent = assignment.train
        try:
            self._check(assignment)
            self._share(assignment)
            values = hyperparameters_of(assignment, self._config)
            needs = await self._compute.run(requirements, agent.algorithm, values)
            spaces = await self._roles.open(session_of(assignment, needs, Counters(), self._config))
            with algorithms.reports_user_code(agent.algorithm, "__init__"):
                await self._compute.run(
                    algorithms.make, agent.algorithm, *spaces, values, seed=agent.seed, device=self._device
                )
        except PodraceError as error:
            # The orchestrator stops a pod that is not ready in time, and the other pod continues.
            _log.error("could not prepare for an agent", agent_id=agent.agent_id, error=error.message)
            return
        if self._config.learners > 1 and not (self._opening and await self._shared_training.all_ready()):
            # The preparation was ended before the followers had opened their roles.
            return
        self.agent_id = agent.agent_id
        _log.info("ready to take an agent over", agent_id=agent.agent_id)

    def _share(self, assignment: pb.Assignment) -> None:
        """Lets the followers open their roles as well, at the same time, unless the preparation was ended."""
        if self._config.learners > 1 and self._opening is not None:
            agent = assignment.train
            session = f"{agent.agent_id}-prepared"
            training = pb_pod.GetTrainingResponse(session=session, agent=agent, spec=assignment.spec)
            self._shared_training.prepare(training)


def hyperparameters_of(assignment: pb.Assignment, config: PodConfig) -> dict[str, Any]:
    """Returns the hyperparameters of an assigned agent's algorithm, with the paths of its files.

    Raises:
        InvalidArgument: The specification does not have the algorithm, or code that the agent names.
    """
    agent, spec = assignment.train, assignment.spec
    values = algorithm_values(json_format.MessageToDict(agent.hyperparameters))
    if agent.algorithm not in spec.algorithms:
        # The names in the specification have been checked, those in the agent have not.
        raise InvalidArgument(unknown("agent", "algorithm", agent.algorithm, spec.algorithms))
    for key in LEARNER_CODE:
        if not names_code(spec, key, address := str(values.get(key, ""))):
            raise InvalidArgument(unnamed_code(key, address))
    return with_paths(agent.algorithm, batch_of_a_learner(values, spec.pod, config.learners), config.allow)


def session_of(assignment: pb.Assignment, needs: Requirements, counters: Counters, config: PodConfig) -> SessionSpec:
    """Returns the session that the roles are opened for.

    Args:
        assignment: A training assignment.
        needs: What the algorithm requires of the roles.
        counters: Progress of the agent.
        config: Configuration of the pod.

    Raises:
        InvalidArgument: The algorithm's network is a class that the specification does not name.
    """
    agent, spec, evaluation = assignment.train, assignment.spec, assignment.spec.evaluation
    if not names_code(spec, NETWORK_CLASS, needs.network.network_class):
        raise InvalidArgument(unnamed_code(NETWORK_CLASS, needs.network.network_class))
    values = json_format.MessageToDict(agent.hyperparameters)
    scored_in = with_options(spec.environment, evaluation.options, evaluation_lanes(spec))
    trained_in = training_environment(spec.environment, values)
    trained_in.count = environments_of_a_worker(trained_in.count, spec.pod, config.learners, config.workers)
    return SessionSpec(
        assignment=f"{agent.number}.{assignment.lease_epoch}",
        environment=trained_in,
        evaluation_environment=evaluation_environment(scored_in, values, spec.environment),
        network=needs.network,
        memory=needs.memory,
        seed=agent.seed,
        rollouts=counters.rollouts,
        evaluator=user_evaluator_settings(evaluation),
        objective=measure_of(evaluation),
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
