"""Holds what a leaderboard records of one simulated race, and decides with the leaderboard's own functions.

This module alone calls the leaderboard. Messages have the fields that a real tournament would give them.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from leaderboard.evolution import agents
from leaderboard.evolution.history import NOTHING, History, history_of
from leaderboard.evolution.incumbent.race import IncumbentRace
from leaderboard.evolution.strategy import NoWork
from leaderboard.evolution.trials import ClockReading, Trial, Trials
from leaderboard.ranking.board import Board, judge
from leaderboard.ranking.champion_selection import name_champion
from leaderboard.ranking.contenders import newest_by_trial
from leaderboard.ranking.evaluation_plan import anchors_wanted
from leaderboard.ranking.score_history import ScoreHistory, add_estimate
from podrace.checkpoint.v1.checkpoint_pb2 import EpochScore, Evaluation
from podrace.leaderboard.v1.leaderboard_pb2 import (
    ORIGIN_CONTINUATION,
    Agent,
    Candidate,
    Contender,
    FreshEvaluation,
    NameChampionResponse,
)
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

TOURNAMENT_ID = "race"
NO_RETURNS: Mapping[int, NDArray[np.float64]] = {}


class Records:
    """Generates the agents of one race, and judges their scores.

    records = Records(spec)
    agent = records.generate(pod="pod-1", seconds=0.0)
    candidate = records.submit(agent, returns, steps=1000, epoch=0)
    records.finish(agent)
    """

    def __init__(self, spec: TournamentSpec, *, common_episodes: bool = True) -> None:
        """Begins without agents.

        Args:
            spec: Resolved specification.
            common_episodes: Whether returns of single episodes are submitted, so that agents are compared in pairs.
        """
        self.spec = spec
        self.agents: dict[str, Agent] = {}
        self.board: Board = ()
        self.submissions: list[Candidate] = []
        self.environment_steps = 0
        self._depths: dict[str, int] = {}
        self._unfinished: dict[str, Agent] = {}
        self._steps: dict[str, int] = {}
        self._needs_history = agents.needs_history(spec)
        self._trials = agents.trials_of(spec)
        self._scores, self._common_episodes = ScoreHistory(), common_episodes

    def generate(self, pod: str, seconds: float) -> Agent | None:
        """Returns the next agent; None if the pod gets no work now.

        Args:
            pod: Id of the pod that asks.
            seconds: Running time of the tournament.
        """
        clock = ClockReading.at(self.spec.objective, seconds, self.environment_steps)
        number = len(self.agents)
        children = Counter(parent for agent in self._unfinished.values() for parent in agent.parent_agent_ids)
        made = agents.make(
            TOURNAMENT_ID,
            self.spec,
            number,
            self.board,
            self._ranked_agents(),
            children,
            self._history(),
            trials=self._trials,
            clock=clock,
        )
        if isinstance(made, NoWork):
            return None
        agent, depth = made
        agent.pod_id = pod
        agent.create_time.FromNanoseconds(int(seconds * 1e9))
        self.agents[agent.agent_id], self._depths[agent.agent_id] = agent, depth
        self._unfinished[agent.agent_id] = agent
        if self._trials is not None:
            self._trials.handed_out(agent)
        return agent

    def other_epochs(self, agent: Agent, epoch: int) -> list[int]:
        """Returns in which other evaluation epochs the next policy of an agent is scored."""
        return anchors_wanted(self.board, self._scores, agent, epoch) if self._common_episodes else []

    def submit(
        self,
        agent: Agent,
        returns: NDArray[np.float64],
        *,
        steps: int,
        seconds: float,
        epoch: int,
        now: float = 0.0,
        others: Mapping[int, NDArray[np.float64]] = NO_RETURNS,
    ) -> Candidate:
        """Judges a score of an agent.

        Args:
            agent: The agent.
            returns: Returns of the evaluation episodes, in order.
            steps: Environment steps of the agent itself.
            seconds: Training time of the agent itself, on one core.
            epoch: Evaluation epoch.
            now: Running time of the tournament.
            others: The returns in other evaluation epochs.
        """
        self.environment_steps += steps - self._steps.get(agent.agent_id, 0)
        self._steps[agent.agent_id] = steps
        candidate = Candidate(
            candidate_id=f"c{len(self.submissions)}",
            tournament_id=TOURNAMENT_ID,
            agent_id=agent.agent_id,
            algorithm=agent.algorithm,
            score=float(returns.mean()),
            standard_error=_error(returns),
            episodes=len(returns),
            environment_steps=self._inherited_steps(agent) + steps,
            agent_environment_steps=steps,
            parent_agent_ids=agent.parent_agent_ids,
            core_seconds=seconds,
            agent_number=agent.number,
            depth=self._depths[agent.agent_id],
            sequence=len(self.submissions) + 1,
            episode_returns=returns.tolist() if self._common_episodes else (),
            evaluation_epoch=epoch if self._common_episodes else None,
            other_epochs=[
                EpochScore(epoch=one, mean_return=float(played.mean()), standard_error=_error(played))
                for one, played in others.items()
            ],
            trial=agents.trial_of(agent),
        )
        candidate.submit_time.FromNanoseconds(int(now * 1e9))
        add_estimate(candidate, self._scores)
        self._scores.add(candidate)
        self.submissions.append(candidate)
        if self._trials is not None:
            self._trials.scored(candidate)
        self.board = judge(self.board, candidate, self.spec.evolution.board_capacity).board
        return candidate

    def finish(self, agent: Agent) -> None:
        """Records that an agent has ended."""
        del self._unfinished[agent.agent_id]
        if self._trials is not None:
            self._trials.ended(agent.agent_id, failed=False)

    @property
    def stops(self) -> Collection[str]:
        """The agents in training that the strategy stops early, by id."""
        return self._trials.stops if self._trials is not None else ()

    @property
    def trials(self) -> Trials | None:
        """The log so far, folded; None if the strategy has no fold."""
        return self._trials

    @property
    def leading_trial(self) -> Trial | None:
        """The incumbent of a race; None for other strategies."""
        return self._trials.incumbent if isinstance(self._trials, IncumbentRace) else None

    def trial_number(self, agent: Agent) -> int:
        """Returns the number of the trial of an agent."""
        return agents.trial_of(agent)

    def continues(self, agent: Agent) -> bool:
        """Whether an agent continues another one unchanged, instead of being its child."""
        return agent.origin == ORIGIN_CONTINUATION

    def champion(self, fresh: Sequence[tuple[Contender, NDArray[np.float64]]]) -> NameChampionResponse:
        """Selects the champion from the returns of fresh episodes; lists what must be evaluated next."""
        newest = newest_by_trial(self.submissions)
        return name_champion(self.spec, self.board, newest, [_fresh_evaluation(*one) for one in fresh])

    def _ranked_agents(self) -> dict[str, Agent]:
        return {candidate.agent_id: self.agents[candidate.agent_id] for candidate in self.board}

    def _history(self) -> History:
        if not self._needs_history:
            return NOTHING
        return history_of(
            self.spec, len(self.agents), self.agents.values(), self.submissions, set(self._unfinished), ()
        )

    def _inherited_steps(self, agent: Agent) -> int:
        if not agent.HasField("starting_checkpoint"):
            return 0
        return self.submissions[int(agent.starting_checkpoint.manifest_digest[1:])].environment_steps


def _error(returns: NDArray[np.float64]) -> float:
    return float(returns.std(ddof=1)) / math.sqrt(len(returns))


def _fresh_evaluation(contender: Contender, returns: NDArray[np.float64]) -> FreshEvaluation:
    evaluation = Evaluation(
        mean_return=float(returns.mean()), variance=float(returns.var(ddof=1)), episodes=len(returns)
    )
    return FreshEvaluation(candidate_id=contender.candidate.candidate_id, evaluation=evaluation, seed=contender.seed)
