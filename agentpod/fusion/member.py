"""Takes part in fusion rounds on behalf of one learner: decides when a round is due, joins, averages and commits.

agentpod.fusion.averaging computes the average and agentpod.fusion.rendezvous determines the members. This module
combines both in the same way on the leader and on followers.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import prometheus_client
import structlog
from torch import Tensor

from agentpod.algorithms import reports_user_code
from agentpod.algorithms.base import Algorithm
from agentpod.compute_thread import ComputeThread
from agentpod.fusion.averaging import PendingAverage, StateAverager
from agentpod.fusion.rendezvous import Rendezvous
from agentpod.fusion.rounds import FusionOptions
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import Aborted
from podrace.tensor_transport.group import Group, MemberLost
from podrace.tournament.v1.tournament_pb2 import FusionSpec

ABORTED_ROUNDS = prometheus_client.Counter(
    "podrace_learner_fusion_rounds_aborted", "Fusion rounds of this learner that were aborted and repeated"
)
_log = structlog.get_logger(__name__)
LONGEST_FAILURE = 10_000
"""Characters of the description of a failure that are reported."""
COLLECTIVE_SECONDS = 20.0
"""Timeout of a collective, in seconds, including stragglers: all members have arrived when it starts."""


def fusion_options(spec: FusionSpec) -> FusionOptions:
    """Reads the fusion options from a specification."""
    return FusionOptions(
        mode=spec.mode, outer_learning_rate=spec.outer_learning_rate, outer_momentum=spec.outer_momentum
    )


@dataclass
class LocalProgress:
    """What a learner has done since the last round that it applied."""

    updates: int = 0
    environment_steps: int = 0


class FusionMember:
    """Takes part in fusion rounds.

        member = FusionMember(rendezvous, compute, algorithm, session, index, spec, device)
        loop.regroup = member.fuse
        while training:
            result = await loop.step(...)
            member.count(result.environment_steps)
            if member.due:
                await member.fuse()
        await member.close()

    Attributes:
        environment_steps: Of all learners, in all committed rounds of the session.
        local_progress: Of this learner, since the last committed round.
        size: Number of members in the last round.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        compute: ComputeThread,
        algorithm: Algorithm,
        session: str,
        index: int,
        spec: FusionSpec,
        device: str,
        *,
        host: str = "127.0.0.1",
    ) -> None:
        """Starts without a group.

        Args:
            rendezvous: Where the learners meet.
            compute: Runs tensor work.
            algorithm: Whose state is averaged.
            session: Of the training that the learners share.
            index: Of this learner; 0 is the leader.
            spec: Fusion settings of the tournament.
            device: Of the collectives.
            host: Address of this machine, reachable from all learners.
        """
        self._rendezvous, self._compute, self._algorithm = rendezvous, compute, algorithm
        self._session, self._index, self._device, self._host = session, index, device, host
        self._every_updates = spec.every_updates
        waiting = partial(compute.activity.waiting, COLLECTIVE_SECONDS)
        self._averager = StateAverager(algorithm.fusible(), fusion_options(spec), waiting)
        self._incarnation = uuid.uuid4().hex
        self._epoch = self._round = 0
        self.environment_steps, self.local_progress, self.size = 0, LocalProgress(), 1
        if spec.mode == "allreduce":
            algorithm.share_gradients(self._averager.reduce)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the live tensors that a checkpoint must contain besides the algorithm's."""
        return {f"fusion.{name}": tensor for name, tensor in self._averager.tensors().items() if tensor.numel()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restores the tensors of a checkpoint that are present and have the right shape."""
        for name, tensor in self.tensors().items():
            if name in state and state[name].shape == tensor.shape:
                tensor.copy_(state[name])

    def count(self, environment_steps: int) -> None:
        """Counts one update with the given number of environment steps."""
        self.local_progress.updates += 1
        self.local_progress.environment_steps += environment_steps

    @property
    def due(self) -> bool:
        """Whether it is time for a round."""
        return self.local_progress.updates >= self._every_updates

    async def fuse(self) -> None:
        """Takes part in rounds until one is committed.

        Raises:
            FailedPrecondition: The session has ended (NOT_OPEN), or this learner was expelled.
            LeaderIsolated: This is the leader, and no other learner can be reached from it.
            Unavailable: The leader has exited.
        """
        while not await self._try_round():
            pass

    async def close(self) -> None:
        """Leaves the group, if it is in one."""
        group, self._averager.group = self._averager.group, None
        if group:
            await self._compute.run(group.close)

    async def _try_round(self) -> bool:
        """Takes part in one round; returns whether it was committed."""
        formed = await self._rendezvous.join(
            pb.JoinFusionRequest(
                session=self._session,
                learner_index=self._index,
                incarnation=self._incarnation,
                applied_round=self._round,
                epoch=self._epoch if self._averager.group else 0,
                environment_steps=self.local_progress.environment_steps,
            )
        )
        with reports_user_code(self._algorithm, "refresh"):
            pending, digest, failure = await self._compute.run(self._prepare, formed)
        report = pb.CommitFusionRequest(
            session=self._session,
            learner_index=self._index,
            incarnation=self._incarnation,
            round=formed.round,
            epoch=formed.epoch,
            digest=digest,
            failure=failure[:LONGEST_FAILURE],
        )
        try:
            outcome = await self._rendezvous.commit(report)
        except Aborted as error:
            _log.warning("fusion round missed", round=formed.round, error=error.message)
            return False
        if not outcome.committed or pending is None:
            ABORTED_ROUNDS.inc()
            _log.warning("fusion round aborted", round=formed.round, reason=outcome.reason)
            return False
        with reports_user_code(self._algorithm, "refresh"):
            await self._compute.run(self._apply, pending)
        if formed.size != self.size or formed.joiner_ranks:
            _log.info("fusion round committed", round=formed.round, learners=formed.size, reason=formed.reason)
        self._round, self.size = formed.round, formed.size
        self.environment_steps, self.local_progress = outcome.environment_steps, LocalProgress()
        return True

    def _prepare(self, formed: pb.JoinFusionResponse) -> tuple[PendingAverage | None, str, str]:
        """Returns the average, its digest and an empty string, or no average, no digest and the failure."""
        averager = self._averager
        try:
            if formed.epoch != self._epoch or averager.group is None:
                self._regroup(formed)
            if formed.joiner_ranks:
                averager.broadcast_leader_state(joining=formed.rank in formed.joiner_ranks)
                self._algorithm.refresh()
            pending = averager.prepare(joiners=formed.joiner_ranks, first_round=formed.round == 1)
            return pending, pending.digest(), ""
        except MemberLost as error:
            if averager.group:
                averager.group.close()
                averager.group = None
            return None, "", error.message

    def _regroup(self, formed: pb.JoinFusionResponse) -> None:
        if self._averager.group:
            self._averager.group.close()
            self._averager.group = None
        self._averager.group = Group.join(
            formed.store_address,
            formed.prefix,
            formed.rank,
            formed.size,
            self._device,
            timeout_seconds=COLLECTIVE_SECONDS,
            host=self._host,
        )
        self._epoch = formed.epoch

    def _apply(self, pending: PendingAverage) -> None:
        self._averager.apply(pending)
        self._algorithm.refresh()
