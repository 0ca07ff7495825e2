"""Runs the leader's part in the fusion of its agent with the followers of the pod."""

import asyncio
from collections.abc import Mapping

from torch import Tensor

from agentpod.algorithms.base import Algorithm
from agentpod.compute_thread import ComputeThread
from agentpod.config import PodConfig
from agentpod.fusion.member import FusionMember, fusion_options
from agentpod.fusion.reachability import LEADER
from agentpod.fusion.rendezvous import LeaderRendezvous
from agentpod.fusion.shared_training import SharedTraining
from agentpod.learner.checkpoint_files import Counters
from podrace.agentpod.v1 import agentpod_pb2 as pb_pod
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tasks import finish_unless_stopped


class FusionSession:
    """The fusion of one training, from the invitation of the followers to the end.

    fusion = FusionSession(config, assignment, algorithm, compute, shared_training, counters, state, stop)
    await fusion.open()
    while training:
        ...                                     # one update
        fusion.count(environment_steps)
        await fusion.fuse_if_due()
    await fusion.close()
    """

    def __init__(
        self,
        config: PodConfig,
        assignment: pb.Assignment,
        algorithm: Algorithm,
        compute: ComputeThread,
        shared_training: SharedTraining,
        counters: Counters,
        restored_state: Mapping[str, Tensor],
        stop: "asyncio.Future[str]",
        *,
        device: str = "cpu",
    ) -> None:
        """Prepares the rounds; followers are invited by `open`.

        Args:
            config: Configuration of the pod.
            assignment: The training assignment; its id names the session.
            algorithm: The algorithm whose state is fused.
            compute: Thread that the state is averaged on.
            shared_training: Where the followers ask what to train.
            counters: Progress of the agent when this lease began.
            restored_state: Tensors of the restored checkpoint, which may include those of an outer optimizer.
            stop: Once it is done, a round is cancelled.
            device: Device that the algorithm trains on.
        """
        spec, session = assignment.spec.fusion, assignment.assignment_id
        self._assignment, self._shared_training, self._stop = assignment, shared_training, stop
        self._started_with, self._rollouts, self._activity = counters, counters.rollouts, compute.activity
        self._rendezvous = LeaderRendezvous(
            session, config.learners, fusion_options(spec), config.lifeline_of, host=config.host
        )
        self._member = FusionMember(
            self._rendezvous, compute, algorithm, session, LEADER, spec, device, host=config.host
        )
        if counters.rollouts:
            # Only the agent itself continues its outer optimizer; a child of another agent starts a new one.
            self._member.load(restored_state)
        self._closed = False

    async def open(self) -> None:
        """Invites the followers and waits until they have taken over the state of the leader."""
        assignment = self._assignment
        shared = pb_pod.GetTrainingResponse(
            session=assignment.assignment_id, agent=assignment.train, spec=assignment.spec, rollouts=self._rollouts
        )
        self._shared_training.share(shared, self._rendezvous)
        await self.fuse()

    def count(self, environment_steps: int) -> None:
        """Counts one update of the leader, made with a rollout of that many environment steps."""
        self._member.count(environment_steps)
        self._rollouts += 1

    async def fuse_if_due(self) -> None:
        """Takes part in a round if enough updates were made since the last one."""
        if self._member.due:
            await self.fuse()

    async def fuse(self) -> None:
        """Takes part in rounds until one is committed or a stop is requested."""
        fusing = asyncio.create_task(self._member.fuse())
        with self._activity.doing(pb.ROLE_PHASE_WAITING):
            committed = await finish_unless_stopped(fusing, self._stop)
        if committed:
            fusing.result()
            # A follower that is restarted from here draws other random numbers than its predecessor did.
            self._shared_training.training.rollouts = self._rollouts

    async def close(self) -> None:
        """Withdraws the training from the followers and leaves the group."""
        if not self._closed:
            self._closed = True
            self._shared_training.withdraw()
            await self._rendezvous.close()
            await self._member.close()

    @property
    def environment_steps(self) -> int:
        """Steps of the agent: before this lease, of all learners in committed rounds, and of the leader since then."""
        member = self._member
        since = member.local_progress.environment_steps
        return self._started_with.environment_steps + member.environment_steps + since

    @property
    def agreed(self) -> bool:
        """Whether the current policy is the result of a committed round, so that all learners have the same."""
        return self._member.local_progress.updates == 0

    def tensors(self) -> dict[str, Tensor]:
        """Tensors that a checkpoint must hold besides the algorithm's. They are live: later rounds change them."""
        return self._member.tensors()
