"""Implements the strategy `bohb`: as `asha`, but a model of good hyperparameters proposes the values of new trials.

Falkner, Klein and Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018, arXiv
1807.01774. Algorithm 2 is implemented, for each algorithm of the specification. With `random_probability` the values
are drawn at random. Otherwise a model (leaderboard.evolution.parzen) is fitted to the trials of the highest rung that
enough trials have reached: at least d + 3 for d searched hyperparameters. Of these, the best `good_share`, at least
d + 1, are good. A trial that failed on the way to a rung is the worst of that rung.

What differs from the paper:
- Rungs are those of `asha`, not of Hyperband: pods do not wait for each other, and there is one first rung. The model
  therefore sees a trial as soon as that trial has reached a rung.
- The estimate of a trial at a rung is used. It does not change when the trial is promoted, so early rungs do not favor
  trials that were trained on.
- Hyperparameters whose condition is not met are ignored; the authors' code invents values for them.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from random import Random

from leaderboard.evolution import asha
from leaderboard.evolution.parzen import Row, most_promising, split
from leaderboard.evolution.rungs import RungTrials
from leaderboard.evolution.space import Choices, Range, Space, Value, plain, spaces_of
from leaderboard.evolution.strategy import Continue, Fresh, NoWork, Situation
from leaderboard.evolution.trials import Trial
from leaderboard.seeding import happens
from podrace.specification.conditions import is_active
from podrace.tournament.v1.tournament_pb2 import AlgorithmSpec


def propose(situation: Situation, random: Random) -> Fresh | Continue | NoWork:
    """Returns what `asha` does, a new trial with proposed values."""
    answer = asha.propose(situation, random)
    return _with_values(answer, situation, random) if isinstance(answer, Fresh) else answer


def _with_values(answer: Fresh, situation: Situation, random: Random) -> Fresh:
    trials, spec = situation.trials, situation.spec
    assert isinstance(trials, RungTrials), "the registry names the fold of this strategy"
    name = answer.algorithm or situation.turn.algorithm
    algorithm = spec.algorithms[name]
    if trials.fresh_agents(name) < max(1, len(algorithm.starts)):
        return answer
    spaces = spaces_of(name, algorithm)
    by_random = happens(random, spec.evolution.random_probability)
    rung, rows = observed(trials, name, spaces)
    if by_random or not spaces or not rows:
        return replace(answer, reason=f"{answer.reason}; no model asked")
    good, bad = split(rows, least_rows(spaces), spec.evolution.good_share)
    categories = [len(space.values) if isinstance(space, Choices) else 0 for space in spaces.values()]
    row = most_promising(good, bad, categories, random)
    reason = f"{answer.reason}; proposed by a model of {len(rows)} trials on rung {rung}"
    return replace(answer, reason=reason, hyperparameters=_values(row, spaces))


def least_rows(spaces: Mapping[str, Space]) -> int:
    """Returns the least number of trials of a density."""
    return len(spaces) + 1


def observed(trials: RungTrials, algorithm: str, spaces: Mapping[str, Space]) -> tuple[int, list[Row]]:
    """Returns the highest rung that enough trials of an algorithm have reached, and their values, the best first.

    The list is empty if there is no such rung.
    """
    own = [one for _, one in sorted(trials.by_number.items()) if one.algorithm == algorithm]
    for rung in reversed(range(max((len(one.at_rung) for one in own), default=0))):
        reached = [(score, one) for one in own if (score := _score_at(one, rung)) is not None]
        if len(reached) >= least_rows(spaces) + 2:
            reached.sort(key=lambda pair: (-pair[0], pair[1].number))
            return rung, [_row(one, trials.spec.algorithms[algorithm], spaces) for _, one in reached]
    return 0, []


def _score_at(trial: Trial, rung: int) -> float | None:
    """Returns the estimate of a trial at a rung; None if it has not reached the rung."""
    if len(trial.at_rung) > rung:
        return trial.at_rung[rung]
    return -math.inf if trial.ended and len(trial.at_rung) == rung else None


def _row(trial: Trial, algorithm: AlgorithmSpec, spaces: Mapping[str, Space]) -> Row:
    values = {name: plain(value) for name, value in trial.agents[0].hyperparameters.fields.items()}
    return tuple(
        _coordinate(space, values[name]) if is_active(algorithm.hyperparameters[name], values) else None
        for name, space in spaces.items()
    )


def _coordinate(space: Space, value: Value) -> float | None:
    if isinstance(space, Range):
        return space.position(value) if isinstance(value, float) else None
    return float(space.values.index(value)) if value in space.values else None


def _values(row: Row, spaces: Mapping[str, Space]) -> dict[str, Value]:
    return {
        name: space.at(coordinate) if isinstance(space, Range) else space.values[int(coordinate)]
        for (name, space), coordinate in zip(spaces.items(), row, strict=True)
        if coordinate is not None
    }
