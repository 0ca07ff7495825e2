"""Owns which training files are still needed, and the periodic deletion of the others.

Needed are the candidates on all boards, and the candidates that unfinished agents start from. Who is unfinished, the
orchestrator says whenever it asks for an agent; after that, agents only finish, so that for each tournament the list
that came with its last agent, and that agent, cover all. Agents generated within the grace age are added, because
requests may cross. What an agent itself has published last is kept by its pointer (podrace.checkpoints.collect).
"""

import asyncio

import prometheus_client
import structlog

from leaderboard import records
from podrace.checkpoints.collect import collect
from podrace.checkpoints.store import CheckpointStore
from podrace.database import Database, Transaction
from podrace.errors import PodraceError

COLLECTED = prometheus_client.Counter("podrace_leaderboard_objects_collected", "Objects deleted from the store")
_log = structlog.get_logger(__name__)


async def collect_periodically(
    state: Database, store: CheckpointStore, *, period_seconds: float, grace_seconds: float
) -> None:
    """Collects again and again until it is cancelled; a collection that fails is told and the next one tried."""
    while True:
        await asyncio.sleep(period_seconds)
        try:
            deleted = await collect_once(state, store, grace_seconds=grace_seconds)
        except PodraceError as error:
            _log.warning("training files were not collected", error=error.message)
        else:
            _log.debug("training files collected", objects=len(deleted))


async def collect_once(state: Database, store: CheckpointStore, *, grace_seconds: float) -> list[str]:
    """Deletes what nobody can reach any more and returns the digests of what was deleted; raises as collect does."""
    needed = await state.transact(roots, grace_seconds)
    deleted = await asyncio.to_thread(collect, store, needed, grace_seconds)
    COLLECTED.inc(len(deleted))
    return deleted


def roots(transaction: Transaction, grace_seconds: float) -> set[str]:
    """Digests of the manifests that are needed."""
    latest = records.latest_generations(transaction, transaction.now - grace_seconds)
    listed = {agent_id for generation in latest for agent_id in generation.unfinished_agent_ids}
    agents = [generation.agent for generation in latest] + list(records.find_agents(transaction, listed).values())
    starts = {agent.starting_checkpoint.manifest_digest for agent in agents if agent.HasField("starting_checkpoint")}
    return starts | set(records.candidates_on_boards(transaction))
