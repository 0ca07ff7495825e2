"""Owns the interface of evolution strategies: what one is shown, and what it answers.

    answer = STRATEGIES[spec.evolution.strategy](situation, random)

A strategy decides who comes next. What a fresh agent looks like is none of its business
(leaderboard.evolution.fresh), or fresh draws would not depend on (seed, number) alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from leaderboard.board import Board
from leaderboard.evolution.space import Value
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
    """The agents on the board, by id."""
    unfinished_children: Mapping[str, int]
    """By agent id: how many of its children are handed out and not finished; agents without any may be missing."""


@dataclass(frozen=True)
class Fresh:
    """The next agent is fresh."""

    reason: str
    """Why, in a line for a person."""


@dataclass(frozen=True)
class Child:
    """The next agent starts from a candidate's training files."""

    parent: Candidate
    """The candidate, one of those on the board."""
    hyperparameters: Mapping[str, Value]
    """Every hyperparameter of the child."""
    reason: str
    """Why, in a line for a person."""


Strategy = Callable[[Situation, Random], Fresh | Child]
"""A pure function; the stream of random numbers is the agent's own."""
