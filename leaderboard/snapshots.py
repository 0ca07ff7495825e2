"""Records snapshots: policies kept at fixed times of a tournament, for learning curves. No decision depends on them.

The first snapshot of an agent, or of the champion, with a number is final. A pod that lost the answer, or that took
over the agent after a crash, may submit the same number again and gets the first snapshot.
"""

import asyncio
import math
import operator

import prometheus_client
from google.protobuf.duration_pb2 import Duration

from leaderboard.checkpoints.submission_check import SubmissionCheck
from leaderboard.store import pagination, records
from leaderboard.store.snapshot_records import CHAMPION, add_snapshot, find_snapshot, list_snapshots
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.publish import read_manifest, read_part
from podrace.checkpoint_store.snapshots import POLICY_PART, is_snapshot, store_snapshot_of
from podrace.checkpoint_store.store import CheckpointStore, check_digest
from podrace.database import LARGEST_NUMBER, Database, Transaction
from podrace.errors import InvalidArgument, NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import (
    Agent,
    Candidate,
    ListSnapshotsRequest,
    ListSnapshotsResponse,
    Snapshot,
    SnapshotChampionRequest,
    SnapshotChampionResponse,
    SubmitSnapshotRequest,
    SubmitSnapshotResponse,
)
from podrace.page_bytes import fitting

SNAPSHOTS = prometheus_client.Counter("podrace_leaderboard_snapshots", "Snapshots kept", ["of"])


class SnapshotRecorder:
    """Records the snapshots of agents and champions."""

    def __init__(self, state: Database, store: CheckpointStore) -> None:
        self._state, self._store = state, store
        self._checkpoints = SubmissionCheck(state, store)

    async def submit(self, request: SubmitSnapshotRequest) -> SubmitSnapshotResponse:
        """Records the snapshot of an agent.

        Raises:
            InvalidArgument: The request is incomplete, or the manifest is not a snapshot of the named agent, or cannot
                be one (BAD_CHECKPOINT).
            NotFound: The agent was never generated here, or the manifest is not in the store.
            DataLoss: The manifest is damaged (BAD_DIGEST).
            FailedPrecondition: The agent has been assigned to another pod since (STALE_EPOCH).
            Unavailable: The store does not answer in time.
        """
        check_digest(request.checkpoint.manifest_digest)
        running_seconds = _checked("SubmitSnapshot", request.number, request.running_duration)
        known = await self._state.transact(_snapshot_or_agent, request)
        if isinstance(known, Snapshot):
            return SubmitSnapshotResponse(snapshot=known)
        manifest = await self._checkpoints.checked(request)
        draft = snapshot_of(manifest, request.checkpoint.manifest_digest, known)
        draft.number = request.number
        draft.running_duration.FromNanoseconds(round(running_seconds * 1e9))
        return SubmitSnapshotResponse(snapshot=await self._record(draft))

    async def champion(self, request: SnapshotChampionRequest) -> SnapshotChampionResponse:
        """Records the policy of the first candidate on the board as the champion's snapshot.

        Raises:
            InvalidArgument: The request is incomplete.
            NotFound, DataLoss: The manifest of that candidate is not in the store, or damaged.
        """
        running_seconds = _checked("SnapshotChampion", request.number, request.running_duration)
        known, manifest_digest = await self._store_best(request)
        if known is None:
            return SnapshotChampionResponse()
        if isinstance(known, Snapshot):
            return SnapshotChampionResponse(snapshot=known)
        draft = Snapshot(
            manifest_digest=manifest_digest,
            tournament_id=known.tournament_id,
            agent_id=known.agent_id,
            algorithm=known.algorithm,
            champion=True,
            number=request.number,
            environment_steps=known.environment_steps,
            agent_environment_steps=known.agent_environment_steps,
            tournament_environment_steps=request.environment_steps,
        )
        draft.running_duration.FromNanoseconds(round(running_seconds * 1e9))
        return SnapshotChampionResponse(snapshot=await self._record(draft))

    def close(self) -> None:
        """Drops the submissions that wait for the store."""
        self._checkpoints.close()

    async def _store_best(self, request: SnapshotChampionRequest) -> tuple[Snapshot | Candidate | None, str]:
        """Returns the recorded snapshot; else the first candidate and the digest of its snapshot, which is stored.

        Returns None and an empty digest for an empty board.
        """
        missing = ""
        while True:
            known = await self._state.transact(_snapshot_or_best, request)
            if not isinstance(known, Candidate):
                return known, ""
            try:
                store = self._store.within(known.tournament_id)
                return known, await asyncio.to_thread(_store_champion, store, known.candidate_id)
            except NotFound:
                # It may have been evicted and its files deleted since it was read: another candidate is first then.
                if known.candidate_id == missing:
                    raise
                missing = known.candidate_id

    async def _record(self, draft: Snapshot) -> Snapshot:
        recorded, is_new = await self._state.transact(add_snapshot, draft)
        if is_new:
            SNAPSHOTS.labels("champion" if recorded.champion else "agent").inc()
        return recorded


