"""Owns which training files are still needed, and the periodic deletion of the others.

Needed is what leaderboard.ranking.retention says of each tournament, and the candidates that unfinished agents start
from. Who
is unfinished, the orchestrator says whenever it asks for an agent; after that, agents only finish, so that for each
tournament the list that came with its last agent, and that agent, cover all. Agents generated within the grace age are
added, because requests may cross. What an agent itself has published last is kept by its pointer
(podrace.checkpoint_store.collect).

Some of what is needed may be gone: a board that was idle and was cut shows more than has files, and what was begun from
it since, here or in another tournament, starts from nothing. What is gone is treated as gone, and all that is still
there is kept. Only where nothing at all is there of what is needed, nothing is deleted: every board keeps the files of
its best, so this is another leaderboard's store.
"""

import asyncio

import prometheus_client
import structlog

from leaderboard import snapshots
from leaderboard.evolution.agents import visible_board
from leaderboard.ranking.retention import Past, Retention, kept
from leaderboard.store import ancestor_queries, records
from podrace.checkpoint_store.collect import delete, survey
from podrace.checkpoint_store.store import CheckpointStore
from podrace.database import Database, Transaction
from podrace.errors import NotFound, PodraceError

COLLECTED = prometheus_client.Counter("podrace_leaderboard_objects_collected", "Objects deleted from the store")
MISSING = prometheus_client.Gauge(
    "podrace_leaderboard_checkpoints_missing",
    "Checkpoints that are needed and were not in the store when it was last collected",
)
_log = structlog.get_logger(__name__)


async def collect_periodically(
    state: Database,
    store: CheckpointStore,
    *,
    period_seconds: float,
    grace_seconds: float,
    retention: Retention,
) -> None:
    """Collects again and again until it is cancelled; a collection that fails is told and the next one tried."""
    while True:
        await asyncio.sleep(period_seconds)
        try:
            deleted = await collect_once(state, store, grace_seconds=grace_seconds, retention=retention)
        except PodraceError as error:
            _log.warning("training files were not collected", error=error.message)
        else:
            _log.debug("training files collected", objects=len(deleted))


async def collect_once(
    state: Database, store: CheckpointStore, *, grace_seconds: float, retention: Retention
) -> list[str]:
    """Deletes what nobody can reach any more and returns the digests of what was deleted.

    Raises:
        DataLoss: A manifest is damaged, so that its parts are unknown; nothing was deleted.
        NotFound: That of a pointer, or everything that is needed, is not in the store; nothing was deleted.
    """
    needed: set[str] = set()
    # A transaction each, so that no submission waits for the reading of all tournaments.
    for tournament_id in await state.transact(tournaments):
        needed |= kept(await state.transact(past, tournament_id), retention).keys()
    # Last: an agent may have been generated meanwhile from what has lost its place since.
    needed |= await state.transact(starts, grace_seconds)
    found = await asyncio.to_thread(survey, store, needed, grace_seconds)
    if needed and found.missing == needed:
        raise NotFound(
            f"none of the {len(needed)} checkpoints that tournaments need is in {store.uri}; is it the store of this"
            " leaderboard? Nothing was deleted"
        )
    MISSING.set(len(found.missing))
    deleted = await asyncio.to_thread(delete, store, found, grace_seconds)
    COLLECTED.inc(len(deleted))
    return deleted


def starts(transaction: Transaction, grace_seconds: float) -> set[str]:
    """Digests of the manifests that unfinished agents start from, or the first ones of a tournament will."""
    agents = records.unfinished_or_new(transaction, transaction.now - grace_seconds)
    begun = {agent.starting_checkpoint.manifest_digest for agent in agents if agent.HasField("starting_checkpoint")}
    return begun | ancestor_queries.needed(transaction)


def tournaments(transaction: Transaction) -> list[str]:
    """Ids of the tournaments that have agents."""
    return sorted({generation.agent.tournament_id for generation in records.last_generations(transaction)})


def past(transaction: Transaction, tournament_id: str) -> Past:
    """What a tournament has come to."""
    spec = records.get_spec(transaction, tournament_id)
    last = next(one.agent for one in records.last_generations(transaction) if one.agent.tournament_id == tournament_id)
    submissions = records.list_candidates(transaction, tournament_id)
    board = records.read_board(transaction, tournament_id)
    moments = [last.create_time, *(candidate.submit_time for candidate in submissions[-1:])]
    return Past(
        board=board,
        visible=visible_board(spec, last.number + 1, submissions if spec.synchronous else board),
        submissions=submissions,
        contenders=spec.champion.reevaluate_top,
        idle_seconds=transaction.now - max(moment.ToNanoseconds() / 1e9 for moment in moments),
        snapshots=snapshots.manifests_of(transaction, tournament_id),
    )
