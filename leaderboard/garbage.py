"""Deletes checkpoint files that are no longer needed, periodically.

Needed are the checkpoints that leaderboard.ranking.retention names for each tournament, and those that unfinished
agents start from. The orchestrator lists the unfinished agents of a tournament in every request for an agent.
Afterwards agents only finish, so the last list and the agent generated with it include all unfinished agents. Agents
that were generated within the grace period are added, because requests may overtake each other (RecentAgents). The
pointer of each agent keeps its newest checkpoint (podrace.checkpoint_store.collect).

Some needed checkpoints may be missing: the board of an idle tournament may have been cut, and shows candidates without
files. That is no error, and everything that still exists is kept. But if all needed checkpoints are missing, nothing is
deleted: every board keeps the files of its best candidate, so this must be the store of another leaderboard.

Files of tournaments that the database does not know are never deleted here. They may belong to another leaderboard that
shares the store, or the database may have been lost or restored from an earlier backup. While the store has agents of
such a tournament, the shared folder is kept too, because podrace 0.1.0 stored the files of all tournaments there.
Backups and archives are collected in any case: their pointers name everything that is needed of them.

With `assignment.tournament_checkpoint_bytes`, checkpoints of ended agents and snapshots are deleted until the others
fit (leaderboard.storage_quotas).

The replay memories of needed checkpoints are kept within `assignment.tournament_replay_bytes` of each tournament. Above
it, all memories are reduced to samples of equal size (leaderboard.ranking.replay_quota), first those of checkpoints
that no agent needs, then those of last submissions, then those of the candidates that the next agent may start from.
The memories of unfinished agents, and those they started from, are never reduced, because their pods list stored pieces
again without storing them. Objects younger than the grace age are kept in any case, so what is stored within that time
comes on top of the quota.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Self

import prometheus_client
import structlog

from leaderboard.checkpoints.checkpoint_quotas import Measured
from leaderboard.evolution.agents import visible_board
from leaderboard.ranking.checkpoint_quota import Cut
from leaderboard.ranking.game_history import GameHistory
from leaderboard.ranking.retention import NewestByAgent, Retention, TournamentRecord, retained
from leaderboard.storage_quotas import Excess, QuotaPlan, beyond_quotas, quota_plan, quotas_of
from leaderboard.store import ancestor_queries, generation_marks, records
from leaderboard.store.deletion_records import pending_deletions
from leaderboard.store.held_records import held_manifests
from leaderboard.store.snapshot_records import snapshot_manifests
from podrace.checkpoint_store.collect import Survey, delete, survey
from podrace.checkpoint_store.store import ARCHIVE_PREFIX, BACKUP_PREFIX, CheckpointStore, Place, StoredObject
from podrace.database import LARGEST_NUMBER, Database, Transaction
from podrace.database.leadership import CheckLeads, only_replica
from podrace.errors import NotFound, PodraceError, ResourceExhausted
from podrace.processes import freed_memory
from podrace.specification.ancestor import tournament_of
from podrace.tasks import wait_at_most

COLLECTED = prometheus_client.Counter("podrace_leaderboard_objects_collected", "Objects deleted from the store")
FAILED = prometheus_client.Counter(
    "podrace_leaderboard_collections_failed", "Attempts to delete the files that are no longer needed, that failed"
)
MISSING = prometheus_client.Gauge(
    "podrace_leaderboard_checkpoints_missing",
    "Checkpoints that are needed and were not in the store when it was last collected",
)
SHORTEST_PERIOD_SECONDS = 10.0
_log = structlog.get_logger(__name__)


class RecentAgents:
    """Finds the agents of the grace period without a wall clock, because the clocks of two hosts may differ.

    Marks in the database divide the agents by the order in which they were generated. Two marks are at least the grace
    period apart, by the monotonic clock of the process that has set the later one, so agents that were generated before
    the earlier one are older. A restart delays the next mark, and more agents count as recent.

        recent = await RecentAgents.load(state, grace_seconds)
        await recent.position()  # at each collection
    """

    def __init__(self, state: Database, grace_seconds: float, monotonic: Callable[[], float]) -> None:
        self.grace_seconds = grace_seconds
        self._state, self._monotonic, self._marked = state, monotonic, monotonic()

    @classmethod
    async def load(cls, state: Database, grace_seconds: float, monotonic: Callable[[], float] = time.monotonic) -> Self:
        """Sets the first mark of a database that has none.

        Args:
            state: Database of the leaderboard.
            grace_seconds: The grace period.
            monotonic: Clock in seconds.
        """
        await state.transact(generation_marks.add_first_mark)
        return cls(state, grace_seconds, monotonic)

    async def position(self) -> int:
        """Returns a position after which all agents of the grace period were generated, and perhaps some older ones."""
        if self._monotonic() - self._marked >= self.grace_seconds:
            try:
                await self._state.transact(generation_marks.add_mark)
                self._marked = self._monotonic()
            except ResourceExhausted as error:
                # The collection may free the space. Until then, more agents count as recent.
                _log.debug("no mark is set", error=error.message)
        return await self._state.transact(generation_marks.earlier_mark)


async def collect_periodically(
    state: Database,
    store: CheckpointStore,
    recent: RecentAgents,
    *,
    period_seconds: float,
    retention: Retention,
    urgent: asyncio.Event,
    on_measured: Callable[[Measured], None] = lambda _: None,
    check_leads: CheckLeads = only_replica,
) -> None:
    """Collects periodically until it is cancelled.

    A collection that fails, for whatever reason, is logged, counted, and repeated after the period.

    When `urgent` is set, the next collection begins at once, but not within SHORTEST_PERIOD_SECONDS of the last one.
    `recent` has the grace period, and the agents of it. `on_measured` receives what each collection leaves.
    `check_leads` is called before each deletion.
    """
    shortest_seconds = min(SHORTEST_PERIOD_SECONDS, period_seconds)
    while True:
        await asyncio.sleep(shortest_seconds)
        await wait_at_most(urgent.wait(), period_seconds - shortest_seconds)
        urgent.clear()
        try:
            deleted = await collect_once(
                state,
                store,
                grace_seconds=recent.grace_seconds,
                retention=retention,
                recent_after=await recent.position(),
                on_measured=on_measured,
                check_leads=check_leads,
            )
        except PodraceError as error:
            FAILED.inc()
            _log.warning("garbage collection failed", error=error.message)
        except Exception:
            # A defect must not end the collections, or the disk fills without a word.
            FAILED.inc()
            _log.exception("garbage collection failed")
        else:
            _log.debug("garbage collected", objects=len(deleted))
        await asyncio.to_thread(freed_memory.return_all)


async def collect_once(
    state: Database,
    store: CheckpointStore,
    *,
    grace_seconds: float,
    retention: Retention,
    recent_after: int = LARGEST_NUMBER,
    on_measured: Callable[[Measured], None] = lambda _: None,
    check_leads: CheckLeads = only_replica,
) -> list[str]:
    """Deletes objects that nothing refers to and returns their digests.

    Args:
        state: Database of the leaderboard.
        store: The checkpoint store as a whole.
        grace_seconds: Younger objects are kept.
        retention: Which scored checkpoints are kept.
        recent_after: Agents that were generated after this position count as unfinished.
        on_measured: Receives what is left.
        check_leads: Called before each deletion.

    Raises:
        DataLoss: A manifest is damaged, so its parts are unknown; nothing was deleted.
        NotFound: Every needed checkpoint is missing from the store; nothing was deleted.
        Unavailable: Another replica leads; nothing more is deleted.
    """
    listed = await asyncio.to_thread(lambda: list(store.list_objects()))
    needed, plans = await _retained_and_quotas(state, retention, idle_seconds(listed))
    # Exactly the tournaments whose needed checkpoints were read: one that was recorded since is not judged yet.
    known = {plan.tournament_id for plan in plans} | {name for name, _ in await state.transact(pending_deletions)}
    # Last, because an agent may have been generated meanwhile from a candidate that was evicted since.
    starting = await state.transact(starting_checkpoints, recent_after)
    unfinished = await state.transact(unfinished_agents, recent_after)
    starting |= {Place(tournament_id, name) for tournament_id, name in await state.transact(held_manifests)}
    excess = await asyncio.to_thread(beyond_quotas, store, plans, starting, unfinished)
    needed = (needed - excess.unneeded) | starting
    quotas = quotas_of(plans)
    look = partial(
        survey,
        dropped=excess.dropped,
        replaceable=lambda agent_id: tournament_of(agent_id) in quotas,
        foreign=lambda name: is_foreign(name, known),
    )
    found = await asyncio.to_thread(look, store, listed, needed, grace_seconds)
    check_some_found(needed, found, store.uri)
    MISSING.set(len(found.missing))
    # Raises if another replica has taken over since: it may need what was not needed before.
    await state.transact(lambda _: None)
    deleted = await asyncio.to_thread(delete, store, found, grace_seconds, check_leads)
    COLLECTED.inc(len(deleted))
    # Not what is in the store now: what was published meanwhile is reduced by the next collection.
    needed_bytes = {name: cut.left_bytes for name, cut in excess.cuts.items()}
    on_measured(Measured(found.kept_bytes, needed_bytes, quotas, _really_cut(excess, deleted)))
    return deleted


def check_some_found(needed: Collection[Place], found: Survey, uri: str) -> None:
    """Raises NotFound if the store has none of the checkpoints that tournaments need."""
    if needed and found.missing == needed:
        raise NotFound(
            f"none of the {len(needed)} checkpoints that tournaments need is in {uri}; is it the store of this"
            " leaderboard? Nothing was deleted"
        )


def is_foreign(tournament_id: str, known: Collection[str]) -> bool:
    """Whether a folder of the store has files of a tournament that the database does not know."""
    return tournament_id not in known and not tournament_id.startswith((ARCHIVE_PREFIX, BACKUP_PREFIX))


async def _retained_and_quotas(
    state: Database, retention: Retention, idle: Mapping[str, float]
) -> tuple[set[Place], list[QuotaPlan]]:
    """Returns the manifests that tournaments keep, and the plans of their quotas."""
    needed, plans = set[Place](), list[QuotaPlan]()
    # One transaction for each tournament, so that submissions do not wait until all have been read.
    for tournament_id in await state.transact(tournaments):
        read = partial(tournament_record, idle_seconds=idle.get(tournament_id, 0.0))
        record = await state.transact(read, tournament_id, retention.checkpoints_of_agent)
        kept = retained(record, retention).keys()
        needed |= {Place(tournament_id, name) for name in kept}
        plans.append(quota_plan(tournament_id, await state.transact(records.get_spec, tournament_id), record, kept))
    return needed, plans


def _really_cut(excess: Excess, deleted: Collection[str]) -> dict[str, Cut]:
    """Returns and logs what was deleted because of quotas, by tournament; files that are too young remain."""
    names = set(deleted)
    cuts = {name: cut.limited_to(names) for name, cut in excess.cuts.items()}
    for name, cut in cuts.items():
        if cut.checkpoints:
            _log.info(
                "checkpoints deleted because of the quota",
                tournament_id=name,
                deleted=dict(cut.counts),
                deleted_bytes=cut.deleted_bytes,
                left_bytes=cut.left_bytes,
            )
    return {name: cut for name, cut in cuts.items() if cut.files}


def idle_seconds(listed: Iterable[StoredObject]) -> dict[str, float]:
    """Returns the age of the youngest object of each tournament, by the clock of the store."""
    ages: dict[str, float] = {}
    for stored in listed:
        ages[stored.tournament_id] = min(stored.age_seconds, ages.get(stored.tournament_id, stored.age_seconds))
    return ages


def starting_checkpoints(transaction: Transaction, recent_after: int) -> set[Place]:
    """Returns the manifests that unfinished or recent agents, or the next agents of a tournament, start from."""
    agents = records.unfinished_or_new(transaction, recent_after)
    starts = [agent.starting_checkpoint for agent in agents if agent.HasField("starting_checkpoint")]
    starts += [mate for agent in agents for mate in agent.mates]
    started = {Place(tournament_of(start.agent_id), start.manifest_digest) for start in starts}
    return started | ancestor_queries.needed(transaction)


def unfinished_agents(transaction: Transaction, recent_after: int) -> set[str]:
    """Returns the ids of agents that have not ended, or were generated after a position."""
    return {agent.agent_id for agent in records.unfinished_or_new(transaction, recent_after)}


def tournaments(transaction: Transaction) -> list[str]:
    """Returns the ids of all tournaments that have agents, in order."""
    return sorted({generation.agent.tournament_id for generation in records.last_generations(transaction)})


def tournament_record(
    transaction: Transaction, tournament_id: str, checkpoints_of_agent: int = 1, idle_seconds: float = 0.0
) -> TournamentRecord:
    """Reads what retention decides on; `checkpoints_of_agent` is that of Retention."""
    spec = records.get_spec(transaction, tournament_id)
    last = next(one.agent for one in records.last_generations(transaction) if one.agent.tournament_id == tournament_id)
    games, newest = GameHistory(), NewestByAgent(checkpoints_of_agent)
    # One at a time: all submissions of a long tournament together would fill the memory at every collection.
    for candidate in records.each_candidate(transaction, tournament_id):
        games.add(candidate)
        newest.add(candidate)
    board = records.read_board(transaction, tournament_id)
    shown = records.list_candidates(transaction, tournament_id) if spec.synchronous else board
    return TournamentRecord(
        board=board,
        visible=visible_board(spec, last.number + 1, shown),
        submissions=newest.with_others(games.leaders),
        contenders=spec.champion.reevaluate_top,
        idle_seconds=idle_seconds,
        snapshots=snapshot_manifests(transaction, tournament_id),
        leaders=[one.candidate_id for one in games.leaders],
    )
