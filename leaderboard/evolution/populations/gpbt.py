"""Implements the strategy `gpbt`: agents are compared in pairs, and the slower of a pair learns from the faster.

Bai and Cheng, "Generalized Population-Based Training for Hyperparameter Optimization in Reinforcement Learning", IEEE
Transactions on Emerging Topics in Computational Intelligence 2024, arXiv 2404.08233: generalized population-based
training with pairwise learning (GPBT-PL), in the form of the authors' implementation (github.com/EMI-Group/gpbt-pl).
    pair       When a seat is due, another seat of its algorithm is drawn at random. If that one's score is higher, the
               seat continues from its checkpoint files and learns from its hyperparameters. Otherwise it continues
               unchanged. Any agent may be a teacher, not only one of the best.
    learn      Each number x of the seat moves towards that of the faster learner y, with momentum:
                   v' = inertia_weight r1 v + learning_weight r2 (y - x)        x' = x + v'
               r1 and r2 are uniform from 0 to 1, and v is the previous move of the seat. This is the update of the
               competitive swarm optimizer (Cheng and Jin, IEEE Transactions on Cybernetics 45, 2015) without its
               term for the mean of the swarm.
    resample   Instead, each hyperparameter is drawn again with `resample_probability`.

What differs from the implementation:
    - A pair is drawn from the whole population, as the method is described. The implementation draws the slower one
      from the lowest quarter, and the faster one from the highest.
    - The score must lead by more than the standard error of the difference (leaderboard.evolution.comparison).
    - Moves are positions within the searched ranges, on their scale: a step of a learning rate is a factor.
    - The previous move of a seat follows from the log: the difference of its last two agents with different numbers. It
      is what was left of v' at the ends of a range, and a value that was drawn again counts as a move.
    - A choice is that of the faster learner. The implementation moves it to a neighbor, and a hyperparameter with two
      choices would then never be learned.

Agents do not wait for each other: the newest checkpoint of a seat is compared, whatever its experience. Structural
hyperparameters are those of the faster learner, whose files they fit.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random

from leaderboard.evolution.comparison import leads
from leaderboard.evolution.history import History
from leaderboard.evolution.mutation import mutate
from leaderboard.evolution.populations.population import Selection, newest_of, propose_for_seat
from leaderboard.evolution.populations.seats import Seat, next_seat, seats_of
from leaderboard.evolution.space import Range, Value, movable_spaces, plain
from leaderboard.evolution.strategy import Situation
from leaderboard.ranking.board import named
from leaderboard.seeding import draw_one, happens
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec


def select(own: Candidate, others: Sequence[Seat], situation: Situation, random: Random) -> Selection:
    """Compares an agent with that of another seat, and replaces it if it is the slower learner."""
    rivals = newest_of(others)
    if not rivals:
        return Selection(own, explores=False, reason=f"{named(own)} has no other agent to be compared with; continues")
    rival = draw_one(random, rivals)
    if leads(rival, own):
        return Selection(rival, explores=True, reason=f"{named(own)} learns from {named(rival)}, which leads it")
    reason = f"{named(own)} continues: {named(rival)} does not lead it by more than the error"
    return Selection(own, explores=False, reason=reason)


def explore(
    situation: Situation, parent: Candidate, own_values: Mapping[str, Value], random: Random
) -> dict[str, Value]:
    """Moves the seat's own numbers towards those of the parent. A seat without own ones has the parent's.

    A seat that continues from its own checkpoint because its last agent failed has nothing to learn from: its
    hyperparameters mutate, because the same ones would fail again.
    """
    evolution, algorithm = situation.spec.evolution, parent.algorithm
    values = situation.values_of(parent)
    spaces = movable_spaces(algorithm, situation.spec.algorithms[algorithm])
    seat = next_seat(seats_of(situation.history), evolution.population_size)[1]
    if seat is not None and seat.newest == parent:
        return mutate(values, spaces, evolution, random)
    own = own_values or values
    ranges = {name: space for name, space in spaces.items() if isinstance(space, Range)}
    before = previous_move(seat, algorithm, ranges, situation.history) if seat is not None and own_values else {}
    for name, space in spaces.items():
        if happens(random, evolution.resample_probability):
            values[name] = space.draw(random)
        elif isinstance(space, Range):
            values[name] = learned(space, own[name], values[name], before.get(name, 0.0), evolution, random)
    return values


def learned(space: Range, own: Value, faster: Value, move: float, evolution: EvolutionSpec, random: Random) -> Value:
    """Returns the value of the slower learner after it has learned from the faster one.

    Args:
        space: Range of the hyperparameter.
        own: Value of the slower learner.
        faster: Value of the faster learner.
        move: Previous move of the slower learner, as a difference of positions.
        evolution: Resolved weights.
        random: Random stream, of which two numbers are used.
    """
    inertia, learning = evolution.inertia_weight * random.random(), evolution.learning_weight * random.random()
    if not isinstance(own, float) or not isinstance(faster, float):
        return faster
    begin = space.position(own)
    velocity = inertia * move + learning * (space.position(faster) - begin)
    return space.at(min(max(begin + velocity, 0.0), 1.0)) if velocity else own


def previous_move(seat: Seat, algorithm: str, ranges: Mapping[str, Range], history: History) -> dict[str, float]:
    """Returns the last move of a seat, as differences of positions; empty if it has not moved.

    Agents of other algorithms and those without a score have made no move.
    """
    agents = [one for one in seat.agents if one.algorithm == algorithm and one.agent_id in history.last]
    for earlier, later in zip(agents[-2::-1], agents[:0:-1], strict=True):
        move = {name: _position(later, name, space) - _position(earlier, name, space) for name, space in ranges.items()}
        if any(move.values()):
            return move
    return {}


def _position(agent: Agent, name: str, space: Range) -> float:
    value = plain(agent.hyperparameters.fields[name])
    return space.position(value) if isinstance(value, float) else 0.0


propose = partial(propose_for_seat, select=select, explore=explore)
"""The strategy."""
