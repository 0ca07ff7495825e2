"""Caches the folded log of each tournament, so that a decision costs as much as the events since the one before.

The cache is checked against the database before each use. A transaction that was rolled back, because there is no work
for a pod, may have added ends that never happened: they are undone. If anything else does not match, the log is folded
again from the first event.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from leaderboard.evolution.agents import trials_of
from leaderboard.evolution.trials import Trials
from leaderboard.store import records
from leaderboard.store.records import Generation
from podrace.database import Transaction
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MOST_TOURNAMENTS = 16
"""Tournaments in the cache; the one that was not used for the longest time leaves it."""


@dataclass(frozen=True)
class Ends:
    """Agents that ended before the agent at a position, and after the agent before."""

    position: int
    """Position of the agent that is being generated."""
    ended: Collection[str]
    """Ids of agents that are now recorded as ended."""
    failed: Collection[str]
    """Ids of those agents that are now recorded as failed."""


@dataclass
class _Entry:
    trials: Trials
    position: int = 0
    """Position of the last agent in it."""
    sequence: int = 0
    """Sequence number of the last submission in it."""
    agent_id: str = ""
    """Agent at that position; empty before the first."""
    candidate_id: str = ""
    """Candidate of that submission; empty before the first."""
    expected: int = 0
    """Position of the agent whose ends are in it and that must follow; 0 if there is none."""
    undo: Callable[[], None] = lambda: None
    """Undoes those ends."""


class TrialCache:
    """The folded logs by tournament. For use on the database thread only.

    trials = cache.read(transaction, "cartpole", spec)
    trials = cache.read(transaction, "cartpole", spec, Ends(position, ended, failed))   # to generate an agent
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def read(
        self, transaction: Transaction, tournament_id: str, spec: TournamentSpec, ends: Ends | None = None
    ) -> Trials | None:
        """Returns the trials of a tournament that is not synchronous, or None if its strategy has no fold.

        Args:
            transaction: The transaction.
            tournament_id: The tournament.
            spec: Its resolved specification.
            ends: Agents that the transaction has recorded as ended; the caller generates an agent at that position or
                rolls the transaction back.
        """
        empty = trials_of(spec)
        if empty is None:
            return None
        entry = self._entries.pop(tournament_id, None)
        if entry is None or not _matches(transaction, tournament_id, entry):
            entry = _Entry(empty)
            _fold_all(transaction, tournament_id, entry)
        else:
            if entry.expected > records.last_position(transaction, tournament_id):
                entry.undo()
                entry.expected = 0
            _fold_new(transaction, tournament_id, entry)
        if ends is not None:
            _fold_ends_of(entry, ends)
        self._entries[tournament_id] = entry
        while len(self._entries) > MOST_TOURNAMENTS:
            del self._entries[next(iter(self._entries))]
        return entry.trials

    def forget(self, tournament_id: str) -> None:
        """Drops the folded log of a tournament, so that the next use reads it from the database."""
        self._entries.pop(tournament_id, None)


def fold(trials: Trials, generations: Iterable[Generation], submissions: Iterable[Candidate], position: int) -> None:
    """Folds a whole log into trials without any event.

    Args:
        trials: Receives the events.
        generations: The agents in the order in which they were generated, with what is recorded of their ends.
        submissions: The submissions by arrival.
        position: Position up to which ends are folded.
    """
    generations = list(generations)
    ends: dict[int, list[Generation]] = {}
    for one in generations:
        for at in {one.ended, one.failed}:
            if at is not None:
                ends.setdefault(at, []).append(one)
    waiting = iter(submissions)
    upcoming = next(waiting, None)
    for generation in generations:
        while upcoming is not None and upcoming.sequence <= generation.after_sequence:
            trials.scored(upcoming)
            upcoming = next(waiting, None)
        _fold_ends(trials, ends.get(generation.position, ()), generation.position)
        trials.handed_out(generation.agent)
    while upcoming is not None:
        trials.scored(upcoming)
        upcoming = next(waiting, None)
    last = generations[-1].position if generations else 0
    for at in sorted(ends):
        if last < at <= position:
            _fold_ends(trials, ends[at], at)


def _fold_ends(trials: Trials, ended: Iterable[Generation], position: int) -> None:
    """Folds what was recorded at a position, by agent number."""
    for one in sorted(ended, key=lambda one: one.agent.number):
        failed = one.failed is not None and one.failed <= position
        trials.ended(one.agent.agent_id, failed=failed)


def _matches(transaction: Transaction, tournament_id: str, entry: _Entry) -> bool:
    """Whether every event of an entry is still in the log."""
    if entry.agent_id and records.agent_at(transaction, entry.position) != entry.agent_id:
        return False
    return not entry.candidate_id or records.candidate_at(transaction, entry.sequence) == entry.candidate_id


def _fold_all(transaction: Transaction, tournament_id: str, entry: _Entry) -> None:
    generations = records.list_generations(transaction, tournament_id)
    submissions = records.list_candidates(transaction, tournament_id)
    # Those recorded for an agent that is not generated yet follow.
    fold(entry.trials, generations, submissions, generations[-1].position if generations else 0)
    _note(entry, generations, submissions)


def _fold_new(transaction: Transaction, tournament_id: str, entry: _Entry) -> None:
    generations = records.generations_after(transaction, tournament_id, entry.position)
    submissions = records.list_candidates(transaction, tournament_id, after_sequence=entry.sequence)
    # The ends before each of these agents were folded when it was generated.
    fold(entry.trials, [_without_end(one) for one in generations], submissions, 0)
    _note(entry, generations, submissions)


def _fold_ends_of(entry: _Entry, ends: Ends) -> None:
    ended = sorted({*ends.ended, *ends.failed}, key=_number_of)
    entry.undo, entry.expected = entry.trials.before_ends(ended), ends.position
    for agent_id in ended:
        entry.trials.ended(agent_id, failed=agent_id in ends.failed)


def _without_end(generation: Generation) -> Generation:
    return Generation(generation.agent, generation.depth, generation.after_sequence, generation.position)


def _number_of(agent_id: str) -> int:
    return int(agent_id.rpartition("-a")[2])


def _note(entry: _Entry, generations: list[Generation], submissions: list[Candidate]) -> None:
    if generations:
        entry.position, entry.agent_id = generations[-1].position, generations[-1].agent.agent_id
    if submissions:
        entry.sequence, entry.candidate_id = submissions[-1].sequence, submissions[-1].candidate_id
