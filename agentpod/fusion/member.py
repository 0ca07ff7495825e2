"""One learner's part in the fusion of its agent: when it is due, who is there, and what comes of it.

agentpod.fusion.averaging computes, agentpod.fusion.rendezvous says with whom; here the two meet, on every learner
alike.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import structlog
from torch import Tensor

from agentpod.algorithms.base import Algorithm
from agentpod.compute_thread import ComputeThread
from agentpod.fusion.averaging import PendingAverage, StateAverager
from agentpod.fusion.rendezvous import Rendezvous
from agentpod.fusion.rounds import FusionOptions
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import Aborted
from podrace.tensor_transport.group import Group, MemberLost
from podrace.tournament.v1.tournament_pb2 import FusionSpec

_log = structlog.get_logger(__name__)
COLLECTIVE_SECONDS = 20.0
"""Longest time a collective may take, stragglers included: they have all arrived when it begins."""


def fusion_options(spec: FusionSpec) -> FusionOptions:
    """The part of a specification that decides how learners are fused."""
    return FusionOptions(
        mode=spec.mode, outer_learning_rate=spec.outer_learning_rate, outer_momentum=spec.outer_momentum
    )


@dataclass
class LocalProgress:
    """What a learner has done since the last round it applied."""

    updates: int = 0
    environment_steps: int = 0


class FusionMember:
    """Takes part in fusion rounds.

        member = FusionMember(rendezvous, compute, algorithm, session, index, spec, device)
        loop.regroup = member.fuse
        while training:
            learned = await loop.step(...)
            member.count(learned.environment_steps)
            if member.due:
                await member.fuse()
        await member.close()

    Attributes:
        environment_steps: Of all learners, in all committed rounds of the session.
        since: Of this learner, since the last of them.
        size: Members of the last round.
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
        """Is in no group yet; `host` is an address of this machine that the other learners can reach."""
        self._rendezvous, self._compute, self._algorithm = rendezvous, compute, algorithm
        self._session, self._index, self._device, self._host = session, index, device, host
        self._every_updates = spec.every_updates
        self._fusion = StateAverager(algorithm.fusible(), fusion_options(spec))
        self._incarnation = uuid.uuid4().hex
        self._epoch = self._round = 0
        self.environment_steps, self.local_progress, self.size = 0, LocalProgress(), 1
        if spec.mode == "allreduce":
            algorithm.share_gradients(self._fusion.reduce)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must keep beside the algorithm, live."""
        return {f"fusion.{name}": tensor for name, tensor in self._fusion.tensors().items() if tensor.numel()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from such tensors, where there are any that fit."""
        for name, tensor in self.tensors().items():
            if name in state and state[name].shape == tensor.shape:
                tensor.copy_(state[name])

    def count(self, environment_steps: int) -> None:
        """One more update, with so many steps."""
        self.local_progress.updates += 1
        self.local_progress.environment_steps += environment_steps

    @property
    def due(self) -> bool:
        """Whether it is time for a round."""
        return self.local_progress.updates >= self._every_updates

    async def fuse(self) -> None:
        """Takes part in rounds until one is committed.

        Raises:
            FailedPrecondition: The session is over (NOT_OPEN), or this learner was expelled.
            Unavailable: The head is gone.
        """
        while not await self._try_round():
            pass

    async def close(self) -> None:
        """Leaves the group, if it is in one."""
        group, self._fusion.group = self._fusion.group, None
        if group:
            await self._compute.run(group.close)

    async def _try_round(self) -> bool:
        """One round; whether it was committed."""
        formed = await self._rendezvous.join(
            pb.JoinFusionRequest(
                session=self._session,
                learner_index=self._index,
                incarnation=self._incarnation,
                applied_round=self._round,
                epoch=self._epoch if self._fusion.group else 0,
                environment_steps=self.local_progress.environment_steps,
            )
        )
        scratch, digest, failure = await self._compute.run(self._prepare, formed)
        report = pb.CommitFusionRequest(
            session=self._session,
            learner_index=self._index,
            incarnation=self._incarnation,
            round=formed.round,
            epoch=formed.epoch,
            digest=digest,
            failure=failure,
        )
        try:
            outcome = await self._rendezvous.commit(report)
        except Aborted as error:
            _log.warning("too late for the round", round=formed.round, error=error.message)
            return False
        if not outcome.committed or scratch is None:
            _log.warning("fusion round aborted", round=formed.round, reason=outcome.reason)
            return False
        await self._compute.run(self._apply, scratch)
        if formed.size != self.size or formed.joiner_ranks:
            _log.info("fused", round=formed.round, learners=formed.size, reason=formed.reason)
        self._round, self.size = formed.round, formed.size
        self.environment_steps, self.local_progress = outcome.environment_steps, LocalProgress()
        return True

    def _prepare(self, formed: pb.JoinFusionResponse) -> tuple[PendingAverage | None, str, str]:
        """The average and its digest, or what went wrong."""
        fusion = self._fusion
        try:
            if formed.epoch != self._epoch or fusion.group is None:
                self._regroup(formed)
            if formed.joiner_ranks:
                fusion.broadcast_leader_state(joining=formed.rank in formed.joiner_ranks)
                self._algorithm.refresh()
            scratch = fusion.prepare(first_round=formed.round == 1)
            return scratch, scratch.digest(), ""
        except MemberLost as error:
            if fusion.group:
                fusion.group.close()
                fusion.group = None
            return None, "", error.message

    def _regroup(self, formed: pb.JoinFusionResponse) -> None:
        if self._fusion.group:
            self._fusion.group.close()
            self._fusion.group = None
        self._fusion.group = Group.join(
            formed.store_address,
            formed.prefix,
            formed.rank,
            formed.size,
            self._device,
            timeout_seconds=COLLECTIVE_SECONDS,
            host=self._host,
        )
        self._epoch = formed.epoch

    def _apply(self, scratch: PendingAverage) -> None:
        self._fusion.apply(scratch)
        self._algorithm.refresh()
