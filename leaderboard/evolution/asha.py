"""Implements the strategy `asha`: every trial is fresh, and the best of each rung are promoted to the next one.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, arXiv 1810.05934, algorithm 2. A pod
that asks for work gets the first of these that applies:
    1. one of the first `initial_agents` trials
    2. a trial whose agent ended on the way to a rung, from its newest score, unless its last two agents failed
    3. a promotion: the best waiting trial of the highest rung on which one is within the quota
    4. the best waiting trial, if no time is left for a new trial to train as long as the best one has
    5. a new trial, of the algorithm that is furthest below its share of pod time
Nothing is started that could not be scored before the end. What a rung is and how trials of several algorithms are
compared is in leaderboard.evolution.rungs.

Decisions that the paper leaves open, or makes otherwise:
- Rungs have no limit (the paper's infinite horizon), because the end of a tournament may be unknown. A promotion that
  the end cuts short is scored like any other.
- Rule 4 is not in the paper, which has no end by the clock. Without it, the best trial waits for the end: two pods with
  time for 48 scores each spend the last third of it on trials that can no longer be promoted to the length of the best
  one. In simulated races (benchmarks/race_simulator) the rule raises the mean final return with two pods from 0.53 to
  0.59; with eight the difference is within the noise.
- Trials wait for a promotion and are never stopped. The other variant trains each trial until it reaches a rung on
  which it is not among the best, and stops it then. Its first trial competes with none and trains to the end: better
  if that one has good values (0.64 in the same races), but worse if its values are drawn like all others (0.43 instead
  of 0.51). This strategy is for tasks with unknown values; where values are known, `incumbent` is better than both.
"""

from random import Random

from leaderboard.evolution.rungs import (
    RungTrials,
    algorithm_by_time,
    first_steps,
    interrupted,
    ladders_of_fresh,
    promoted,
    quota_of,
)
from leaderboard.evolution.strategy import Continue, Fresh, NoWork, Situation
from leaderboard.evolution.trials import Trial


def propose(situation: Situation, random: Random) -> Fresh | Continue | NoWork:
    """Returns the next agent, or that there is no work."""
    trials, evolution = situation.trials, situation.spec.evolution
    assert isinstance(trials, RungTrials), "the registry names the fold of this strategy"
    if situation.number < evolution.initial_agents:
        reason = f"one of the first {evolution.initial_agents}"
        return Fresh(reason, environment_steps=first_steps(trials), rung=0)
    best = trials.best(but=situation.left)
    if best is not None and trials.ends_unscored(best, situation.clock):
        return NoWork("the tournament ends before another agent could be scored")
    return (
        interrupted(trials, but=situation.left)
        or _promotion(situation, trials)
        or _last_promotion(situation, trials, best)
        or _new_trial(situation, trials)
    )


def _promotion(situation: Situation, trials: RungTrials) -> Continue | None:
    """Returns the promotion of a trial that is within the quota of its rung; None if there is none."""
    for rung in trials.ladders.rungs(ladders_of_fresh(trials, situation.left)):
        quota = quota_of(rung.size, trials.spec.evolution)
        if chosen := rung.best_waiting(quota):
            return promoted(trials, chosen, f"is among the best {quota} of {rung.size}")
    return None


def _last_promotion(situation: Situation, trials: RungTrials, best: Trial | None) -> Continue | None:
    """Returns the promotion of the best waiting trial, whatever its quota, if a new trial would come too late."""
    if best is None or trials.time_left(situation.clock) > trials.duration_of(best):
        return None
    able = trials.ladders.able(situation.left)
    chosen = next((one for one in able if one.at_rung and not one.training), None)
    how = "is the best that waits, and a new trial could not train as long as the best has"
    return None if chosen is None else promoted(trials, chosen, how)


def _new_trial(situation: Situation, trials: RungTrials) -> Fresh:
    algorithm = algorithm_by_time(situation, trials)
    reason = f"a new trial; {algorithm} is furthest below its share" if algorithm else "a new trial"
    return Fresh(reason, algorithm, environment_steps=first_steps(trials), rung=0)
