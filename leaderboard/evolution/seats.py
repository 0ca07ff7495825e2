"""Owns the population of the strategies that keep one: its seats, who sits there, and whose turn it is.

An agent is one assignment: it trains for a while and is done. A member of a population in the literature trains for as
long as the population lives. So the population is a row of seats. The first `population_size` agents are fresh and take
a seat each. From then on every agent takes the free seat that has had the fewest agents, and goes on where the last of
them ended: with its training files and hyperparameters, unless the strategy replaces it by a better one. What the
literature does to member i at the end of its interval happens here when the next agent of seat i is made.

No agent waits for another; a pod too many finds no free seat and opens another. A seat keeps its algorithm, the one
whose turn its number is: the ratio of the specification holds for seats. It holds for agents as well, however slow one
algorithm is, as long as there are pods enough fewer than seats to let the fast ones wait; with a pod for every seat all
train all the time, and the ratio is that of their time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leaderboard.evolution.history import History
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate


@dataclass(frozen=True)
class Seat:
    """A seat that was taken before."""

    number: int
    """From 0."""
    agents: tuple[Agent, ...]
    """Who sat there, by number; the last may still train."""
    scored: tuple[Candidate, ...]
    """The last submission of each of them that has one, in the order of the agents."""
    busy: bool
    """Somebody trains there."""
    failed: bool
    """The last agent could not go on."""

    @property
    def algorithm(self) -> str:
        """Of the last agent."""
        return self.agents[-1].algorithm

    @property
    def newest(self) -> Candidate | None:
        """The last submission of the seat; None before the first, or if it is another algorithm's."""
        return self.scored[-1] if self.scored and self.scored[-1].algorithm == self.algorithm else None

    def count_since(self, number: int) -> int:
        """How many of its agents have this number or a higher one."""
        return sum(agent.number >= number for agent in self.agents)

    def newest_within(self, environment_steps: int) -> Candidate | None:
        """The last of the scored with at most this much experience, in steps along the lineage; None without one."""
        own = [one for one in self.scored if one.algorithm == self.algorithm]
        return next((one for one in reversed(own) if one.environment_steps <= environment_steps), None)


def seats_of(history: History) -> list[Seat]:
    """The seats by number."""
    sitting: dict[int, list[Agent]] = {}
    for agent in history.agents:
        if agent.HasField("seat"):
            sitting.setdefault(agent.seat, []).append(agent)
    return [_seat(number, sitting[number], history) for number in sorted(sitting)]


def next_seat(seats: Sequence[Seat], population_size: int) -> tuple[int, Seat | None]:
    """The number of the seat that the next agent takes, and the seat if it was taken before."""
    taken = {seat.number for seat in seats}
    untaken = next((number for number in range(population_size) if number not in taken), None)
    if untaken is not None:
        return untaken, None
    free = [seat for seat in seats if not seat.busy]
    if not free:
        return max(taken) + 1, None
    # Counted from when there were all of them, or a new seat would have every turn until it has caught up.
    since = max(seat.agents[0].number for seat in seats)
    chosen = min(free, key=lambda seat: (seat.count_since(since), seat.agents[-1].number))
    return chosen.number, chosen


def _seat(number: int, agents: Iterable[Agent], history: History) -> Seat:
    by_number = tuple(sorted(agents, key=lambda agent: agent.number))
    return Seat(
        number=number,
        agents=by_number,
        scored=tuple(history.last[agent.agent_id] for agent in by_number if agent.agent_id in history.last),
        busy=any(not history.has_ended(agent) for agent in by_number),
        failed=history.has_failed(by_number[-1]),
    )
