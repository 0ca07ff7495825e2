"""What becomes of training files: claimed at the start, published during training, submitted to the leaderboard.

Publish before submit: a score is on the board only if its files are in the store. A pod that dies between the two loses
nothing, because whoever claims the agent next submits the pointer's manifest again.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import prometheus_client
import structlog

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.learner import replay_files
from agentpod.learner.checkpoint_files import Counters, FrozenState, PolicyCopy, manifest_of
from agentpod.learner.provenance import add_provenance, as_struct
from podrace import rpc
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation, Manifest, Part
from podrace.checkpoint_store.publish import claim, fetch, fetch_latest, publish, read_manifest
from podrace.checkpoint_store.snapshots import store_snapshot
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import DataLoss, DeadlineExceeded, InvalidArgument, NotFound, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as pb_grpc
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

_log = structlog.get_logger(__name__)
PUBLISH_SECONDS = prometheus_client.Histogram(
    "podrace_learner_publish_seconds", "Time in which the training files of an agent were stored"
)
SUBMIT_DEADLINE_SECONDS = 30.0
"""Longer than a leaderboard takes to restart."""


@dataclass(frozen=True)
class StartingState:
    """Where an agent begins under this lease."""

    counters: Counters = field(default_factory=Counters)
    parts: dict[str, bytes] = field(default_factory=dict)
    """Checkpoint files by name; empty for new networks."""
    replay: tuple[Part, ...] = ()
    """Where the pieces of the replay memory are; none if it is to begin empty."""
    note: str = "new networks"
    """Where they come from, for the log."""


class Publisher:
    """Publishes the checkpoints of one agent under one lease epoch.

    start = await publisher.start()
    await publisher.publish(frozen, evaluation)   # a leaderboard that is away does not stop the training
    await publisher.submit_all()                  # in the end, every score has been submitted
    """

    def __init__(
        self,
        store: CheckpointStore,
        updater: "pb_grpc.UpdaterServiceAsyncStub",
        agent: pb.Agent,
        lease_epoch: int,
        spec: TournamentSpec,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Touches nothing yet."""
        self._spec = as_struct(spec)
        self.agent = agent
        self._store, self._updater, self._epoch, self._wall_clock = store, updater, lease_epoch, wall_clock
        self._previous = ""
        self._unsubmitted: list[str] = []

    async def start(self) -> StartingState:
        """Claims the agent and finds the training files it goes on from: its own, its parent's, or none.

        Raises:
            FailedPrecondition: A higher epoch holds the agent (STALE_EPOCH).
            DataLoss, NotFound: Its parent's files are damaged or gone. Its own, if damaged, only cost the steps since
                it began.
        """
        start, unsubmitted = await asyncio.to_thread(self._claim)
        self._unsubmitted = unsubmitted
        await self._submit_what_can_be()
        return start

    def _claim(self) -> tuple[StartingState, list[str]]:
        """Where to begin, and the scored manifests that the pod before may not have submitted before it died."""
        pointer = claim(self._store, self.agent.agent_id, self._epoch)
        if not pointer.manifest_digest:
            return self._inherited(), []
        try:
            latest = fetch_latest(self._store, self.agent.agent_id, without=replay_files.PREFIX)
        except (DataLoss, NotFound) as error:
            _log.error("own training files are damaged; beginning again", error=error.message)
            return self._inherited(), []
        assert latest is not None, "the pointer names a manifest"
        if latest.damage:
            _log.error("newest checkpoint is damaged; going on from the one before", error=latest.damage)
        self._previous = latest.manifest_digest
        note = f"checkpoint {latest.manifest_digest[:12]} of its own"
        sound = dict.fromkeys((pointer.previous_manifest_digest, latest.manifest_digest))
        unsubmitted = [digest for digest in sound if digest and self._is_scored(digest)]
        return StartingState(
            Counters.of(latest.manifest), latest.parts, _replay_parts(latest.manifest), note
        ), unsubmitted

    def _is_scored(self, manifest_digest: str) -> bool:
        try:
            return read_manifest(self._store, manifest_digest).HasField("evaluation")
        except (DataLoss, NotFound):
            return False

    def _inherited(self) -> StartingState:
        if not self.agent.HasField("starting_checkpoint"):
            return StartingState()
        self._previous = self.agent.starting_checkpoint.manifest_digest
        manifest, parts = fetch(self._store, self._previous, without=replay_files.PREFIX)
        note = f"checkpoint {self._previous[:12]} of {manifest.agent_id}"
        return StartingState(Counters.inheriting(manifest), parts, _replay_parts(manifest), note)

    async def publish(self, frozen: FrozenState, evaluation: Evaluation | None) -> None:
        """Stores a checkpoint, and submits it if it was scored and the leaderboard is there.

        Raises:
            FailedPrecondition: A higher epoch holds the agent (STALE_EPOCH).
            DataLoss: The score belongs to another policy.
            ResourceExhausted: The store is full.
        """
        with PUBLISH_SECONDS.time():
            self._previous = await asyncio.to_thread(self._store_checkpoint, frozen, evaluation)
        if evaluation:
            self._unsubmitted.append(self._previous)
            await self._submit_what_can_be()

    def _store_checkpoint(self, frozen: FrozenState, evaluation: Evaluation | None) -> str:
        manifest = frozen.manifest(
            self.agent, previous_manifest_digest=self._previous, evaluation=evaluation, now=self._wall_clock()
        )
        add_provenance(manifest, self.agent, self._spec)
        pieces = replay_files.store_replay(self._store, frozen.replay) if frozen.replay else []
        return publish(self._store, self.agent.agent_id, self._epoch, frozen.parts(), manifest, stored=pieces)

    async def publish_snapshot(self, copy: PolicyCopy, number: int, running_seconds: float) -> None:
        """Stores a snapshot and tells the leaderboard of it.

        Args:
            copy: The policy.
            number: Of the snapshot.
            running_seconds: Time the tournament had been running when the policy was copied.

        Raises:
            PodraceError: It could not be stored, or the leaderboard does not take it, or is away.
        """
        agent_id = self.agent.agent_id
        manifest_digest = await asyncio.to_thread(self._store_snapshot, copy)
        request = pb.SubmitSnapshotRequest(
            request_id=f"{agent_id}-snapshot-{number}",
            checkpoint=Checkpoint(agent_id=agent_id, manifest_digest=manifest_digest),
            lease_epoch=self._epoch,
            number=number,
        )
        request.running_duration.FromNanoseconds(round(running_seconds * 1e9))
        await rpc.call(self._updater.SubmitSnapshot, request, deadline_seconds=SUBMIT_DEADLINE_SECONDS)

    def _store_snapshot(self, copy: PolicyCopy) -> str:
        manifest = manifest_of(self.agent, copy.counters, self._wall_clock())
        manifest.agent_id, manifest.lease_epoch = self.agent.agent_id, self._epoch
        manifest.previous_manifest_digest = self._previous
        return store_snapshot(self._store, copy.encoded(), manifest)

    async def restore_replay(self, start: StartingState, replay: ReplayBuffer) -> None:
        """Fills an empty memory with the pieces there are, if they fit it."""
        if start.replay:
            await asyncio.to_thread(replay_files.restore_replay, self._store, start.replay, replay)

    async def submit_all(self) -> None:
        """Submits every score that was published and not submitted yet.

        Raises:
            Unavailable, DeadlineExceeded: The leaderboard does not answer; whoever claims the agent next tries again.
            DataLoss: The leaderboard does not accept a checkpoint.
        """
        while self._unsubmitted:
            await self._submit(self._unsubmitted[0])
            del self._unsubmitted[0]

    async def _submit_what_can_be(self) -> None:
        try:
            await self.submit_all()
        except (Unavailable, DeadlineExceeded) as error:
            _log.warning("the leaderboard does not answer; the score waits", error=error.message)

    async def _submit(self, manifest_digest: str) -> None:
        request = pb.SubmitCandidateRequest(
            request_id=manifest_digest,
            checkpoint=Checkpoint(agent_id=self.agent.agent_id, manifest_digest=manifest_digest),
            lease_epoch=self._epoch,
        )
        try:
            response = await rpc.call(self._updater.SubmitCandidate, request, deadline_seconds=SUBMIT_DEADLINE_SECONDS)
        except InvalidArgument as error:
            # What is wrong is in these training files, not in the specification that others share.
            raise DataLoss(f"checkpoint {manifest_digest[:12]} was not accepted: {error.message}") from error
        candidate = response.candidate
        _log.info("submitted", score=candidate.score, rank=candidate.rank, verdict=candidate.reason)


def _replay_parts(manifest: Manifest) -> tuple[Part, ...]:
    return tuple(part for part in manifest.parts if part.name.startswith(replay_files.PREFIX))