def snapshot_of(manifest: Manifest, manifest_digest: str, agent: Agent) -> Snapshot:
    """Makes the snapshot of a manifest, without its number and time. Pure.

    Raises:
        InvalidArgument: The manifest is not that of a snapshot.
    """
    if not is_snapshot(manifest):
        raise InvalidArgument(f"manifest {manifest_digest}: is not a snapshot: its only part must be the policy")
    return Snapshot(
        manifest_digest=manifest_digest,
        tournament_id=agent.tournament_id,
        agent_id=agent.agent_id,
        algorithm=agent.algorithm,
        environment_steps=manifest.lineage_environment_steps,
        agent_environment_steps=manifest.environment_steps,
    )


def _checked(method: str, number: int, running: Duration) -> float:
    """Checks number and running time; returns the running time in seconds."""
    seconds = running.seconds + running.nanos / 1e9
    if number < 1 or seconds < 0 or not math.isfinite(seconds):
        raise InvalidArgument(f"{method}: number = {number} at {seconds:g} s: expected 1 or more at a time from 0 on")
    return seconds


def _store_champion(store: CheckpointStore, candidate_id: str) -> str:
    manifest = read_manifest(store, candidate_id)
    # Stored again to renew its age. Garbage collection spares young objects only, and a collection that is running may
    # have read what is needed after the candidate was evicted and before the snapshot is recorded.
    for part in manifest.parts:
        if part.name == POLICY_PART:
            store.put_object(read_part(store, part))
    return store_snapshot_of(store, candidate_id, manifest)


# --- transactions ------------------------------------------------------------------------------------------------


def _snapshot_or_agent(transaction: Transaction, request: SubmitSnapshotRequest) -> Snapshot | Agent:
    agent = records.get_generation(transaction, request.checkpoint.agent_id).agent
    return find_snapshot(transaction, agent.tournament_id, agent.agent_id, request.number) or agent


def _snapshot_or_best(transaction: Transaction, request: SnapshotChampionRequest) -> Snapshot | Candidate | None:
    recorded = find_snapshot(transaction, request.tournament_id, CHAMPION, request.number)
    return recorded or next(iter(records.read_board(transaction, request.tournament_id)), None)


def page_of_snapshots(transaction: Transaction, request: ListSnapshotsRequest) -> ListSnapshotsResponse:
    """Returns a page of the snapshots of a tournament by arrival.

    Raises:
        InvalidArgument: The page token does not belong to this list, or the filter or the order cannot be used.
    """
    page, position = pagination.page_of(request), operator.attrgetter("sequence")
    begin, limit = (0, LARGEST_NUMBER) if page.selects else (page.after, page.size + 1)
    found = list_snapshots(transaction, request.tournament_id, begin, limit)
    if page.selects:
        found = page.cut(found, lambda snapshot: snapshot, position)
    kept = fitting(found[: page.size])
    return ListSnapshotsResponse(snapshots=kept, next_page_token=page.token(found, len(kept), position))
