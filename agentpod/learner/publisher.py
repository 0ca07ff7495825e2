"""Claims an agent, publishes its checkpoints to the store and submits them to the leaderboard.

A checkpoint is published before it is submitted: a score is on the board only if its files are in the store. If the pod
dies between the two steps nothing is lost, because the next pod that claims the agent submits the newest manifests
again.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

import prometheus_client
import structlog

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_view import ReplayView
from agentpod.learner.checkpoint_files import Counters, FrozenState, Mate, PolicyCopy, StartingState, manifest_of
from agentpod.learner.evaluation_job import PublishedPolicy
from agentpod.learner.interfaces import ForeignSteps
from agentpod.learner.opponents.reader import OpponentReader
from agentpod.learner.provenance import add_provenance, as_struct
from agentpod.learner.replay_files import ReplayFiles, StoredReplay
from agentpod.learner.sharing.reader import ExperienceReader
from agentpod.storage_waits import STORAGE_FAULTS, StorageWaits
from podrace import rpc
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation, Manifest, Part
from podrace.checkpoint_store.publish import claim, fetch, fetch_latest, publish, read_manifest
from podrace.checkpoint_store.replay_parts import PREFIX, is_replay
from podrace.checkpoint_store.snapshots import store_snapshot
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import (
    AGENT_UNKNOWN,
    NOT_VERIFIED,
    DataLoss,
    InvalidArgument,
    NotFound,
    PodraceError,
    Unavailable,
)
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as pb_grpc
from podrace.specification.resolve import REPLAY_BYTES, TOURNAMENT_REPLAY_BYTES
from podrace.tournament.v1.tournament_pb2 import AssignmentSpec, TournamentSpec

_log = structlog.get_logger(__name__)
PUBLISH_SECONDS = prometheus_client.Histogram(
    "podrace_learner_publish_seconds", "Seconds to store the checkpoint files of an agent"
)
PLAN_DEADLINE_SECONDS = 2.0
"""Time limit of a plan: without one the evaluation plays all episodes."""
SUBMIT_DEADLINE_SECONDS = 30.0
"""Longer than a restart of the leaderboard takes."""

UNANSWERED_SECONDS = 300.0
"""After so long without an answer of the leaderboard, a pod that has only scores to submit is replaced."""


class Publisher:
    """Publishes the checkpoints of one agent under one lease epoch.

    start = await publisher.start()
    await publisher.publish(frozen, evaluation)   # continues without the leaderboard if it does not answer
    await publisher.submit_all()                  # in the end, every score must have been submitted
    """

    def __init__(
        self,
        store: CheckpointStore,
        updater: "pb_grpc.UpdaterServiceAsyncStub",
        agent: pb.Agent,
        lease_epoch: int,
        spec: TournamentSpec,
        waits: StorageWaits,
        wall_clock: Callable[[], float] = time.time,
        lease_token: Callable[[], str] = lambda: "",
    ) -> None:
        """Accesses neither store nor leaderboard yet.

        Args:
            store: Where checkpoints are stored.
            updater: Stub of the leaderboard's updater.
            agent: The agent.
            lease_epoch: Epoch of the lease on the agent.
            spec: Specification of the tournament, recorded in every manifest.
            waits: Repeats what storage refuses for a time.
            wall_clock: Seconds since 1970.
            lease_token: Returns the token of the lease, which is renewed with it.
        """
        self._spec = as_struct(spec)
        self.agent = agent
        self._store, self._updater, self._epoch, self._wall_clock = store, updater, lease_epoch, wall_clock
        self._lease_token, self._waits = lease_token, waits
        self._replay_files = ReplayFiles(store, replay_limit(spec.assignment), waits.activity)
        self._experience = ExperienceReader(store, updater, agent, wall_clock)
        self._opponents = OpponentReader(store)
        self._replay = StoredReplay()
        self._stored_ahead: tuple[ReplayView, StoredReplay] | None = None
        self._previous = ""
        self._mates: list[str] = []
        self._unsubmitted: list[str] = []
        # Checkpoints become the newest in the order in which they were taken.
        self._one_at_a_time = asyncio.Lock()

    async def start(self) -> StartingState:
        """Claims the agent and returns the state it continues from: its own checkpoint, its parent's, or none.

        A damaged checkpoint is not an error: the agent starts from an earlier one, or from its parent again. While the
        store is full or does not answer, the call waits.

        Raises:
            FailedPrecondition: A higher epoch holds the agent (STALE_EPOCH).
            DataLoss, NotFound: The checkpoint of its parent is damaged or missing.
            Unavailable: The work must end, and the store still does not accept the claim.
        """
        start, unsubmitted = await self._waits.until_stored(lambda: asyncio.to_thread(self._claim))
        self._unsubmitted = unsubmitted
        with self._waits.waiting():
            await self._try_to_submit(of_previous_pod=True)
        return start

    def _claim(self) -> tuple[StartingState, list[str]]:
        """Returns the starting state, and the scored manifests that the previous pod may not have submitted. Blocks."""
        pointer = claim(self._store, self.agent.agent_id, self._epoch)
        if not pointer.manifest_digest:
            return self._inherited(), []
        try:
            latest = fetch_latest(self._store, self.agent.agent_id, without=PREFIX)
        except (DataLoss, NotFound) as error:
            _log.error("the agent's checkpoint is damaged; it starts again", error=error.message)
            return self._inherited(), []
        assert latest is not None, "the pointer names a manifest"
        if not _is_of(latest.manifest, self.agent):
            _log.error("the checkpoint is of another agent with this id; the agent starts again")
            return self._inherited(), []
        if latest.damage:
            _log.error("the newest checkpoint is damaged; continuing from the previous one", error=latest.damage)
        self._previous, self._mates = latest.manifest_digest, list(latest.manifest.mate_manifest_digests)
        note = f"its own checkpoint {latest.manifest_digest[:12]}"
        readable = dict.fromkeys((pointer.previous_manifest_digest, latest.manifest_digest))
        unsubmitted = [digest for digest in readable if digest and self._is_scored(digest)]
        own, replay = Counters.of(latest.manifest), _replay_parts(latest.manifest)
        scored = latest.manifest.HasField("evaluation")
        return StartingState(own, latest.parts, replay, scored=scored, note=note), unsubmitted

    def _is_scored(self, manifest_digest: str) -> bool:
        try:
            return read_manifest(self._store, manifest_digest).HasField("evaluation")
        except (DataLoss, NotFound):
            return False

    def _inherited(self) -> StartingState:
        if not self.agent.HasField("starting_checkpoint"):
            return StartingState()
        self._previous = self.agent.starting_checkpoint.manifest_digest
        manifest, parts = fetch(self._store, self._previous, without=PREFIX)
        note = f"checkpoint {self._previous[:12]} of {manifest.agent_id}"
        replay = _replay_parts(manifest)
        if manifest.algorithm != self.agent.algorithm and replay:
            # Other networks, but experience is the same for all off-policy algorithms that act in the environment.
            parts, note = {}, f"new networks and the replay memory of {note}, a {manifest.algorithm} agent"
        continues = self.agent.origin == pb.ORIGIN_CONTINUATION
        counters = Counters.continuing(manifest) if continues else Counters.inheriting(manifest)
        return StartingState(counters, parts, replay, self._read_mates() if parts else (), note=note)

    def _read_mates(self) -> tuple[Mate, ...]:
        """Returns the siblings that the start may be averaged with; none unless all can be read."""
        found = []
        for mate in self.agent.mates:
            note = f"checkpoint {mate.manifest_digest[:12]} of {mate.agent_id}"
            try:
                _, parts = fetch(self._store, mate.manifest_digest, without=PREFIX)
            except (DataLoss, NotFound) as error:
                _log.warning("the agent starts from its parent alone", mate=note, error=error.message)
                return ()
            found.append(Mate(parts, note))
        return tuple(found)

    def record_mates(self) -> None:
        """See agentpod.learner.interfaces.CheckpointAccess."""
        self._mates = [mate.manifest_digest for mate in self.agent.mates]

    async def publish(self, frozen: FrozenState, evaluation: Evaluation | None) -> None:
        """Stores a checkpoint, and submits it if it is scored and the leaderboard answers.

        While the store is full or does not answer, the call waits.

        Raises:
            FailedPrecondition: A higher epoch holds the agent (STALE_EPOCH).
            DataLoss: The score belongs to another policy.
            Unavailable: The work must end, and the store still does not accept the checkpoint.
        """

        async def store() -> str:
            with PUBLISH_SECONDS.time():
                return await asyncio.to_thread(self._store_checkpoint, frozen, evaluation)

        async with self._one_at_a_time:
            self._previous = await self._waits.until_stored(store)
        if evaluation:
            self._unsubmitted.append(self._previous)
            with self._waits.waiting():
                await self._try_to_submit()

    async def publish_interim(self, frozen: FrozenState) -> bool:
        """See agentpod.learner.interfaces.CheckpointAccess."""
        if self._unsubmitted:
            return False
        await self.publish(frozen, None)
        return True

    def _store_checkpoint(self, frozen: FrozenState, evaluation: Evaluation | None) -> str:
        manifest = frozen.manifest(
            self.agent, previous_manifest_digest=self._previous, evaluation=evaluation, now=self._wall_clock()
        )
        add_provenance(manifest, self.agent, self._spec)
        manifest.mate_manifest_digests.extend(self._mates)
        # Without a view, the stored memory of the previous checkpoint is listed again, which is better than no memory.
        replay = self._store_replay(frozen.replay) if frozen.replay else self._replay
        manifest.replay_steps, manifest.replay_memory_steps = replay.steps, replay.memory_steps
        parts = frozen.parts()
        digest = publish(self._store, self.agent.agent_id, self._epoch, parts, manifest, stored=replay.parts)
        if frozen.replay:
            self._replay_files.published(replay)
        self._replay, self._stored_ahead = replay, None
        return digest

    async def store_replay(self, frozen: FrozenState) -> None:
        """Stores the replay memory of a state ahead of its publication, if it has one; waits as `publish` does."""
        if view := frozen.replay:
            stored = await self._waits.until_stored(lambda: asyncio.to_thread(self._store_replay, view))
            self._stored_ahead = view, stored

    def _store_replay(self, view: ReplayView) -> StoredReplay:
        if self._stored_ahead and self._stored_ahead[0] is view:
            return self._stored_ahead[1]
        return self._replay_files.store(view)

    async def publish_snapshot(self, copy: PolicyCopy, number: int, running_seconds: float) -> None:
        """Stores a snapshot and submits it to the leaderboard.

        Args:
            copy: The policy.
            number: Number of the snapshot.
            running_seconds: How long the tournament had been running when the policy was copied.

        Raises:
            PodraceError: The store or the leaderboard does not accept it, or does not answer.
        """
        agent_id = self.agent.agent_id
        manifest_digest = await asyncio.to_thread(self._store_snapshot, copy)
        request = pb.SubmitSnapshotRequest(
            request_id=f"{agent_id}-snapshot-{number}",
            checkpoint=Checkpoint(agent_id=agent_id, manifest_digest=manifest_digest),
            lease_epoch=self._epoch,
            number=number,
            lease_token=self._lease_token(),
        )
        request.running_duration.FromNanoseconds(round(running_seconds * 1e9))
        await rpc.call(self._updater.SubmitSnapshot, request, deadline_seconds=SUBMIT_DEADLINE_SECONDS)

    def _store_snapshot(self, copy: PolicyCopy) -> str:
        manifest = manifest_of(self.agent, copy.counters, copy.descriptions, self._wall_clock())
        manifest.agent_id, manifest.lease_epoch = self.agent.agent_id, self._epoch
        manifest.previous_manifest_digest = self._previous
        return store_snapshot(self._store, copy.encoded(), manifest)

    async def plan_evaluation(self, epoch: int) -> pb.PlanEvaluationResponse | None:
        """Returns what the next score has to beat, and what else to score; None if the leaderboard does not answer.

        Args:
            epoch: Evaluation epoch of that score.
        """
        request = pb.PlanEvaluationRequest(
            agent_id=self.agent.agent_id, evaluation_epoch=epoch, lease_token=self._lease_token()
        )
        try:
            plan: pb.PlanEvaluationResponse = await rpc.call(
                self._updater.PlanEvaluation, request, deadline_seconds=PLAN_DEADLINE_SECONDS
            )
        except PodraceError as error:
            # A leaderboard of an earlier version has no plans.
            _log.info("no plan for the evaluation; all episodes are played", error=error.message)
            return None
        return plan

    async def restore_replay(self, start: StartingState, replay: ReplayBuffer) -> None:
        """See agentpod.learner.interfaces.CheckpointAccess."""
        if start.replay:
            restore = partial(asyncio.to_thread, self._replay_files.restore, start.replay, replay)
            steps = await self._waits.until_stored(restore)
            _log.info("the replay memory is restored", steps=steps, source=start.note)

    async def read_experience(self, replay: ReplayBuffer) -> Sequence[ForeignSteps]:
        """See agentpod.learner.interfaces.CheckpointAccess."""
        return await self._experience.read(self._lease_token(), replay)

    async def read_opponents(self, candidates: Sequence[Checkpoint]) -> Sequence[PublishedPolicy]:
        """See agentpod.learner.interfaces.CheckpointAccess."""
        try:
            return await self._waits.until_stored(lambda: self._opponents.read(candidates))
        except Unavailable as error:
            _log.warning("no opponents are read", error=error.message)
            return []

    async def submit_all(self) -> None:
        """Submits every score that was published and not yet submitted.

        While the leaderboard cannot store the score, the call waits. While it does not answer, it waits for
        UNANSWERED_SECONDS: perhaps only this pod cannot reach it.

        Raises:
            StorageUnreachable: The leaderboard did not answer for so long; the next pod tries again.
            Unavailable: The work must end, and the leaderboard has not accepted all scores; the next pod that claims
                the agent tries again.
            DataLoss: The leaderboard does not accept a checkpoint.
        """
        await self._waits.until_stored(self._submit_rest, unanswered_seconds=UNANSWERED_SECONDS)

    async def _submit_rest(self, *, of_previous_pod: bool = False) -> None:
        while self._unsubmitted:
            manifest_digest = self._unsubmitted[0]
            try:
                await self._submit(manifest_digest)
            except InvalidArgument as error:
                if not of_previous_pod or error.reason != NOT_VERIFIED:
                    # The error is in this checkpoint, not in the specification that all agents share.
                    raise DataLoss(f"checkpoint {manifest_digest[:12]} was not accepted: {error.message}") from error
                # It was submitted, held and refused, which is known already. The agent continues.
                _log.warning("a score of the previous pod was not verified", error=error.message)
            except NotFound as error:
                if error.reason == AGENT_UNKNOWN or manifest_digest == self._previous:
                    raise
                # Only the newest two checkpoints of an agent are kept: storage did not accept the score for too long.
                _log.error("a score is lost: its checkpoint was deleted before it was accepted", error=error.message)
            del self._unsubmitted[0]

    async def _try_to_submit(self, *, of_previous_pod: bool = False) -> None:
        try:
            await self._submit_rest(of_previous_pod=of_previous_pod)
        except STORAGE_FAULTS as error:
            _log.warning("the leaderboard has not stored the score; it is submitted later", error=error.message)

    async def _submit(self, manifest_digest: str) -> None:
        request = pb.SubmitCandidateRequest(
            request_id=manifest_digest,
            checkpoint=Checkpoint(agent_id=self.agent.agent_id, manifest_digest=manifest_digest),
            lease_epoch=self._epoch,
            lease_token=self._lease_token(),
        )
        response = await rpc.call(self._updater.SubmitCandidate, request, deadline_seconds=SUBMIT_DEADLINE_SECONDS)
        candidate = response.candidate
        result = {"score": candidate.score, "rank": candidate.rank, "verdict": candidate.reason}
        _log.info("submitted", candidate_id=manifest_digest, **result)


def _is_of(manifest: Manifest, agent: pb.Agent) -> bool:
    """Whether a checkpoint is of this agent, and not of one with the same id that both databases have lost."""
    known = (agent.algorithm, agent.seed, agent.hyperparameters)
    return (manifest.algorithm, manifest.seed, manifest.hyperparameters) == known


def replay_limit(spec: AssignmentSpec) -> int:
    """Returns the most bytes of replay memory to store with one checkpoint."""
    # Specifications that podrace 0.1.0 resolved do not have the fields.
    return min(
        spec.replay_bytes if spec.HasField("replay_bytes") else REPLAY_BYTES,
        spec.tournament_replay_bytes if spec.HasField("tournament_replay_bytes") else TOURNAMENT_REPLAY_BYTES,
    )


def _replay_parts(manifest: Manifest) -> tuple[Part, ...]:
    return tuple(part for part in manifest.parts if is_replay(part))
