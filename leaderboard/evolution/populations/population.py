"""Proposes the next agent of a population of seats: the part that all strategies with a population share.

    propose = partial(propose_for_seat, select=select, explore=explore)

A strategy decides which agent a seat continues from (select) and how its hyperparameters change (explore). The rest is
decided here for the next free seat:
    the seat is new                      it gets a fresh agent
    its algorithm is eliminated          it continues from the best of another algorithm, with explored hyperparameters
    its last agent failed                it continues from the best other agent of its algorithm, or else from its own
                                         last checkpoint, with explored hyperparameters
    no agent of its algorithm has a
    score                                it gets a fresh agent of its algorithm
    otherwise                            `select` decides
Checkpoint files are passed between agents of one algorithm only, and a child keeps the structural hyperparameters of
its parent, so the files fit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from leaderboard.evolution.comparison import ranked
from leaderboard.evolution.fresh import turn_of
from leaderboard.evolution.mutation import describe_changes
from leaderboard.evolution.populations.seats import Seat, next_seat, seats_of
from leaderboard.evolution.space import Value, is_structural
from leaderboard.evolution.strategy import Child, Fresh, Situation
from leaderboard.ranking.board import Board, named
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


@dataclass(frozen=True)
class Selection:
    """What a seat continues from."""

    parent: Candidate
    """The newest candidate of the seat, or of another one."""
    explores: bool
    """Whether the hyperparameters change."""
    reason: str
    """Why, in one line."""
    values_of: Candidate | None = None
    """Candidate whose hyperparameters it takes, if they do not change; None: the parent."""


Select = Callable[[Candidate, Sequence[Seat], Situation, Random], Selection]
"""Arguments: the newest candidate of the seat, the other seats of its algorithm with a score, the situation, and the
random stream."""
Explore = Callable[[Situation, Candidate, Mapping[str, Value], Random], dict[str, Value]]
"""Arguments: the situation, the parent, the hyperparameters of the last agent of the seat (empty if it had another
algorithm), and the random stream."""


def propose_for_seat(situation: Situation, random: Random, select: Select, explore: Explore) -> Fresh | Child:
    """Returns the agent for the next seat."""
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
        choice = select(own, others, situation, random)
    if choice is None:
        return Fresh(f"seat {number}: no agent of {algorithm} was scored", algorithm, number)
    return _child(situation, number, choice, {} if own is None else situation.values_of(own), explore, random)


def unstructural(algorithm: str, situation: Situation, values: Mapping[str, Value]) -> dict[str, Value]:
    """Returns the hyperparameters that may differ from those of a parent: they do not shape networks or memories."""
    spec = situation.spec.algorithms[algorithm]
    return {name: value for name, value in values.items() if not is_structural(algorithm, spec, name)}


def newest_of(seats: Sequence[Seat]) -> list[Candidate]:
    """Returns the newest candidate of each seat that has one."""
    return [seat.newest for seat in seats if seat.newest is not None]


def standing_of(own: Candidate, members: Board) -> str:
    """Describes the rank of a candidate in its population."""
    return f"{named(own)} is {members.index(own) + 1} of {len(members)}"


def _instead_of_the_last(seat: Seat, own: Candidate | None, others: Sequence[Seat], *, moved: bool) -> Selection | None:
    """Returns what a seat continues from when it cannot continue from its last agent; None if there is no candidate."""
    last = seat.agents[-1]
    why = f"{last.algorithm} is eliminated" if moved else f"a{last.number} failed"
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
    if choice.values_of is not None:
        values = inherited | unstructural(choice.parent.algorithm, situation, situation.values_of(choice.values_of))
    changes = describe_changes(inherited, values) or "hyperparameters unchanged"
    return Child(choice.parent, values, f"seat {number}: {choice.reason}; {changes}", number)
