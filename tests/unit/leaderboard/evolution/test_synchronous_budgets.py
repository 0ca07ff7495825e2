"""A synchronous tournament reaches its step budget, whatever its strategy."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from known_strategies import EVERY, settings_of

from leaderboard.evolution.agents import make, needs_history, visible_board, visible_trials
from leaderboard.evolution.history import NOTHING, history_of
from leaderboard.evolution.strategy import NoWork
from leaderboard.evolution.trials import ClockReading
from orchestrator.decisions.step_budget import share_of_round
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

TOURNAMENT = "pendulum-abc123"
QUANTUM = 1000
"""Environment steps between two scores."""
BUDGET_OF_A_POD = 15_300
"""Not a whole number of quanta: the last round is shorter than the others."""
MOST_ROUNDS = 16


@dataclass
class Rounds:
    """A synchronous tournament in memory: each round is generated as a whole, then its agents train."""

    spec: TournamentSpec
    random: Random
    agents: dict[str, Agent] = field(default_factory=dict)
    submissions: list[Candidate] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    steps: int = 0

    def run(self) -> None:
        """Runs rounds until the step budget is used up."""
        for _ in range(MOST_ROUNDS):
            if self.steps >= self.spec.objective.environment_steps:
                return
            # The orchestrator counts the steps of the earlier rounds when it assigns the agents of a round.
            limit = share_of_round(self.spec.objective, self.steps, self.spec.pool.maximum_pods)
            assert limit is not None
            for agent in [self._generate() for _ in range(self.spec.pool.maximum_pods)]:
                self._train(agent, min(limit, agent.assignment_environment_steps or 2 * QUANTUM))

    def _generate(self) -> Agent:
        number = len(self.agents)
        begin = number - number % self.spec.pool.maximum_pods
        agents, unfinished = self.agents.values(), list(self.agents)[begin:]
        known = needs_history(self.spec)
        made = make(
            TOURNAMENT,
            self.spec,
            number,
            visible_board(self.spec, number, self.submissions),
            self.agents,
            {},
            history_of(self.spec, number, agents, self.submissions, unfinished, self.failed) if known else NOTHING,
            trials=visible_trials(self.spec, number, agents, self.submissions, self.failed),
            clock=ClockReading.at(self.spec.objective, 0.0, self.steps),
        )
        assert not isinstance(made, NoWork), f"agent {number} after {self.steps} steps: {made.reason}"
        self.agents[made[0].agent_id] = made[0]
        return made[0]

    def _train(self, agent: Agent, steps: int) -> None:
        fails = self.random.random() < 0.1
        if fails:
            steps //= 2
            self.failed.add(agent.agent_id)
        ends = [*range(QUANTUM, steps, QUANTUM), *([] if fails else [steps])]
        self.submissions += [self._score(agent, trained, len(self.submissions) + n) for n, trained in enumerate(ends)]
        self.steps += steps

    def _score(self, agent: Agent, trained: int, position: int) -> Candidate:
        return Candidate(
            candidate_id=f"c{position}",
            tournament_id=TOURNAMENT,
            agent_id=agent.agent_id,
            agent_number=agent.number,
            algorithm=agent.algorithm,
            trial=agent.trial,
            score=self.random.gauss(0.0, 10.0) + trained / QUANTUM,
            standard_error=1.0,
            environment_steps=trained,
            agent_environment_steps=trained,
            sequence=position + 1,
        )


@pytest.mark.long
@pytest.mark.parametrize("pods", [1, 2, 5])
@pytest.mark.parametrize("strategy", EVERY)
def test_every_synchronous_tournament_reaches_its_step_budget(
    make_spec: Callable[..., TournamentSpec], strategy: str, pods: int
) -> None:
    for seed in range(4):
        spec = make_spec(
            algorithms={"ppo": {"hyperparameters": {"learning_rate": {"low": 1e-5, "high": 1e-1}}}, "a2c": {}},
            evolution=settings_of(strategy, population_size=4),
            evaluation={"every_environment_steps": QUANTUM, "episodes": 16},
            objective={"environment_steps": pods * BUDGET_OF_A_POD},
            pool={"maximum_pods": pods},
            synchronous=True,
            seed=seed,
        )
        rounds = Rounds(spec, Random(seed))
        rounds.run()
        assert rounds.steps >= spec.objective.environment_steps
