"""Defines the interface of evolution strategies: the input of a strategy, and its answer.

    answer = STRATEGIES[spec.evolution.strategy].propose(situation, random)

Every strategy obeys these rules; tests/unit/leaderboard/evolution/test_strategies.py checks them:
- The same situation and random stream give the same answer, in whatever order the history lists agents.
- The first agents are fresh: `initial_agents`, or `population_size` for a strategy that has this setting, or one for
  each algorithm for a strategy with founders.
  leaderboard.evolution.ancestor relies on it, because it lets these agents start from the ancestor instead.
- A parent is a candidate of the board, of the history or of the trials, and its algorithm has not been eliminated.
- A child has every hyperparameter of its algorithm within its range, and the structural ones of its parent.
- Every answer has a reason in one line.
- In a synchronous tournament every number gets an agent: a round without one of its agents would never be complete.

A strategy decides whether the next agent is fresh, a child, or continues another one, and of which candidate. It does
not draw the hyperparameters of a fresh agent (leaderboard.evolution.fresh does), so that these depend on the seed and
the number of the agent only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from leaderboard.evolution.fresh import Turn, turn_of
from leaderboard.evolution.history import NOTHING, History
from leaderboard.evolution.space import Value, plain
from leaderboard.evolution.trials import BEGIN, ClockReading, Trials
from leaderboard.ranking.board import Board
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


@dataclass(frozen=True)
class Situation:
    """Input of a strategy when the next agent is generated."""

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
    """The latest agents and their scores. Only a strategy that declares `reads_history` may use it."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Algorithms that have been eliminated, with the reason; their candidates cannot be parents."""
    trials: Trials | None = None
    """The whole log, folded. Only for a strategy that declares a `fold`, whose class it is."""
    clock: ClockReading = BEGIN
    """How far the tournament is."""

    @property
    def possible_parents(self) -> Board:
        """The candidates on the board whose algorithm has not been eliminated. Others must not become parents."""
        return tuple(candidate for candidate in self.board if candidate.algorithm not in self.left)

    def may_have_another_child(self, candidate: Candidate) -> bool:
        """Returns whether an agent has fewer unfinished children than `maximum_unfinished_children`.

        Agents do not wait for each other. Without this limit, many agents that are generated while one candidate is the
        best would all be its children.
        """
        unfinished = self.unfinished_children.get(candidate.agent_id, 0)
        return unfinished < self.spec.evolution.maximum_unfinished_children

    @property
    def turn(self) -> Turn:
        """The algorithm of the agent if it is fresh."""
        return turn_of(self.spec, self.number, self.left)

    def agent_of(self, candidate: Candidate) -> Agent:
        """Returns the agent of a candidate of the board, of the history or of the trials."""
        trial = self.trials.of(candidate.agent_id) if self.trials is not None else None
        if trial is None:
            return self.agents[candidate.agent_id]
        return next(agent for agent in reversed(trial.agents) if agent.agent_id == candidate.agent_id)

    def values_of(self, candidate: Candidate) -> dict[str, Value]:
        """Returns every hyperparameter of the agent of a candidate."""
        agent = self.agent_of(candidate)
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
    values_as_specified: bool = False
    """Whether it has the values of the specification, whatever its number; otherwise only the first agent of an
    algorithm by number has them."""
    environment_steps: int = 0
    """Steps that it trains; 0: those of the specification."""
    rung: int | None = None
    """The rung that it climbs to, if the strategy has rungs."""


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
    environment_steps: int = 0
    """Steps that it trains; 0: those of the specification."""
    rung: int | None = None
    """The rung that it climbs to, if the strategy has rungs."""


@dataclass(frozen=True)
class Continue:
    """The next agent continues a trial unchanged, from its newest checkpoint: same hyperparameters, same seed."""

    parent: Candidate
    """The newest candidate of the trial."""
    reason: str
    """Why, in one line."""
    environment_steps: int
    """Steps that it trains further."""
    rung: int | None = None
    """The rung that it climbs to, if it was promoted."""
    seat: int | None = None
    """The seat it takes, if the strategy has seats."""


@dataclass(frozen=True)
class NoWork:
    """The pod gets nothing now; it asks again later."""

    reason: str
    """Why, in one line."""


Answer = Fresh | Child | Continue | NoWork

Propose = Callable[[Situation, Random], Answer]
"""A pure function; the random stream belongs to the new agent."""


@dataclass(frozen=True)
class Strategy:
    """An entry of the registry: a strategy and what the generator must know to call it."""

    propose: Propose
    """Decides what the next agent is."""
    reads_history: bool = False
    """Whether it uses `Situation.history`, which takes time to read."""
    requires: str = ""
    """Optional module that it imports; the extra that installs the module has the name of the strategy."""
    fold: Callable[[TournamentSpec], Trials] | None = None
    """State that it keeps of the whole log, see leaderboard.evolution.trials; None if it needs none."""
