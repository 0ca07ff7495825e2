"""A log that a test writes down event by event, as a strategy with a fold sees it."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from leaderboard.evolution import STRATEGIES
from leaderboard.evolution.agents import trials_of
from leaderboard.evolution.space import declared_values
from leaderboard.evolution.strategy import Answer, Child, Continue, Fresh, Situation
from leaderboard.evolution.trials import ClockReading, last_score_seconds
from leaderboard.ranking.score_history import ScoreHistory, add_estimate
from podrace.leaderboard.v1.leaderboard_pb2 import (
    ORIGIN_CONTINUATION,
    ORIGIN_FRESH,
    ORIGIN_MUTATION,
    Agent,
    Candidate,
)
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

TOURNAMENT = "pendulum-abc123"
QUANTUM = 1000
"""Environment steps between two scores."""
SECONDS = 10.0
"""Pod seconds that a quantum takes."""


@dataclass
class Log:
    """Hands out agents, scores them and ends them; a quantum of training is one score."""

    spec: TournamentSpec
    race: Any = field(init=False)
    """The fold of the strategy."""
    agents: list[Agent] = field(default_factory=list)
    seconds: float = 0.0
    horizon: float = 1000.0
    sequence: int = 0
    trained: dict[str, int] = field(default_factory=dict)
    cores: float = 0.0
    """Cores of the pods; 0: those of the specification."""
    core_seconds: dict[str, float] = field(default_factory=dict)
    history: ScoreHistory = field(default_factory=ScoreHistory)

    def __post_init__(self) -> None:
        self.race = trials_of(self.spec)

    @property
    def clock(self) -> ClockReading:
        by_clock = self.spec.objective.HasField("wall_clock_duration")
        reserved = last_score_seconds(self.horizon) if by_clock else 0.0
        return ClockReading(self.seconds, 0, min(1.0, self.seconds / self.horizon), reserved)

    def fresh(self, algorithm: str = "ppo", rung: int | None = 0, **values: Any) -> Agent:
        agent = self._agent(algorithm, ORIGIN_FRESH, values)
        if rung is not None:
            agent.rung = rung
        return self._hand_out(agent)

    def fork(self, parent: Agent, steps: int = 0, **values: Any) -> Agent:
        agent = self._agent(parent.algorithm, ORIGIN_MUTATION, values)
        agent.rung, agent.assignment_environment_steps = 0, steps
        agent.parent_agent_ids.append(parent.agent_id)
        return self._hand_out(agent)

    def again(self, parent: Agent, rung: int | None = None, steps: int | None = None) -> Agent:
        agent = self._agent(parent.algorithm, ORIGIN_CONTINUATION, {})
        agent.trial = parent.trial
        agent.parent_agent_ids.append(parent.agent_id)
        if rung is not None:
            agent.rung = rung
        if steps is not None:
            agent.assignment_environment_steps = steps
        return self._hand_out(agent)

    def score(self, agent: Agent, score: float, error: float = 1.0, **fields: Any) -> Candidate:
        self.sequence += 1
        quanta = self.trained[agent.agent_id] = self.trained.get(agent.agent_id, 0) + 1
        cores = self.cores or self.spec.pod.cores
        compute = self.core_seconds[agent.agent_id] = self.core_seconds.get(agent.agent_id, 0.0) + SECONDS * cores
        candidate = Candidate(
            candidate_id=f"c{self.sequence}",
            tournament_id=TOURNAMENT,
            agent_id=agent.agent_id,
            algorithm=agent.algorithm,
            score=score,
            standard_error=error,
            agent_environment_steps=quanta * QUANTUM,
            environment_steps=fields.pop("environment_steps", quanta * QUANTUM),
            core_seconds=compute,
            agent_number=agent.number,
            trial=agent.trial,
            sequence=self.sequence,
            **fields,
        )
        candidate.submit_time.FromNanoseconds(round(self.seconds * 1e9))
        add_estimate(candidate, self.history)
        self.history.add(candidate)
        self.race.scored(candidate)
        return candidate

    def end(self, *agents: Agent, failed: bool = False) -> None:
        for agent in agents:
            self.race.ended(agent.agent_id, failed=failed)

    def finished(self, agent: Agent, *scores: float, error: float = 1.0) -> Agent:
        """Scores an agent and ends it."""
        for score in scores:
            self.score(agent, score, error)
        self.end(agent)
        return agent

    def next(self, seed: int = 0, left: dict[str, str] | None = None) -> Answer:
        situation = Situation(
            self.spec, len(self.agents), (), {}, {}, left=left or {}, trials=self.race, clock=self.clock
        )
        return STRATEGIES[self.spec.evolution.strategy].propose(situation, Random(seed))

    def kinds(self, seeds: int = 60) -> list[str]:
        """What the answers are for many random streams."""
        return [kind_of(self.next(seed)) for seed in range(seeds)]

    def _agent(self, algorithm: str, origin: Any, values: dict[str, Any]) -> Agent:
        number = len(self.agents)
        agent = Agent(
            agent_id=f"{TOURNAMENT}-a{number}", number=number, trial=number, algorithm=algorithm, origin=origin
        )
        agent.hyperparameters.update(declared_values(self.spec.algorithms[algorithm]) | values)
        agent.objective_share = self.clock.share
        agent.create_time.FromNanoseconds(round(self.seconds * 1e9))
        agent.running_duration.FromNanoseconds(round(self.seconds * 1e9))
        return agent

    def _hand_out(self, agent: Agent) -> Agent:
        self.agents.append(agent)
        self.race.handed_out(agent)
        return agent


def kind_of(answer: Answer) -> str:
    if isinstance(answer, Fresh):
        return "fresh"
    if isinstance(answer, Child):
        return "fork"
    return "continue" if isinstance(answer, Continue) else "no work"
