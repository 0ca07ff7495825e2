"""Defines the interface of evolution strategies: what a strategy is shown, and what it answers.

    answer = STRATEGIES[spec.evolution.strategy](situation, random)

A strategy decides whether the next agent is fresh or a child, and of which candidate. It does not draw the
hyperparameters of a fresh agent (leaderboard.evolution.fresh does), so that these depend on the seed and the number of
the agent only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from leaderboard.evolution.fresh import Turn, turn_of
from leaderboard.evolution.history import NOTHING, History
from leaderboard.evolution.space import Value, plain
from leaderboard.ranking.board import Board
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


@dataclass(frozen=True)
class Situation:
    """What a strategy is shown when the next agent is generated."""

    spec: TournamentSpec
    """Resolved specification."""
    number: int
    """Position of the new agent in the sequence of agents."""
    board: Board
    """Candidates by rank."""
    agents: Mapping[str, Agent]
    """The agents on the board and those of the history, by id."""
    unfinished_children: Mapping[str, int]
    """By agent id: how many children were handed out and have not finished; agents without any may be missing."""
    history: History = NOTHING
    """The latest agents and their scores; empty for strategies that use the board only."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Algorithms that have left the draw, with the reason; their candidates cannot be parents."""

    @property
    def turn(self) -> Turn:
        """The algorithm of the agent if it is fresh."""
        return turn_of(self.spec, self.number, self.left)

    def values_of(self, candidate: Candidate) -> dict[str, Value]:
        """Returns every hyperparameter of the agent of a candidate."""
        agent = self.agents[candidate.agent_id]
        return {name: plain(value) for name, value in agent.hyperparameters.fields.items()}


@dataclass(frozen=True)
class Fresh:
    """The next agent is fresh."""

    reason: str
    """Why, in one line."""
    algorithm: str = ""
    """Its algorithm, if not that of its number."""
    seat: int | None = None
    """The seat it takes, if the strategy has seats."""
    hyperparameters: Mapping[str, Value] = field(default_factory=dict)
    """Values that replace drawn ones."""


@dataclass(frozen=True)
class Child:
    """The next agent starts from the checkpoint files of a candidate."""

    parent: Candidate
    """A candidate on the board, or the last submission of an agent in the history."""
    hyperparameters: Mapping[str, Value]
    """Every hyperparameter of the child."""
    reason: str
    """Why, in one line."""
    seat: int | None = None
    """The seat it takes, if the strategy has seats."""


Strategy = Callable[[Situation, Random], Fresh | Child]
"""A pure function; the random stream belongs to the new agent."""
