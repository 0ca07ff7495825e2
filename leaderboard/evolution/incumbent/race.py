"""Keeps the state of a race for the strategy `incumbent`: which trial leads, the rungs, early stops. Pure.

Every score of a challenger is compared with the incumbent, newest against newest:
    lead      the difference over common episodes, or else of the estimates, in its standard errors
    takeover  the lead exceeds `takeover_errors` for `takeover_scores` successive scores
    stop      a fork is behind by more than `stop_errors`; or a fresh challenger above the first rung is that far below
              the median of the fresh ones that have reached the rung before its own. Forks have the weights of the
              incumbent, so nearly all fresh challengers would be below a median that includes them
The incumbent, a founder within its share and the only trial of an algorithm are never stopped. Nor is an agent at the
end of its assignment, or, on its first rung, a fork that must fill its replay memory first.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable

from leaderboard.evolution.rungs import RungTrials, time_taken_by
from leaderboard.evolution.trials import BEGIN, ClockReading, Trial
from leaderboard.ranking.board import named
from leaderboard.ranking.paired import difference
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

SMALLEST_PEER_GROUP = 4
"""Fresh trials that must have reached a rung before their median stops others."""
SHORTEST_FORK_QUANTA = 2
"""Quanta of its own training after which a fork may be stopped."""
WARMUP = "warmup_steps"
"""Hyperparameter of off-policy algorithms: environment steps in the replay memory before the first update."""


class IncumbentRace(RungTrials):
    """The trials of a tournament, and which one leads.

    Attributes:
        founders: Number of the first trial of each algorithm.
        clock: Reading of the clock when the last agent was handed out.
        incumbent_scores: Number of scores of the trials that led, each while it led.
        incumbent_steps: Environment steps of the trials that led, each while it led.
    """

    def __init__(self, spec: TournamentSpec) -> None:
        super().__init__(spec)
        self.founders: dict[str, int] = {}
        self.clock = BEGIN
        self.incumbent_scores = 0
        self.incumbent_steps = 0
        self._lost_founders: Counter[str] = Counter()
        self._cold: set[int] = set()
        self._incumbent: int | None = None
        self._leads: dict[int, int] = {}

    @property
    def incumbent(self) -> Trial | None:
        """The trial that leads; None before the first agent."""
        return None if self._incumbent is None else self.by_number[self._incumbent]

    def handed_out(self, agent: Agent) -> Trial:
        """Records that an agent was generated for a pod."""
        trial = super().handed_out(agent)
        self.clock = ClockReading.of(agent)
        if trial.fresh and self.lacks_founder(trial.algorithm):
            self._lost_founders[trial.algorithm] += trial.algorithm in self.founders
            self.founders[trial.algorithm] = trial.number
        if agent.number == trial.number and self._begins_cold(trial, agent):
            self._cold.add(trial.number)
        if self._incumbent is None:
            self._incumbent = trial.number
        return trial

    def scored(self, candidate: Candidate) -> Trial:
        """Records a submission, and decides whether its trial takes over or is stopped."""
        earlier_steps = self._by_agent[candidate.agent_id].environment_steps
        trial = super().scored(candidate)
        incumbent = self.incumbent
        if trial is incumbent:
            self.incumbent_scores += 1
            self.incumbent_steps += trial.environment_steps - earlier_steps
        if incumbent is None or trial is incumbent or not incumbent.scores or trial.ended:
            return trial
        compared = difference(trial.newest, incumbent.newest)
        lead, error = compared.value, compared.error
        leads = lead > self.spec.evolution.takeover_errors * error
        self._leads[trial.number] = self._leads.get(trial.number, 0) + 1 if leads else 0
        if self._leads[trial.number] >= self.spec.evolution.takeover_scores:
            self._take_over(trial)
        elif trial.training and not trial.completed_assignment and (reason := self._why_stopped(trial, lead, error)):
            self._stops[candidate.agent_id] = reason
        return trial

    def ended(self, agent_id: str, *, failed: bool) -> Trial | None:
        """Records that an agent has ended; if the incumbent must not continue, the best of the others leads."""
        trial = super().ended(agent_id, failed=failed)
        if trial is not None and trial.ended and trial is self.incumbent:
            leader = self.best()
            self._incumbent = None if leader is None else leader.number
            if leader is not None:
                self._stops.pop(leader.last_agent_id, None)
        return trial

    def before_ends(self, agent_ids: Iterable[str]) -> Callable[[], None]:
        """Returns a function that undoes the ends of these agents, see Trials."""
        undo_trials, incumbent = super().before_ends(agent_ids), self._incumbent

        def undo() -> None:
            undo_trials()
            self._incumbent = incumbent

        return undo

    def founder_time_left(self, trial: Trial, clock: ClockReading) -> bool:
        """Whether a founder has had less than its share of all time; if the end is unknown, of the time so far."""
        share = self.spec.evolution.founder_share / max(1, len(self.founders))
        whole = self.elapsed(clock) + (self.time_left(clock) if clock.share > 0 else 0.0)
        return self.duration_of(trial) < share * whole

    def challenged_share(self, clock: ClockReading) -> float:
        """Returns which share of the time for challengers is used up: that of the objective if pods do not grow.

        While a grown pod of the incumbent has all cores, challengers have no time.
        """
        incumbent, elapsed = self.incumbent, self.elapsed(clock)
        if not self.grows or incumbent is None or clock.share == 0 or elapsed <= 0:
            return clock.share
        everything = sum(self.time_taken(clock).values())
        pods = max(2, round(everything / elapsed))
        taken = everything - time_taken_by(incumbent, self, clock)
        return min(1.0, clock.share * taken / (elapsed * (pods - 1)))

    def wants_founder_seed(self, algorithm: str) -> bool:
        """Returns whether the next fresh agent of an algorithm has the values of the specification, as its founder."""
        evolution, starts = self.spec.evolution, len(self.spec.algorithms[algorithm].starts)
        wanted = max(1, starts) + evolution.founder_seeds - 1
        return evolution.founder_share > 0 and 0 < self.started(algorithm) < wanted

    def started(self, algorithm: str) -> int:
        """Returns how many trials of an algorithm have begun with a fresh agent, without founders that were lost: the
        next agent takes the place of such a founder.
        """
        lost = self._lost_founders[algorithm] + (algorithm in self.founders and self.lacks_founder(algorithm))
        return self.fresh_agents(algorithm) - lost

    def lacks_founder(self, algorithm: str) -> bool:
        """Whether an algorithm has no founder yet, or lost it before it had a score."""
        number = self.founders.get(algorithm)
        return number is None or (bool(self.by_number[number].ended) and not self.by_number[number].scores)

    def _take_over(self, trial: Trial) -> None:
        """Makes a trial the incumbent; the old one becomes a challenger at the rung of its own training."""
        old = self.incumbent
        self._incumbent = trial.number
        self._leads.clear()
        self._stops.pop(trial.last_agent_id, None)
        if old is not None and old.scores:
            evolution = self.spec.evolution
            rungs = math.log(max(1.0, self.quanta(old) / evolution.first_rung)) / math.log(evolution.rung_factor)
            old.rung = int(rungs)
            missing = old.rung + 1 - len(old.at_rung)
            old.at_rung = [*old.at_rung[: old.rung + 1], *[old.estimate] * missing]
            self._changed(old)

    def _why_stopped(self, trial: Trial, lead: float, error: float) -> str:
        """Returns why a challenger in training is stopped; empty if it is not."""
        evolution, incumbent = self.spec.evolution, self.incumbent
        margin = evolution.stop_errors * error
        if not evolution.stop_errors or incumbent is None or self._is_protected(trial):
            return ""
        if not trial.fresh:
            if trial.number in self._cold and not trial.at_rung:
                return ""
            if self.quanta(trial) >= SHORTEST_FORK_QUANTA and lead < -margin:
                return (
                    f"{named(trial.newest)} is behind the incumbent {named(incumbent.newest)} by {-lead:.4g}, more"
                    f" than {evolution.stop_errors:g} standard errors of {error:.2g}"
                )
            return ""
        if trial.rung < 1:
            return ""
        peers = self.ladders.fresh_at(trial.rung - 1)
        middle = peers.median() if len(peers) >= SMALLEST_PEER_GROUP else -math.inf
        if trial.estimate < middle - margin:
            return (
                f"{named(trial.newest)} is more than {evolution.stop_errors:g} standard errors of {error:.2g} below"
                f" {middle:.4g}, the median of the fresh trials on rung {trial.rung - 1}"
            )
        return ""

    def _begins_cold(self, trial: Trial, agent: Agent) -> bool:
        """Whether a fork begins with too little replay memory to be trained at once."""
        parent = None if trial.forked_from is None else self.by_number[trial.forked_from]
        warmup = agent.hyperparameters.fields.get(WARMUP)
        if parent is None or warmup is None or not parent.scores:
            return False
        return parent.newest.replay_steps < warmup.number_value

    def _is_protected(self, trial: Trial) -> bool:
        """Whether a challenger is never stopped early: a founder within its share, or the last of its algorithm."""
        if self.founders.get(trial.algorithm) == trial.number and self.founder_time_left(trial, self.clock):
            return True
        own = bool(trial.scores) and not trial.ended
        return self.ladders.count_able(trial.algorithm) == own
