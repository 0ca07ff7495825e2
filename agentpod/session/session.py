"""Opens a pod's roles for a session, reopens them after a loss, and allocates the memory they share with a learner.

Memory belongs to the assignment. After a role was lost it is unknown whether the role still writes, so memory is reused
only when every role is open again.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import prometheus_client
import structlog

from agentpod.config import PodConfig
from agentpod.experience.foreign_memory import ForeignMemory, foreign_fields
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import check_memory, replay_bytes, replay_fields, replay_rows
from agentpod.experience.rollout import rollout_fields
from agentpod.experience.slots import ExperienceSlots, Grant, PolicyRing, PolicySlot, ReplaySlots, RolloutSlots
from agentpod.liveness.activity import Activity
from agentpod.memory_errors import exhausted, free_bytes
from agentpod.models.mlp import element_count
from agentpod.models.policy import policy_shapes
from agentpod.roles.user_evaluator import UserEvaluator
from agentpod.session.opponents import OpponentPolicy, OpponentSlots
from agentpod.session.role_client import CollectedRollout, RoleClient, SessionSpec
from agentpod.session.role_faults import RoleLost
from agentpod.session.spaces import check_same_spaces, check_unchanged_spaces
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import FailedPrecondition, Unimplemented
from podrace.specification import catalog
from podrace.tensor.v1.tensor_pb2 import TensorRef
from podrace.tensor_transport.cuda import SCHEME as CUDA
from podrace.tensor_transport.cuda import CudaPlane
from podrace.tensor_transport.plane import Plane, Region
from podrace.tensor_transport.probe import PLANE_UNUSABLE, PROBE_SPEC, check_probe, write_probe
from podrace.tensor_transport.transfer import SCHEME as GROUP
from simulators import Space
from simulators.messages import space_of

PLANE = prometheus_client.Gauge("podrace_learner_plane", "1 for the plane that connects the roles", ["plane"])
GPU_MEMORY = "gpu-memory"
"""Scheme of the plane `memory` whose regions are on a GPU."""
GPU_PLANES = (GPU_MEMORY, CUDA, GROUP)
"""Planes with memory on GPUs."""
SHARE_FOR_REPLAY = 0.9
"""Share of a GPU's free memory that a replay buffer may take; networks, batches and simulators need the rest."""
_log = structlog.get_logger(__name__)


