"""Folds the log of a tournament into trials: chains of agents that continue each other unchanged. Pure.

    trials = Trials(spec)
    trials.handed_out(agent)          # for every agent, score and end, in the order of the log
    trials.scored(candidate)
    trials.ended(agent_id, failed=False)

A strategy that reads the whole log extends this class, so that a decision costs as much as the events since the one
before. What it decides may depend on the log only: the same events in the same order give the same state. In a
synchronous tournament the order does not depend on which pod was faster, see `synchronous_log`.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self, overload

from leaderboard.ranking.board import canonical
from leaderboard.ranking.paired import ranked_score
from podrace.leaderboard.v1.leaderboard_pb2 import ORIGIN_CONTINUATION, ORIGIN_FRESH, Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec, TournamentSpec


@dataclass(frozen=True)
class ClockReading:
    """How far a tournament was when an agent was generated. Recorded with the agent, except `last_score_seconds`."""

    running_seconds: float = 0.0
    """How long it had been running, without pauses."""
    environment_steps: int = 0
    """Environment steps of all agents together."""
    share: float = 0.0
    """Share of the objective that was used up, by time or by steps, whichever is more; 0 without such an objective."""
    last_score_seconds: float = 0.0
    """Time that the objective of that moment reserves for the last score before the end. Not recorded: it may only
    decide that an agent is not generated, so that a replay, which does not know it, generates each recorded agent."""

    @classmethod
    def of(cls, agent: Agent) -> Self:
        """Returns what was recorded with an agent."""
        seconds = agent.running_duration.ToNanoseconds() / 1e9
        return cls(seconds, agent.tournament_environment_steps, agent.objective_share)

    @classmethod
    def at(cls, objective: ObjectiveSpec, running_seconds: float, environment_steps: int) -> Self:
        """Returns a reading, with the share of the objective that is used up."""
        shares, reserved = [0.0], 0.0
        if objective.HasField("wall_clock_duration"):
            clock = objective.wall_clock_duration.ToNanoseconds()
            shares.append(running_seconds * 1e9 / max(1, clock))
            reserved = last_score_seconds(clock / 1e9)
        if objective.HasField("environment_steps"):
            shares.append(environment_steps / max(1, objective.environment_steps))
        return cls(running_seconds, environment_steps, min(1.0, max(shares)), reserved)

    def left(self, elapsed: float) -> float:
        """Returns how much of a quantity is left, of which `elapsed` was used up; infinite if the end is unknown."""
        return elapsed * (1 - self.share) / self.share if self.share > 0 else math.inf


LAST_SCORE_SECONDS = 2.0
"""Time that is left to score and publish the last policy before a tournament ends."""
LAST_SCORE_SHARE = 0.1
"""The same as a share of the wall clock, for tournaments of a few seconds."""


def last_score_seconds(wall_clock_seconds: float) -> float:
    """Returns the time that is reserved for the last score before a tournament ends by its wall clock."""
    return min(LAST_SCORE_SECONDS, LAST_SCORE_SHARE * wall_clock_seconds)


def no_time_is_left(objective: ObjectiveSpec, running_seconds: float) -> bool:
    """Whether a tournament ends by its wall clock before a further agent could train and be scored."""
    if not objective.HasField("wall_clock_duration"):
        return False
    clock = objective.wall_clock_duration.ToNanoseconds() / 1e9
    return clock - running_seconds < last_score_seconds(clock)


NEWEST_SCORES = 5
"""Scores of a trial that are kept at least."""
LAST_FAILURE = 2
"""Agents in a row that fail, scored or not, after which a trial has failed. One may be an accident."""
KEPT_PART = 4
"""Part of all scores that is kept, as a divisor: the newest is compared with none before the last quarter."""

BEGIN = ClockReading()
"""The reading of a tournament that has just begun."""


class KeptScores(Sequence[Candidate]):
    """Scores of a trial by arrival.

    Only the newest is a message. The others, which are rarely compared, are bytes: a message of 16 episodes takes 1.2
    KB, its bytes 0.3 KB, and a tournament of days has 100,000 scores.
    """

    def __init__(self) -> None:
        self._older: list[bytes] = []
        self._newest: Candidate | None = None

    def add(self, candidate: Candidate, kept: int) -> None:
        """Adds the newest score, and drops the oldest so that `kept` are left."""
        if self._newest is not None:
            self._older.append(self._newest.SerializeToString())
        self._newest = candidate
        del self._older[: max(0, len(self) - kept)]

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> list[Candidate]: ...
    def __getitem__(self, index: int | slice) -> Candidate | list[Candidate]:
        if isinstance(index, slice):
            return [self[position] for position in range(len(self))[index]]
        position = range(len(self))[index]
        if position < len(self._older) or self._newest is None:
            return Candidate.FromString(self._older[position])
        return self._newest

    def __len__(self) -> int:
        return len(self._older) + (self._newest is not None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptScores) and list(self) == list(other)


class KeptAgents(Sequence[Agent]):
    """Agents of a trial by number, as bytes: a message of an agent takes 7 KB, its bytes 1 KB."""

    def __init__(self) -> None:
        self._all: list[bytes] = []

    def add(self, agent: Agent) -> None:
        """Adds the newest agent."""
        self._all.append(agent.SerializeToString())

    @overload
    def __getitem__(self, index: int) -> Agent: ...
    @overload
    def __getitem__(self, index: slice) -> list[Agent]: ...
    def __getitem__(self, index: int | slice) -> Agent | list[Agent]:
        found = self._all[index]
        return Agent.FromString(found) if isinstance(found, bytes) else list(map(Agent.FromString, found))

    def __len__(self) -> int:
        return len(self._all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptAgents) and list(self) == list(other)


@dataclass
class Trial:
    """A chain of agents that continue each other unchanged. Written by Trials only."""

    number: int
    """Number of its first agent."""
    algorithm: str
    """Name of its algorithm."""
    forked_from: int | None
    """Number of the trial it started from; None if it is fresh, or started from another tournament."""
    agents: KeptAgents = field(default_factory=KeptAgents)
    """By number."""
    last_agent_id: str = ""
    """Id of the last of its agents."""
    last_on_rung: bool = False
    """Whether the last of its agents was to reach a rung."""
    scores: KeptScores = field(default_factory=KeptScores)
    """By arrival: the newest, a quarter of all. Older ones are not compared with any more."""
    score_count: int = 0
    """Number of all its scores."""
    best: Candidate | None = None
    """The one of all its scores with the highest estimate; None before the first."""
    rung: int = 0
    """Rung that it climbs to, or that it has reached if it is not in training."""
    at_rung: list[float] = field(default_factory=list)
    """Its estimate at the end of each rung that it has reached."""
    training: bool = False
    """Whether one of its agents was handed out and has not ended."""
    ended: str = ""
    """Why it must not continue, in one line: it failed or was stopped; empty if it may."""
    failures: int = 0
    """Agents in a row that failed, or ended without a score; reset when an agent follows one that did not."""
    failed_agent: str = ""
    """The last of its agents that failed or ended without a score; empty: none."""
    earlier_steps: int = 0
    """Environment steps of its agents before the current one."""
    assigned_steps: int = 0
    """Environment steps of the assignment of its last agent; 0: they are not limited."""
    earlier_core_seconds: float = 0.0
    """Compute of its agents before the current one."""
    wall_seconds: float = 0.0
    """Wall-clock time of its training until its last score. Only if pods may grow, see `RungTrials`."""
    step_seconds: float = 0.0
    """Wall-clock time of one environment step before its last score. Only if pods may grow."""

    @property
    def fresh(self) -> bool:
        """Whether its first agent had new networks."""
        return self.forked_from is None

    @property
    def newest(self) -> Candidate:
        """Its last scored checkpoint; it must have one."""
        return self.scores[-1]

    @property
    def estimate(self) -> float:
        """Its return now, as the board ranks it: the estimate of its newest candidate."""
        return ranked_score(self.newest)

    @property
    def environment_steps(self) -> int:
        """Its own environment steps, without those of the trial it was forked from."""
        current = self._current
        return self.earlier_steps + (current.agent_environment_steps if current else 0)

    @property
    def completed_assignment(self) -> bool:
        """Whether its last agent was scored at the end of its assignment."""
        return 0 < self.assigned_steps <= self.environment_steps - self.earlier_steps

    @property
    def core_seconds(self) -> float:
        """Compute reserved for it: processor cores times wall-clock seconds."""
        current = self._current
        return self.earlier_core_seconds + (current.core_seconds if current else 0.0)

    @property
    def climbs(self) -> bool:
        """Whether its last agent was to reach a rung that it has not reached."""
        return self.last_on_rung and len(self.at_rung) == self.rung

    @property
    def _current(self) -> Candidate | None:
        """The last score of its last agent; None while that agent has none."""
        own = self.scores and self.scores[-1].agent_id == self.last_agent_id
        return self.scores[-1] if own else None

    def add_score(self, candidate: Candidate) -> None:
        """Adds the newest score, and drops the oldest that is not compared any more."""
        self.score_count += 1
        self.scores.add(candidate, max(NEWEST_SCORES, self.score_count // KEPT_PART + 1))
        if self.best is None or ranked_score(candidate) > ranked_score(self.best):
            self.best = candidate

    def add_failure(self, why: str) -> None:
        """Records that its last agent failed; it continues from its newest score unless the agent before failed too."""
        if self.failed_agent == self.last_agent_id:
            return
        self.failed_agent = self.last_agent_id
        self.failures += 1
        if not self.scores or self.failures >= LAST_FAILURE:
            self.ended = self.ended or why

    def hand_out(self, agent: Agent) -> None:
        """Adds the agent that continues the trial."""
        self.earlier_steps, self.earlier_core_seconds = self.environment_steps, self.core_seconds
        # Not at its end: a failure may be recorded after the end. A score does not count: an agent that is always
        # scored before it fails would be retried until the orchestrator fails the tournament.
        if self.agents and self.last_agent_id != self.failed_agent:
            self.failures = 0
        self.agents.add(agent)
        self.last_agent_id, self.last_on_rung, self.training = agent.agent_id, agent.HasField("rung"), True
        self.assigned_steps = agent.assignment_environment_steps
        if agent.HasField("rung"):
            self.rung = agent.rung


class Trials:
    """The trials of a tournament, after some part of its log.

    Attributes:
        spec: Resolved specification.
        by_number: The trials by number.
    """

    def __init__(self, spec: TournamentSpec) -> None:
        self.spec = spec
        self.by_number: dict[int, Trial] = {}
        self._by_agent: dict[str, Trial] = {}
        self._stops: dict[str, str] = {}

    def of(self, agent_id: str) -> Trial | None:
        """Returns the trial of an agent; None if the agent is not of this tournament."""
        return self._by_agent.get(agent_id)

    def handed_out(self, agent: Agent) -> Trial:
        """Records that an agent was generated for a pod."""
        trial = self._trial_for(agent)
        trial.hand_out(agent)
        self._by_agent[agent.agent_id] = trial
        return trial

    def scored(self, candidate: Candidate) -> Trial:
        """Records a submission of an agent that was handed out."""
        trial = self._by_agent[candidate.agent_id]
        trial.add_score(candidate)
        return trial

    def ended(self, agent_id: str, *, failed: bool) -> Trial | None:
        """Records that an agent has finished, was stopped, or has failed; None if it was recorded before."""
        trial, stopped = self._by_agent[agent_id], self._stops.pop(agent_id, "")
        if trial.last_agent_id != agent_id:
            return None
        if failed:
            trial.add_failure("failed")
        if not trial.training:
            return None
        trial.training = False
        if not trial.scores or trial.newest.agent_id != agent_id:
            trial.add_failure("ended without a score")
        if stopped:
            trial.ended = trial.ended or f"stopped: {stopped}"
        return trial

    def before_ends(self, agent_ids: Iterable[str]) -> Callable[[], None]:
        """Returns a function that undoes the ends of these agents if nothing else was recorded since."""
        trials = {trial.number: trial for trial in map(self.of, agent_ids) if trial is not None}.values()
        kept = [(trial, {**vars(trial), "at_rung": list(trial.at_rung)}) for trial in trials]
        stops = dict(self._stops)

        def undo() -> None:
            for trial, state in kept:
                vars(trial).update(state)
            self._stops = stops

        return undo

    @property
    def stops(self) -> dict[str, str]:
        """The agents in training that must be stopped early, by id, with the reason in one line."""
        return dict(self._stops)

    def in_training(self) -> list[Trial]:
        """Returns the trials in training, by number."""
        return [trial for _, trial in sorted(self.by_number.items()) if trial.training]

    def fresh_agents(self, algorithm: str) -> int:
        """Returns how many trials of an algorithm have begun with a fresh agent."""
        return sum(trial.fresh and trial.algorithm == algorithm for trial in self.by_number.values())

    def started(self, algorithm: str) -> int:
        """Returns the ordinal of the next fresh agent of an algorithm: how many began before it, from 0."""
        return self.fresh_agents(algorithm)

    def _trial_for(self, agent: Agent) -> Trial:
        parent = self._by_agent.get(agent.parent_agent_ids[0]) if agent.parent_agent_ids else None
        if parent is not None and agent.origin == ORIGIN_CONTINUATION:
            return parent
        forked_from = parent.number if parent is not None and agent.origin != ORIGIN_FRESH else None
        trial = Trial(agent.number, agent.algorithm, forked_from)
        self.by_number[trial.number] = trial
        return trial


def synchronous_log(
    trials: Trials,
    agents: Iterable[Agent],
    submissions: Iterable[Candidate],
    failed: Collection[str],
    *,
    begin: int,
    round_size: int,
) -> None:
    """Folds the log that the generator of a synchronous tournament sees into trials without any event.

    Rounds follow each other. In a round, all agents are handed out by number, then their scores arrive in canonical
    order, then they end. The current round has been handed out and has no scores yet.

    Args:
        trials: Receives the events.
        agents: The agents with lower numbers than the new one.
        submissions: Submissions of the tournament; those of the current round are ignored.
        failed: Ids of agents that have failed.
        begin: Number of the first agent of the current round.
        round_size: Agents of a round.
    """
    by_round: dict[int, list[Agent]] = {}
    for agent in sorted(agents, key=lambda one: one.number):
        by_round.setdefault(agent.number // round_size, []).append(agent)
    scores: dict[int, list[Candidate]] = {}
    for candidate in canonical(submissions):
        scores.setdefault(candidate.agent_number // round_size, []).append(candidate)
    for number, members in sorted(by_round.items()):
        for agent in members:
            trials.handed_out(agent)
        if number * round_size >= begin:
            continue
        for candidate in scores.get(number, []):
            trials.scored(candidate)
        for agent in members:
            trials.ended(agent.agent_id, failed=agent.agent_id in failed)
