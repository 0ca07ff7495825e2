"""Owns the interface of evolution strategies: what one is shown, and what it answers.

    answer = STRATEGIES[spec.evolution.strategy](situation, random)

A strategy decides who comes next. What a fresh agent looks like is none of its business
(leaderboard.evolution.fresh), or fresh draws would not depend on (seed, number) alone.
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
    """What a strategy is shown when the next agent is due."""

    spec: TournamentSpec
    """Resolved."""
    number: int
    """Position of the agent to be made in the sequence of agents."""
    board: Board
    """Candidates by rank."""
    agents: Mapping[str, Agent]
    """The agents on the board and those of the history, by id."""
    unfinished_children: Mapping[str, int]
    """By agent id: how many of its children are handed out and not finished; agents without any may be missing."""
    history: History = NOTHING
    """The latest agents and their scores; empty for strategies that look at the board alone."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Algorithms that have left the draw, with the reason; their candidates are no parents."""

    @property
    def turn(self) -> Turn:
        """Whose turn it is if the agent is fresh."""
        return turn_of(self.spec, self.number, self.left)

    def values_of(self, candidate: Candidate) -> dict[str, Value]:
        """Every hyperparameter of the agent that earned a candidate."""
        agent = self.agents[candidate.agent_id]
        return {name: plain(value) for name, value in agent.hyperparameters.fields.items()}


@dataclass(frozen=True)
class Fresh:
    """The next agent is fresh."""

    reason: str
    """Why, in a line for a person."""
    algorithm: str = ""
    """Its algorithm, if not the one whose turn its number is."""
    seat: int | None = None
    """The seat it takes, if there are seats."""
    hyperparameters: Mapping[str, Value] = field(default_factory=dict)
    """Values that are not to be drawn."""


@dataclass(frozen=True)
class Child:
    """The next agent starts from a candidate's training files."""

    parent: Candidate
    """The candidate: one of those on the board, or the last submission of an agent in the history."""
    hyperparameters: Mapping[str, Value]
    """Every hyperparameter of the child."""
    reason: str
    """Why, in a line for a person."""
    seat: int | None = None
    """The seat it takes, if there are seats."""


Strategy = Callable[[Situation, Random], Fresh | Child]
"""A pure function; the stream of random numbers is the agent's own."""