class Roles:
    """The workers and the evaluator of one learner, and the memory they share with it.

    roles = Roles(config, planes)
    spaces = await roles.open(session)
    roles.allocate_experience(*spaces)
    roles.ring.publish(policy.flat, version)
    collected = await roles.collect(roles.experience.grant(), rollout_number)
    update(roles.experience.receive(collected.grant))
    roles.experience.release(collected.grant)
    """

    SLOTS = 2
    """Number of rollout slots: one is filled while the other is trained on."""

    def __init__(
        self,
        config: PodConfig,
        planes: Sequence[Plane],
        *,
        learner: int = 0,
        device: str = "cpu",
        activity: Activity | None = None,
    ) -> None:
        """Creates the channels, which connect on first use.

        Args:
            config: Configuration of the pod.
            planes: Planes that memory may be allocated on, the preferred one first. The first that passes its self-test
                is used.
            learner: Number of the learner; only the leader, 0, has the evaluator.
            device: Device that the learner trains on.
            activity: What the learner does. It waits while an evaluator of the user scores.
        """
        self._config, self._planes, self._device, self._activity = config, planes, device, activity or Activity()
        self._chosen: Plane | None = None
        self._client = RoleClient(config, learner)
        self._user_evaluator: UserEvaluator | None = None
        self._session: SessionSpec | None = None
        self._experience: ExperienceSlots | None = None
        self._rings: list[PolicyRing] = []
        self._spaces: tuple[Space, Space] | None = None
        self._opponents, self._opponents_made = OpponentSlots(planes[0], "", ()), 0
        self._replay_bytes = 0

    @property
    def plane(self) -> str:
        """Scheme of the plane that connects the roles; empty before they were opened."""
        return self._chosen.scheme if self._chosen else ""

    @property
    def _plane(self) -> Plane:
        if self._chosen is None:
            raise FailedPrecondition("no session is open")
        return self._chosen

    @property
    def experience(self) -> ExperienceSlots:
        """Slots that the workers of the open session write into."""
        if self._experience is None:
            raise FailedPrecondition("no session is open")
        return self._experience

    @property
    def replay(self) -> ReplayBuffer | None:
        """Replay memory of the assignment, if its algorithm has one."""
        return self._experience.replay if isinstance(self._experience, ReplaySlots) else None

    @property
    def ring(self) -> PolicyRing:
        """Policy slots of the open session."""
        return self.rings[0]

    @property
    def rings(self) -> Sequence[PolicyRing]:
        """Policy slots of the open session, one ring for each member of an ensemble."""
        if not self._rings:
            raise FailedPrecondition("no session is open")
        return self._rings

    @property
    def spaces(self) -> tuple[Space, Space]:
        """Observation space and action space of one environment of the open session."""
        if self._spaces is None:
            raise FailedPrecondition("no session is open")
        return self._spaces

    async def open(self, session: SessionSpec) -> tuple[Space, Space]:
        """Opens every role for a session.

        Experience that was collected earlier in the assignment is kept, except for rollouts under way.

        Returns:
            Observation space and action space of one environment.

        Raises:
            InvalidArgument: The environment cannot be made, or its spaces cannot be learned on.
            Unimplemented: None of the allowed planes connects all roles.
            RoleLost: A role was lost, or did not open within the deadline in the contract; or the plane that connected
                the roles before no longer does.
        """
        self._session = None
        if session.opened <= 1:
            self._drop_memory()
        await self._client.ready()
        opened = await self._open_on_a_plane(session)
        check_same_spaces(opened, session.environment.id, self._config.worker_address)
        if self._client.has_evaluator:
            await self._prepare_user_evaluator(session, opened[-1])
        spaces = space_of(opened[0].observation_space), space_of(opened[0].action_space)
        if session.opened > 1:
            check_unchanged_spaces(self._spaces, spaces, session.environment.id)
        self._spaces = spaces
        if self._experience:
            self._experience.reclaim()
        self._close_rings()
        networks = (session.network, *session.members)
        for index, network in enumerate(networks):
            name = f"{session.name}_member_{index}" if index else session.name
            self._rings.append(PolicyRing(self._plane, name, element_count(policy_shapes(*spaces, network))))
        self._session = session
        return spaces

    async def _prepare_user_evaluator(self, session: SessionSpec, opened: pb.OpenEvaluatorResponse) -> None:
        """Prepares the evaluator of the tournament, if it has one."""
        if self._user_evaluator and self._user_evaluator.settings != session.evaluator:
            await self._user_evaluator.close()
            self._user_evaluator = None
        if session.evaluator:
            settings = self._config, session.evaluator, self._activity
            self._user_evaluator = self._user_evaluator or UserEvaluator(*settings)
            self._user_evaluator.expect(session.evaluation_environment, (opened.policy, *opened.members))

    async def _open_on_a_plane(self, session: SessionSpec) -> list[Any]:
        """Opens on the first plane that connects all roles. Once a plane was used, no other is tried."""
        refusals = []
        for plane in [self._chosen] if self._chosen else self._candidates(session):
            try:
                opened = await self._open_on(plane, session)
            except FailedPrecondition as error:
                if error.reason != PLANE_UNUSABLE:
                    raise
                if self._chosen:
                    # This pod has lost what it had. Another pod chooses again.
                    raise RoleLost(f"plane {plane.scheme!r} no longer connects the roles: {error.message}") from error
                refusals.append(error.message)
                _log.warning("a plane does not connect the roles", plane=plane.scheme, error=error.message)
                continue
            if self._chosen is None:
                self._chosen = plane
                PLANE.labels(plane.scheme).set(1)
                _log.info("roles connected", plane=plane.scheme)
                if refusals and self._config.gpus and plane.scheme not in GPU_PLANES:
                    _log.warning("data of a simulator on a GPU passes through the host's memory", plane=plane.scheme)
            return opened
        raise Unimplemented(f"no plane connects the roles of this pod: {'; '.join(refusals)}")

    def _candidates(self, session: SessionSpec) -> list[Plane]:
        """Returns the planes to try. Those in GPU memory need a simulator on the GPU or an explicit request."""
        if self._config.plane != "auto" or catalog.steps_on_gpu(session.environment.id):
            return list(self._planes)
        return [plane for plane in self._planes if plane.scheme not in GPU_PLANES]

    async def _open_on(self, plane: Plane, session: SessionSpec) -> list[Any]:
        """Opens on a plane with a self-test; raises PLANE_UNUSABLE if a role does not read what was written here."""
        with ExitStack() as offered:
            try:
                probe = plane.create(f"{session.name}_probe", [PROBE_SPEC])
                offered.callback(probe.close)
                sent = write_probe(probe, session.seed % 2**32)
                ref = _reference_to(probe)
            except (FailedPrecondition, Unimplemented) as error:
                raise FailedPrecondition(error.message, reason=PLANE_UNUSABLE) from error
            opened = await self._client.open(session, ref)
        for response in opened:
            check_probe(plane.scheme, sent, response.probe_sum)
        return opened

    def allocate_experience(self, observation_space: Space, action_space: Space) -> None:
        """Allocates the memory that the workers write into, for the open session and later ones of the assignment.

        Raises:
            ResourceExhausted: There is not enough memory.
        """
        self._allocate_experience(observation_space, action_space)
        self.free_spares()

    def free_spares(self) -> None:
        """Frees GPU memory of earlier assignments that this one has not taken over.

        The roles must be open for this assignment: then they no longer map that memory.
        """
        if isinstance(self._plane, CudaPlane):
            self._plane.free_spares()

    def _allocate_experience(self, observation_space: Space, action_space: Space) -> None:
        session = self._require_session()
        lanes, memory = self._client.lanes * self._client.workers, session.memory
        if not memory.replay_capacity:
            state_size = session.network.recurrent_size
            fields = rollout_fields(observation_space, action_space, memory.horizon, lanes, state_size)
            self._experience = RolloutSlots(self._plane, session.name, fields, self.SLOTS)
            return
        rows = replay_rows(memory.replay_capacity, memory.horizon, lanes)
        fields = replay_fields(observation_space, action_space, rows, lanes)
        self._replay_bytes = replay_bytes(fields, prioritized=memory.prioritized)
        for where, available_bytes in self._replay_memories():
            check_memory(fields, available_bytes, prioritized=memory.prioritized, where=where)
        try:
            self._experience = ReplaySlots(self._plane, session.name, fields, memory, self._device)
        except RuntimeError as error:
            raise exhausted(error, self._device, "the hyperparameter replay_capacity") or error from None

    def allocate_foreign_memory(
        self, observation_space: Space, action_space: Space, capacity_steps: int
    ) -> ForeignMemory | None:
        """Allocates memory for steps of other agents, in addition to the replay memory.

        Returns:
            None if the algorithm has no replay memory, or its steps are those of teams.

        Raises:
            ResourceExhausted: There is not enough memory.
        """
        if self.replay is None or observation_space.agents:
            return None
        fields = foreign_fields(observation_space, action_space, capacity_steps)
        for where, available_bytes in self._replay_memories(self._replay_bytes):
            check_memory(fields, available_bytes, where=where, key="experience.capacity_steps")
        try:
            return ForeignMemory(observation_space, action_space, capacity_steps, device=self._device)
        except RuntimeError as error:
            raise exhausted(error, self._device, "experience.capacity_steps") or error from None

    def _replay_memories(self, allocated_bytes: int = 0) -> Iterator[tuple[str, int]]:
        """Yields the memories that a replay buffer takes, and the bytes that each has for it.

        Of what the pod reserved, `allocated_bytes` are used already. A plane on GPUs has the buffer in the learner's
        GPU. With another plane it is in memory of the host, and a learner on a GPU keeps a copy there.
        """
        on_gpu = self.plane in GPU_PLANES
        if self._config.memory_bytes and not on_gpu:
            yield "the pod's memory", self._config.memory_bytes // self._config.learners - allocated_bytes
        free = free_bytes(self._device)
        if free is not None:
            free += self._plane.spare_bytes if isinstance(self._plane, CudaPlane) else 0
            yield f"the free memory of GPU {self._device}", int(SHARE_FOR_REPLAY * free)

    async def collect(self, grant: Grant, rollout: int) -> CollectedRollout:
        """Has all workers fill a granted slot, and waits until it is full.

        Args:
            grant: From `experience`, granted before anything samples the memory at the same time.
            rollout: Number of the rollout, counted over all leases of the agent.

        Raises:
            RoleLost: A worker was lost, and the content of the slot with it.
            DataLoss: An environment returned a number that is not finite.
        """
        session = self._require_session()
        held = self.ring.hold()
        try:
            with self._opponents.reading() as opponents:
                return await self._client.collect(session, grant, held, rollout, opponents)
        finally:
            held.release()

    def seat_opponents(self, policies: Sequence[OpponentPolicy | None]) -> None:
        """Replaces the policies that workers play against from the next rollout on; without any, the built-in one."""
        self._opponents.retire()
        self._opponents = self._opponent_slots(policies)

    def _opponent_slots(self, policies: Sequence[OpponentPolicy | None]) -> OpponentSlots:
        self._opponents_made += 1
        name = f"{self._require_session().name}_{self._opponents_made}"
        return OpponentSlots(self._plane, name, policies)

    async def evaluate(
        self,
        held: PolicySlot,
        *others: PolicySlot,
        episodes: int,
        seed: int,
        greedy: bool,
        first_episode: int = 0,
        opponents: Sequence[OpponentPolicy] = (),
    ) -> Evaluation:
        """Scores the policy in a held slot, or an ensemble of several; the caller releases the slots.

        Args:
            held: Slot of the policy.
            *others: Slots of the other members of an ensemble.
            episodes: Number of episodes to play.
            seed: Seed of the episodes.
            greedy: Whether to take the most likely action instead of sampling one.
            first_episode: Number of the first episode; above 0 only for the built-in evaluator.
            opponents: Policies to play against, with the built-in evaluator.

        Raises:
            RoleLost: The evaluator was lost.
            DataLoss: A return is not finite, or an episode does not end.
        """
        slots, scored = (held, *others), None
        evaluate = partial(self._client.evaluate, self._require_session(), slots, episodes, seed, greedy=greedy)
        if opponents:
            seated = self._opponent_slots(opponents)
            with seated.reading() as messages:
                seated.retire()
                return await evaluate(opponents=messages)
        if self._user_evaluator:
            scored = await self._user_evaluator.score(slots, episodes=episodes, seed=seed, greedy=greedy)
        if scored is None:
            scored = await evaluate(first_episode=first_episode)
            scored.evaluator_fault = self._user_evaluator.fault if self._user_evaluator else ""
        return scored

    async def close(self) -> None:
        """Releases the memory and the channels. The roles themselves exit when the leader's lifeline is lost."""
        self._drop_memory()
        if self._user_evaluator:
            await self._user_evaluator.close()
        await self._client.close()

    def _require_session(self) -> SessionSpec:
        if self._session is None:
            raise FailedPrecondition("no session is open")
        return self._session

    def _drop_memory(self) -> None:
        self._session = None
        if self._experience:
            self._experience.close()
        self._experience = None
        self._opponents.retire()
        self._close_rings()

    def _close_rings(self) -> None:
        for ring in self._rings:
            ring.close()
        self._rings.clear()


def _reference_to(probe: Region) -> TensorRef:
    """Returns the reference of a probe; raises FailedPrecondition if CUDA refuses to order its writes."""
    try:
        return probe.refs()[0]
    except RuntimeError as error:
        raise FailedPrecondition(f"the probe cannot be handed out: {error}") from error
