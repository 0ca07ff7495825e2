"""Ranks trials on rungs and promotes the best of each: the part that strategies with rungs share. Pure.

A rung is a length of training, a multiple of the steps between two scores. Each rung is `rung_factor` times as long as
the one before. A trial that has reached a rung waits until it is among the best `1 / rung_factor` of all trials that
have reached this rung. It is then promoted: it continues until it reaches the next one. Pods never wait for a rung to
fill up. There is no highest rung.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, arXiv 1810.05934, algorithm 2.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable

from leaderboard.evolution.fresh import turn_by_pod_time
from leaderboard.evolution.ladders import Ladders, Part
from leaderboard.evolution.strategy import Continue, Situation
from leaderboard.evolution.trials import BEGIN, ClockReading, Trial, Trials
from leaderboard.ranking.board import named
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec, PodSpec, TournamentSpec

TIME_UNIT = 1e-9
"""Unit in which the training of many trials is added up, in the unit of `RungTrials.time_of`."""
SHORTEST_TRIAL_SECONDS = 1.0
"""Pod time that a trial counts as at least: one that failed at once had a pod as well."""


class RungTrials(Trials):
    """The trials of a tournament in which trials climb rungs.

    Training is measured in pod time, the core seconds divided by the cores of a pod: shares are shares of all cores. If
    pods may grow, pod time passes faster than the clock. What is compared with the time that is left is then measured
    in wall-clock time.

    Attributes:
        ladders: The trials in order.
    """

    def __init__(self, spec: TournamentSpec) -> None:
        super().__init__(spec)
        self.ladders = Ladders()
        # Training of the trials that no pod trains: of each, by number, and of all, by algorithm.
        self._taken: dict[int, int] = {}
        self._taken_by_algorithm: Counter[str] = Counter()

    @property
    def quantum(self) -> int:
        """Environment steps between two scores."""
        return max(1, self.spec.evaluation.every_environment_steps)

    def quanta(self, trial: Trial) -> float:
        """Returns the own training of a trial, in multiples of the steps between two scores."""
        return trial.environment_steps / self.quantum

    def handed_out(self, agent: Agent) -> Trial:
        """Records that an agent was generated for a pod."""
        trial = super().handed_out(agent)
        self._changed(trial)
        return trial

    def scored(self, candidate: Candidate) -> Trial:
        """Records a submission, and, if pods may grow, how long its training has taken."""
        trial = super().scored(candidate)
        if self.grows:
            seconds, steps = _since_last_score(trial, self.spec.pod)
            trial.wall_seconds += seconds
            trial.step_seconds = seconds / steps if steps > 0 else trial.step_seconds
        self._changed(trial)
        return trial

    def ended(self, agent_id: str, *, failed: bool) -> Trial | None:
        """Records that an agent has ended; its trial has reached a rung if it trained that long, unless it was stopped
        or failed. A step budget or `assignment.duration` may end an agent earlier.
        """
        current, trial = super().ended(agent_id, failed=failed), self._by_agent[agent_id]
        trained = trial.environment_steps >= rung_steps(self.spec.evolution, self.quantum, trial.rung)
        if current and not trial.ended and trial.failed_agent != agent_id and trial.climbs and trained:
            trial.at_rung.append(trial.estimate)
        self._changed(trial)
        return current

    def before_ends(self, agent_ids: Iterable[str]) -> Callable[[], None]:
        """Returns a function that undoes the ends of these agents, see Trials."""
        agent_ids = list(agent_ids)
        undo_trials, trials = super().before_ends(agent_ids), list(map(self.of, agent_ids))

        def undo() -> None:
            undo_trials()
            for trial in trials:
                if trial is not None:
                    self._changed(trial)

        return undo

    def _changed(self, trial: Trial) -> None:
        """Updates the lists of a trial; must be called after each change of it."""
        self.ladders.update(trial)
        # Sums of whole numbers do not depend on the order of the events.
        taken = 0 if trial.training else round(time_taken_by(trial, self, BEGIN) / TIME_UNIT)
        self._taken_by_algorithm[trial.algorithm] += taken - self._taken.get(trial.number, 0)
        self._taken[trial.number] = taken

    def time_taken(self, clock: ClockReading) -> dict[str, float]:
        """Returns the training of all trials by algorithm, in the unit of `time_of`."""
        found = {name: taken * TIME_UNIT for name, taken in self._taken_by_algorithm.items()}
        for trial in self.in_training():
            found[trial.algorithm] += time_taken_by(trial, self, clock)
        return found

    def in_training(self) -> list[Trial]:
        """Returns the trials in training, by number."""
        return [trial for _, trial in sorted(self.ladders.training.items())]

    def fresh_agents(self, algorithm: str) -> int:
        """Returns how many trials of an algorithm have begun with a fresh agent."""
        return self.ladders.fresh_counts[algorithm]

    def best(self, but: Container[str] = ()) -> Trial | None:
        """Returns the best trial that may continue, but of some algorithms; None if there is none with a score."""
        return next(self.ladders.able(but), None)

    def time_of(self, trial: Trial) -> float:
        """Returns the training of a trial: pod seconds, or environment steps in a synchronous tournament."""
        if self.spec.synchronous:
            return trial.environment_steps
        return trial.core_seconds / self.spec.pod.cores

    @property
    def grows(self) -> bool:
        """Whether times are wall-clock times where `time_of` is pod time: pods may grow, and times are measured."""
        return self.spec.pod.maximum_cores > self.spec.pod.cores and not self.spec.synchronous

    def duration_of(self, trial: Trial) -> float:
        """Returns how long a trial was trained, to be compared with `time_left`."""
        return trial.wall_seconds if self.grows else self.time_of(trial)

    def lineage_duration_of(self, trial: Trial) -> float:
        """Returns how long a scored trial was trained, with the training that it inherited at its own speed."""
        return self.duration_of(trial) * trial.newest.environment_steps / max(1, trial.environment_steps)

    def quantum_of(self, trial: Trial) -> float:
        """Returns how long a trial takes between two scores, to be compared with `time_left`; 0 if it is not known."""
        if self.grows:
            return trial.step_seconds * self.quantum
        return self.time_of(trial) / self.quanta(trial) if trial.environment_steps else 0.0

    def elapsed(self, clock: ClockReading) -> float:
        """Returns how long each pod has trained, in the unit of `time_of`."""
        if self.spec.synchronous:
            return clock.environment_steps / max(1, self.spec.pool.maximum_pods)
        return clock.running_seconds

    def time_left(self, clock: ClockReading) -> float:
        """Returns how long each pod may still train, in the unit of `time_of`; infinite if the end is unknown."""
        return clock.left(self.elapsed(clock))

    def ends_unscored(self, trial: Trial, clock: ClockReading) -> bool:
        """Whether less time is left than a trial takes between two scores, and the last evaluation by the wall clock.

        Must decide only whether there is work, see `ClockReading.last_score_seconds`.

        Never in a synchronous tournament: its last round shares what is left of the steps, and is scored at its end. A
        round without one of its agents would never be complete, and the tournament would not end.
        """
        if self.spec.synchronous or not self.quanta(trial):
            return False
        return self.time_left(clock) < self.quantum_of(trial) + clock.last_score_seconds


def _since_last_score(trial: Trial, pod: PodSpec) -> tuple[float, int]:
    """Returns the wall-clock seconds and environment steps of the training between the last two scores of an agent.

    Both times are recorded ones, so a replay gives the same. They may include a pause of the tournament, and a restored
    leaderboard records many scores at once. The seconds are therefore limited to what the recorded compute allows for
    a pod of the smallest and of the largest size.
    """
    newest, earlier = trial.scores[-1], trial.scores[-2:-1]
    agent = next(one for one in reversed(trial.agents) if one.agent_id == newest.agent_id)
    previous = earlier[0] if earlier and earlier[0].agent_id == newest.agent_id else Candidate()
    begin = previous.submit_time if previous.agent_id else agent.create_time
    seconds = (newest.submit_time.ToNanoseconds() - begin.ToNanoseconds()) / 1e9
    compute = max(0.0, newest.core_seconds - previous.core_seconds)
    steps = newest.agent_environment_steps - previous.agent_environment_steps
    return min(max(seconds, compute / pod.maximum_cores), compute / pod.cores), steps


# --- promotions --------------------------------------------------------------------------------------------------


def rung_steps(evolution: EvolutionSpec, quantum: int, rung: int) -> int:
    """Returns the environment steps of a trial at the end of a rung, a whole number of quanta."""
    return quantum * math.ceil(evolution.first_rung * evolution.rung_factor**rung - 1e-9)


def first_steps(trials: RungTrials) -> int:
    """Returns the environment steps of a new trial, which end at the first rung."""
    return rung_steps(trials.spec.evolution, trials.quantum, 0)


def promoted(trials: RungTrials, trial: Trial, how: str) -> Continue:
    """Returns the continuation of a trial to the rung above the one that it has reached."""
    evolution, rung = trials.spec.evolution, trial.rung
    steps = rung_steps(evolution, trials.quantum, rung + 1) - rung_steps(evolution, trials.quantum, rung)
    reason = f"promoted from rung {rung} to {rung + 1}: {named(trial.newest)} {how}"
    return Continue(trial.newest, reason, environment_steps=steps, rung=rung + 1)


def interrupted(trials: RungTrials, but: Container[str], without: Trial | None = None) -> Continue | None:
    """Returns the continuation of a trial whose agent ended on the way to a rung; None if there is none.

    Args:
        trials: The trials of the tournament.
        but: Algorithms that are left out.
        without: A trial that is left out.
    """
    found = (one for _, one in sorted(trials.ladders.interrupted.items()))
    trial = next((one for one in found if one is not without and one.algorithm not in but), None)
    if trial is None:
        return None
    missing = rung_steps(trials.spec.evolution, trials.quantum, trial.rung) - trial.environment_steps
    steps = trials.quantum * max(1, math.ceil(missing / trials.quantum))
    last = trial.agents[-1]
    how = "failed" if last.agent_id == trial.failed_agent else "ended"
    reason = f"a{last.number} {how} before rung {trial.rung}: continues from {named(trial.newest)}"
    return Continue(trial.newest, reason, environment_steps=steps, rung=trial.rung)


def quota_of(size: int, evolution: EvolutionSpec) -> int:
    """Returns how many of the trials that have reached a rung may be promoted."""
    return int(size / evolution.rung_factor + 1e-9)


def ladders_of_fresh(trials: RungTrials, but: Container[str], without: Trial | None = None) -> list[list[Part]]:
    """Divides fresh trials that have reached a rung into ladders, within which they are compared.

    Trials of different algorithms are compared once each algorithm has one above rung 0. Earlier, the algorithm that
    learns fastest at first would get all promotions.

    Args:
        trials: The trials.
        but: Algorithms that are left out.
        without: A trial that is left out.
    """
    parts = trials.ladders.parts(fresh=True, but=but, without=without)
    if all(trials.ladders.reached((part,), 1, without) for part in parts):
        return [parts]
    return [[part] for part in parts]


# --- fresh trials ------------------------------------------------------------------------------------------------


def algorithm_by_time(situation: Situation, trials: RungTrials) -> str:
    """Returns the algorithm that is furthest below its share of training; empty if there is one algorithm only.

    Training is measured in pod time, or in environment steps in a synchronous tournament, where times are not
    reproducible.
    """
    spec = situation.spec
    if len(spec.algorithms) - len(situation.left) < 2:
        return ""
    return turn_by_pod_time(spec, trials.time_taken(situation.clock), situation.left).algorithm


def time_taken_by(trial: Trial, trials: RungTrials, clock: ClockReading) -> float:
    """Returns the training of a trial, in the unit of `time_of`, with what it has trained since its last score."""
    current = trial.agents[-1]
    if trials.spec.synchronous:
        planned = current.assignment_environment_steps if trial.training else 0
        return max(trials.quantum, trial.environment_steps, trial.earlier_steps + planned)
    taken = max(SHORTEST_TRIAL_SECONDS, trials.time_of(trial))
    if not trial.training:
        return taken
    running = clock.running_seconds - ClockReading.of(current).running_seconds
    return max(taken, trial.earlier_core_seconds / trials.spec.pod.cores + running)
