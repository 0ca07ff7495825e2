"""Owns what the strategies with a population have in common: what becomes of the next seat when its agent has ended.

    propose = partial(propose_for_seat, select=select, explore=explore)

A strategy says who is replaced by whom (select) and how hyperparameters then differ (explore). Everything else is here:
    the seat is new                      a fresh agent takes it
    the seat's algorithm left the draw   the best of another algorithm takes it, explored
    its last agent failed                the best other of its algorithm takes it, explored; without one the seat goes
                                         on from its last good files with explored hyperparameters
    it was never scored, nor another     a fresh agent of its algorithm takes it
    else                                 as the strategy says
Training files pass between agents of one algorithm only, and a child has its parent's structural hyperparameters, so
that they fit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from leaderboard.evolution.comparison import ranked
from leaderboard.evolution.fresh import turn_of
from leaderboard.evolution.mutation import describe_changes
from leaderboard.evolution.seats import Seat, next_seat, seats_of
from leaderboard.evolution.space import Value
from leaderboard.evolution.strategy import Child, Fresh, Situation
from leaderboard.ranking.board import Board, named
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec


@dataclass(frozen=True)
class Selection:
    """Where a seat goes on."""

    parent: Candidate
    """From here: its own newest, or another's."""
    explores: bool
    """With other hyperparameters than the parent's."""
    reason: str
    """Why, in a line for a person."""


Select = Callable[[Candidate, Sequence[Seat], EvolutionSpec, Random], Selection]
"""Shown are the newest of the seat, and the other seats of its algorithm that were ever scored."""
Explore = Callable[[Situation, Candidate, Mapping[str, Value], Random], dict[str, Value]]
"""Shown are the parent, and the hyperparameters of the last agent of the seat (empty for another algorithm's)."""


def propose_for_seat(situation: Situation, random: Random, select: Select, explore: Explore) -> Fresh | Child:
    """Answers for the next seat."""
    seats = seats_of(situation.history)
    number, seat = next_seat(seats, situation.spec.evolution.population_size)
    turn = turn_of(situation.spec, number, situation.left)
    if seat is None:
        return Fresh(f"seat {number} is new", turn.algorithm, number)
    moved = seat.algorithm in situation.left
    algorithm = turn.algorithm if moved else seat.algorithm
    others = [other for other in seats if other is not seat and other.algorithm == algorithm and other.newest]
    own = None if moved else seat.newest
    if moved or seat.failed or own is None:
        choice = _instead_of_the_last(seat, own, others, moved=moved)
    else:
        choice = select(own, others, situation.spec.evolution, random)
    if choice is None:
        return Fresh(f"seat {number}: no agent of {algorithm} was scored", algorithm, number)
    return _child(situation, number, choice, {} if own is None else situation.values_of(own), explore, random)


def newest_of(seats: Sequence[Seat]) -> list[Candidate]:
    """The newest of each seat that has one."""
    return [seat.newest for seat in seats if seat.newest is not None]


def standing_of(own: Candidate, everybody: Board) -> str:
    """Where a candidate stands in its population, for a person."""
    return f"{named(own)} is {everybody.index(own) + 1} of {len(everybody)}"


def _instead_of_the_last(seat: Seat, own: Candidate | None, others: Sequence[Seat], *, moved: bool) -> Selection | None:
    """Who takes a seat whose last agent nobody can or may go on from; None if there is nobody."""
    last = seat.agents[-1]
    why = f"{last.algorithm} has left the draw" if moved else f"a{last.number} failed"
    if others:
        best = ranked(newest_of(others))[0]
        return Selection(best, explores=True, reason=f"{why}; continues from the best, {named(best)}")
    if own is not None:
        return Selection(own, explores=True, reason=f"{why}; no other agent was scored, continues from {named(own)}")
    return None


def _child(
    situation: Situation,
    number: int,
    choice: Selection,
    own_values: Mapping[str, Value],
    explore: Explore,
    random: Random,
) -> Child:
    inherited = situation.values_of(choice.parent)
    values = explore(situation, choice.parent, own_values, random) if choice.explores else inherited
    changes = describe_changes(inherited, values) or "hyperparameters unchanged"
    return Child(choice.parent, values, f"seat {number}: {choice.reason}; {changes}", number)
