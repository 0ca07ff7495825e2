"""Archives tournaments: what both services recorded, and the policy of the champion, as files in the store."""

import asyncio
import time
from collections.abc import AsyncIterable, Callable

import structlog

from leaderboard.checkpoints.manifest_check import POLICY_PART
from leaderboard.store import records
from leaderboard.store.proposal_records import proposals_of
from leaderboard.store.snapshot_records import list_snapshots
from podrace.backup.archives import LEADERBOARD_FILE, ORCHESTRATOR_FILE, Archives, json_lines, record
from podrace.checkpoint_store.manifest import manifest_bytes
from podrace.checkpoint_store.publish import read_manifest, read_part
from podrace.checkpoint_store.store import CheckpointStore
from podrace.database import Database, Transaction
from podrace.errors import DataLoss, InvalidArgument, NotFound, ResourceExhausted
from podrace.leaderboard.v1.leaderboard_pb2 import ArchiveTournamentRequest

LARGEST_RECORDS_BYTES = 256 * 2**20
"""Compressed records of the orchestrator are received into memory."""
_log = structlog.get_logger(__name__)


class TournamentArchiving:
    """Archives tournaments.

    manifest_digest = await archiving.archive(requests)
    """

    def __init__(self, state: Database, store: CheckpointStore, clock: Callable[[], float] = time.time) -> None:
        """Prepares to archive.

        Args:
            state: Database of the leaderboard.
            store: Checkpoint store.
            clock: Returns the seconds since 1970.
        """
        self._state, self._store, self._clock = state, store, clock

    async def archive(self, requests: AsyncIterable[ArchiveTournamentRequest]) -> str:
        """Writes an archive durably and returns the digest of its manifest.

        Raises:
            InvalidArgument: The requests name no tournament, or several.
            ResourceExhausted: The records are too large, or the store is full.
        """
        tournament_id, received = await _received(requests)
        kept = await self._state.transact(kept_records, tournament_id)
        return await asyncio.to_thread(self._write, tournament_id, received, kept)

    def _write(self, tournament_id: str, received: bytes, kept: "KeptRecords") -> str:
        lines, champion = kept
        files = {ORCHESTRATOR_FILE: received, LEADERBOARD_FILE: json_lines(lines)}
        if champion:
            files |= self._champion_files(tournament_id, champion)
        digest = Archives(self._store).write(tournament_id, files, self._clock())
        _log.info("tournament archived", tournament_id=tournament_id, archive=digest)
        return digest

    def _champion_files(self, tournament_id: str, manifest_digest: str) -> dict[str, bytes]:
        """Returns manifest and policy of the best candidate; nothing if they cannot be read."""
        store = self._store.within(tournament_id)
        try:
            manifest = read_manifest(store, manifest_digest)
            policies = [read_part(store, part) for part in manifest.parts if part.name == POLICY_PART]
        except (DataLoss, NotFound) as error:
            _log.warning("an archive has no champion", tournament_id=tournament_id, error=error.message)
            return {}
        return {"champion.json": manifest_bytes(manifest)} | ({"champion-policy": policies[0]} if policies else {})


KeptRecords = tuple[list[dict[str, object]], str]
"""The records of a tournament, and the manifest of its best candidate; empty: its board is."""


async def _received(requests: AsyncIterable[ArchiveTournamentRequest]) -> tuple[str, bytes]:
    names, data = set[str](), bytearray()
    async for request in requests:
        names.add(request.tournament_id)
        data += request.records
        if len(data) > LARGEST_RECORDS_BYTES:
            raise ResourceExhausted(f"records: more than {LARGEST_RECORDS_BYTES} bytes are not archived")
    if len(names) != 1 or not (name := names.pop()):
        raise InvalidArgument("tournament_id: all requests must name the same tournament")
    return name, bytes(data)


def kept_records(transaction: Transaction, tournament_id: str) -> KeptRecords:
    """Reads everything that was decided about a tournament."""
    spec = records.find_spec(transaction, tournament_id)
    lines = [record("specification", spec)] if spec else []
    proposals = proposals_of(transaction, tournament_id)
    for made in records.list_generations(transaction, tournament_id):
        position = {"position": made.position, "after_sequence": made.after_sequence, "depth": made.depth}
        proposal = proposals.get(made.agent.agent_id)
        failure = {"plugin_failure": proposal.failure} if proposal and proposal.failure else {}
        lines.append(record("agent", made.agent, **position, ended=made.ended, failed=made.failed, **failure))
    for sent in records.list_submissions(transaction, tournament_id):
        standing = {"current_verdict": sent.standing.verdict, "current_reason": sent.standing.reason}
        lines.append(record("submission", sent.answer, lease_epoch=sent.lease_epoch, **standing))
    lines += [record("snapshot", each) for each in list_snapshots(transaction, tournament_id)]
    board = records.board_submissions(transaction, tournament_id)
    lines += [{"record": "board", "candidates": [each.answer.candidate.candidate_id for each in board]}]
    return lines, board[0].answer.candidate.candidate_id if board else ""
