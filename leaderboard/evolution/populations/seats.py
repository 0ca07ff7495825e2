"""Models a population as a row of seats that agents take one after another.

An agent is one assignment, which ends after a while. A member of a population in the literature trains as long as the
population exists. A seat stands for such a member. The first `population_size` agents are fresh and take one seat each.
Every later agent takes the free seat that has had the fewest agents. It continues from the checkpoint files and with
the hyperparameters of the seat's last agent, unless the strategy replaces them by those of a better agent. What the
literature does to member i at the end of an interval is done here when the next agent of seat i is generated.

Agents do not wait for each other: if every seat is busy, a new seat is added. A seat keeps its algorithm, which is that
of the turn of its number, so the seats have the ratios of the specification. The agents have the same ratios if there
are fewer pods than seats, so that the seats of fast algorithms wait. With a pod for every seat all seats train all the
time, and the ratios are those of training time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leaderboard.evolution.history import History
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate


@dataclass(frozen=True)
class Seat:
    """A seat that has had at least one agent."""

    number: int
    """From 0."""
    agents: tuple[Agent, ...]
    """Its agents, by number; the last may still train."""
    scored: tuple[Candidate, ...]
    """The last submission of each of them that has one, in the order of the agents."""
    busy: bool
    """Whether one of its agents still trains."""
    failed: bool
    """Whether its last agent failed."""

    @property
    def algorithm(self) -> str:
        """Algorithm of the last agent."""
        return self.agents[-1].algorithm

    @property
    def newest(self) -> Candidate | None:
        """The last submission of the seat; None if there is none, or if it belongs to another algorithm."""
        return self.scored[-1] if self.scored and self.scored[-1].algorithm == self.algorithm else None

    def count_since(self, number: int) -> int:
        """Returns how many of its agents have this number or a higher one."""
        return sum(agent.number >= number for agent in self.agents)

    def newest_within(self, environment_steps: int) -> Candidate | None:
        """Returns the last scored candidate with at most this experience, in steps along the lineage; None if none."""
        own = [one for one in self.scored if one.algorithm == self.algorithm]
        return next((one for one in reversed(own) if one.environment_steps <= environment_steps), None)


def seats_of(history: History) -> list[Seat]:
    """Returns the seats by number."""
    sitting: dict[int, list[Agent]] = {}
    for agent in history.agents:
        if agent.HasField("seat"):
            sitting.setdefault(agent.seat, []).append(agent)
    return [_seat(number, sitting[number], history) for number in sorted(sitting)]


def next_seat(seats: Sequence[Seat], population_size: int) -> tuple[int, Seat | None]:
    """Returns the number of the seat that the next agent takes, and the seat if it has had an agent."""
    taken = {seat.number for seat in seats}
    untaken = next((number for number in range(population_size) if number not in taken), None)
    if untaken is not None:
        return untaken, None
    free = [seat for seat in seats if not seat.busy]
    if not free:
        return max(taken) + 1, None
    # Counted since all seats exist; otherwise a new seat would get every agent until it has as many as the others.
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
