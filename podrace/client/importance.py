"""Estimates how much of the difference between trials each hyperparameter explains. Pure.

    for found in importance_of(spec, agents, submissions):
        for entry in found.hyperparameters:            # the most important first
            print(entry.name, entry.share, [(part.label, part.mean) for part in entry.slices])

One trial is one observation, however many agents continued it and however many scores it has. The share of a
hyperparameter is that of the variance of the scores that differences between its slices explain, corrected for the
number of slices, so that it is 0 on average for one that has no effect (epsilon squared, Kelley 1935). It is the
first-order effect: what only combinations of values explain is in no share.

A strategy does not choose values at random. Trials that were trained longer have other scores and often other values,
so the environment steps are listed like a hyperparameter. If they have a large share, the other shares mislead.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from statistics import fmean, stdev
from typing import Any

from podrace.client.forest import forest_shares
from podrace.client.hyperparameters import hyperparameters_of
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.specification.conditions import is_active
from podrace.tournament.v1.tournament_pb2 import HyperparameterSpec, TournamentSpec

SMALLEST_SAMPLE = 8
"""Trials from which on shares are estimated."""
MOST_SLICES = 5
"""Slices of a range; choices have one slice each."""
TRIALS_PER_SLICE = 4
"""Smallest number of trials in a slice of a range, on average."""
SHUFFLES = 199
"""Random assignments of the scores by which the probability of a share by chance is estimated."""
STEPS = "environment steps"
"""Name of the entry for the training of a trial."""


@dataclass(frozen=True)
class TrialObservation:
    """What is known about one trial."""

    number: int
    """Number of its first agent."""
    algorithm: str
    values: Mapping[str, Any]
    """Its hyperparameters, which are the same in all of its agents."""
    score: float
    """Its highest estimate; the estimate of a candidate is what the board ranks by."""
    environment_steps: int
    """Environment steps of the policy with that estimate, including those of its ancestors."""


@dataclass(frozen=True)
class Slice:
    """Trials with similar values of a hyperparameter."""

    values: tuple[Any, ...]
    """The different values, ascending, or a single one that is not a number."""
    trials: int
    mean: float
    """Mean score."""
    standard_error: float | None
    """Standard error of the mean; None for a single trial."""

    @property
    def label(self) -> str:
        """The value, or the range of the values."""
        first, last = _text(self.values[0]), _text(self.values[-1])
        return first if first == last else f"{first} to {last}"


@dataclass(frozen=True)
class HyperparameterImportance:
    """How much a hyperparameter explains, with its slices."""

    name: str
    trials: int
    """Trials in which it has a meaning, because its condition is met."""
    slices: tuple[Slice, ...]
    """In order of the values."""
    points: tuple[tuple[Any, float], ...]
    """Value and score of each trial."""
    share: float | None
    """Share of the variance of the scores between its slices, from 0 to 1; None for too few trials."""
    p_value: float | None = None
    """Probability that slices explain at least as much by chance; None if `share` is."""
    forest_share: float | None = None
    """The same by a random forest; None for too few trials or without scikit-learn."""

    @property
    def rank_share(self) -> float:
        """Share that it is ranked by: the one of the forest if it is known."""
        return max(self.share or 0.0, 0.0) if self.forest_share is None else self.forest_share


@dataclass(frozen=True)
class AlgorithmImportance:
    """Importance of the hyperparameters of an algorithm."""

    algorithm: str
    trials: int
    hyperparameters: tuple[HyperparameterImportance, ...]
    """Those with different values in different trials, the most important first."""
    steps: HyperparameterImportance | None
    """The same for the environment steps; None if all trials have the same."""


def observations_of(agents: Iterable[Agent], submissions: Iterable[Candidate]) -> list[TrialObservation]:
    """Returns the scored trials of a tournament, by number.

    Scores of the built-in evaluator in place of an evaluator plugin are left out.

    Args:
        agents: All agents.
        submissions: All submissions.
    """
    known = {agent.agent_id: agent for agent in agents}
    best: dict[int, Candidate] = {}
    for candidate in submissions:
        if candidate.evaluator_fault or candidate.agent_id not in known:
            continue
        number = candidate.trial if candidate.HasField("trial") else candidate.agent_number
        if number not in best or _estimate(candidate) > _estimate(best[number]):
            best[number] = candidate
    return [
        TrialObservation(
            number,
            candidate.algorithm,
            hyperparameters_of(known[candidate.agent_id]),
            _estimate(candidate),
            candidate.environment_steps,
        )
        for number, candidate in sorted(best.items())
    ]


def importance_of(
    spec: TournamentSpec, agents: Iterable[Agent], submissions: Iterable[Candidate]
) -> list[AlgorithmImportance]:
    """Returns the importance of the hyperparameters of each algorithm that has scored trials, by name.

    Args:
        spec: Resolved specification.
        agents: All agents.
        submissions: All submissions.
    """
    everything = observations_of(agents, submissions)
    found = []
    for name in sorted({trial.algorithm for trial in everything}):
        trials = [trial for trial in everything if trial.algorithm == name]
        found.append(_of_algorithm(name, trials, spec.algorithms[name].hyperparameters))
    return found


def _of_algorithm(
    name: str, trials: Sequence[TrialObservation], declared: Mapping[str, HyperparameterSpec]
) -> AlgorithmImportance:
    entries = {}
    for key in sorted({key for trial in trials for key in trial.values}):
        active = [
            trial
            for trial in trials
            if key in trial.values and (key not in declared or is_active(declared[key], trial.values))
        ]
        entry = _entry(key, [(trial.values[key], trial.score) for trial in active])
        if len(entry.slices) > 1:
            entries[key] = entry
    steps = _entry(STEPS, [(trial.environment_steps, trial.score) for trial in trials])
    if len(steps.slices) > 1:
        entries[STEPS] = steps
    columns = {key: [_column(trial, key) for trial in trials] for key in entries}
    shares = forest_shares(columns, [trial.score for trial in trials])
    made = {key: replace(entry, forest_share=shares.get(key)) for key, entry in entries.items()}
    return AlgorithmImportance(
        name,
        len(trials),
        tuple(sorted((made[key] for key in made if key != STEPS), key=lambda entry: -entry.rank_share)),
        made.get(STEPS),
    )


def _entry(name: str, points: Sequence[tuple[Any, float]]) -> HyperparameterImportance:
    groups = slices_of(points)
    scores = [[score for _, score in group] for group in groups]
    share = explained_share(scores) if len(points) >= SMALLEST_SAMPLE else None
    return HyperparameterImportance(
        name,
        len(points),
        tuple(_slice(group) for group in groups),
        tuple(points),
        share,
        None if share is None else chance_of(scores),
    )


def slices_of(points: Sequence[tuple[Any, float]]) -> list[list[tuple[Any, float]]]:
    """Divides points (value, score) by their values: into parts of equal size, or into one part for each value.

    Equal values are never divided. Numbers with few different values, and everything that is no number, have one part
    for each value.
    """
    by_value: dict[str, list[tuple[Any, float]]] = {}
    numeric = all(_is_number(value) for value, _ in points)
    for point in sorted(points, key=lambda point: point[0] if numeric else repr(point[0])):
        by_value.setdefault(repr(point[0]), []).append(point)
    parts = max(2, min(MOST_SLICES, len(points) // TRIALS_PER_SLICE))
    if not numeric or len(by_value) <= parts:
        return list(by_value.values())
    found: list[list[tuple[Any, float]]] = [[]]
    taken = 0
    for group in by_value.values():
        # The middle of the group decides in which part it is.
        if found[-1] and taken + len(group) / 2 >= len(points) * len(found) / parts:
            found.append([])
        found[-1] += group
        taken += len(group)
    return found


def explained_share(groups: Sequence[Sequence[float]]) -> float | None:
    """Returns the share of the variance of all scores that the differences between groups explain.

    epsilon^2 = 1 - (within / (n - k)) / (total / (n - 1))

    with the sums of squared deviations `within` the k groups and in `total` (Kelley 1935). Unlike the correlation ratio
    eta^2 it is 0 on average if the groups differ by chance only, so it may be negative.

    Args:
        groups: Scores by group; none is empty.

    Returns:
        The share, at most 1; None if it is not defined, because all scores are equal or each group has one.
    """
    scores = [score for group in groups for score in group]
    free = len(scores) - len(groups)
    if free < 1 or len(groups) < 2:
        return None
    total = _squares(scores)
    if total <= 0:
        return None
    within = math.fsum(_squares(group) for group in groups)
    return 1.0 - (within / free) / (total / (len(scores) - 1))


def chance_of(groups: Sequence[Sequence[float]]) -> float:
    """Returns the probability that groups of these sizes differ at least as much by chance.

    It is (1 + b) / (1 + m), where b of m random assignments of the scores to the groups explain at least as much
    (permutation test, Phipson and Smyth 2010). The result is the same for the same groups.

    Args:
        groups: Scores by group; none is empty.
    """
    sizes = [len(group) for group in groups]
    scores = [score for group in groups for score in group]
    middle = fmean(scores)
    deviations = [score - middle for score in scores]
    # Rounding must not make an assignment with equal groups worse than the observed one.
    observed = _between(deviations, sizes) * (1 - 1e-9)
    random = Random(0)
    as_good = 0
    for _ in range(SHUFFLES):
        random.shuffle(deviations)
        as_good += _between(deviations, sizes) >= observed
    return (1 + as_good) / (1 + SHUFFLES)


def _between(deviations: Sequence[float], sizes: Sequence[int]) -> float:
    """Returns the sum of squares between consecutive groups of the given sizes."""
    ends = list(accumulate(sizes))
    return math.fsum(math.fsum(deviations[end - size : end]) ** 2 / size for size, end in zip(sizes, ends, strict=True))


def _squares(scores: Sequence[float]) -> float:
    middle = fmean(scores)
    return math.fsum((score - middle) ** 2 for score in scores)


def _slice(group: Sequence[tuple[Any, float]]) -> Slice:
    values = {repr(value): value for value, _ in group}
    scores = [score for _, score in group]
    error = stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else None
    return Slice(tuple(values.values()), len(scores), fmean(scores), error)


def _estimate(candidate: Candidate) -> float:
    return candidate.estimate if candidate.HasField("estimate") else candidate.score


def _column(trial: TrialObservation, key: str) -> Any:
    return trial.environment_steps if key == STEPS else trial.values.get(key)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)
