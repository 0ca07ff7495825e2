"""Applies the preset `search = "wide"`: what is searched, and how, if no good values are known.

The preset fills in what the specification leaves out, and nothing else: a value, a range or choices that it states are
kept. Pure.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

from podrace.specification import evolution_settings
from podrace.specification.catalog import Hyperparameter
from podrace.specification.declared_algorithms import entry_of
from podrace.specification.environment_search import COUNT
from podrace.tournament.v1 import tournament_pb2 as pb

DECLARED, WIDE = "declared", "wide"
SEARCHES: Mapping[str, str] = {
    DECLARED: "the ranges that the algorithms declare; the first agent of each has the values of the specification",
    WIDE: "wide ranges of many hyperparameters, for tasks with unknown good values; the first agents are drawn too",
}
"""Presets, each with a line of help."""

FEW_PODS, FEW_PODS_STRATEGY = 2, "asha"
"""With the preset `wide`, this strategy is the default for pools of at most so many pods. A pod that keeps training the
incumbent is a large part of them, and an incumbent with drawn values deserves it least. In simulated races with drawn
values (`python -m benchmarks.race_simulator --set search=wide`) the mean final returns of `asha` and `incumbent` are
0.40 and 0.31 with one pod, 0.51 and 0.45 with two, 0.54 and 0.57 with three, 0.59 and 0.66 with four."""

WIDE_SETTINGS: Mapping[str, float] = {"founder_share": 0.0}
"""Defaults of settings in `[evolution]` with the preset `wide`, for the strategies that have them. The founder of an
algorithm deserves no share of its own if its values are drawn like those of all others."""


def apply(spec: pb.TournamentSpec) -> None:
    """Fills in the ranges of the preset, in place.

    Args:
        spec: Its preset, environment and pod are resolved, and searched keys of the environment are among the
            hyperparameters.
    """
    if spec.search != WIDE:
        return
    for name in sorted(spec.algorithms):
        known = entry_of(name, spec.algorithms[name])
        if known is None:
            continue
        given, declared = spec.algorithms[name].hyperparameters, known.hyperparameters
        largest_minibatch = _smallest_rollout(spec, name, declared)
        for key, entry in declared.items():
            if entry.wide is None or _is_stated(given[key]):
                continue
            low, high, zero_probability = entry.wide
            if key == "minibatch_size" and largest_minibatch <= low:
                given[key].value.number_value = largest_minibatch
                continue
            given[key].low = low
            given[key].high = min(high, largest_minibatch) if key == "minibatch_size" else high
            if zero_probability and not given[key].HasField("zero_probability"):
                given[key].zero_probability = zero_probability


def fill_evolution(spec: pb.TournamentSpec) -> None:
    """Fills in the strategy and those of its settings that the preset has other defaults for, in place."""
    if spec.search != WIDE:
        return
    if not spec.evolution.HasField("strategy"):
        spec.evolution.strategy = _default_strategy(spec)
    own = evolution_settings.SETTINGS.get(spec.evolution.strategy, {})
    for name in WIDE_SETTINGS.keys() & own.keys():
        if not spec.evolution.HasField(cast(Any, name)):
            setattr(spec.evolution, name, WIDE_SETTINGS[name])


def _default_strategy(spec: pb.TournamentSpec) -> str:
    """Returns the strategy for a specification that names none; one that is the default without the preset if the
    specification has settings of it that the other one does not have.
    """
    usual = str(evolution_settings.DEFAULTS["strategy"])
    settings = evolution_settings.SETTINGS
    given = {field.name for field, _ in spec.evolution.ListFields()}
    if given & (settings[usual].keys() - settings[FEW_PODS_STRATEGY].keys()):
        return usual
    return FEW_PODS_STRATEGY if 1 <= spec.pool.maximum_pods <= FEW_PODS else usual


def trusts_values(spec: pb.TournamentSpec) -> bool:
    """Returns whether the first agent of an algorithm has the values of the specification. With the preset `wide` it
    draws the searched values, as all fresh agents do.
    """
    return spec.search != WIDE


def _is_stated(given: pb.HyperparameterSpec) -> bool:
    return given.HasField("value") or given.HasField("low") or given.HasField("high") or len(given.choices) > 0


def _smallest_rollout(spec: pb.TournamentSpec, algorithm: str, declared: Mapping[str, Hyperparameter]) -> float:
    """Returns the environment steps in a rollout of one learner. Larger minibatches would all be the whole rollout."""
    if "horizon" not in declared:
        return math.inf
    horizon, default = spec.algorithms[algorithm].hyperparameters["horizon"], declared["horizon"].default
    stated = [choice.number_value for choice in horizon.choices]
    if horizon.HasField("low"):
        stated = [horizon.low]
    elif not stated:
        stated = [horizon.value.number_value if horizon.HasField("value") else cast(float, default)]
    return min(stated) * _fewest_environments(spec, algorithm) * spec.pod.workers


def _fewest_environments(spec: pb.TournamentSpec, algorithm: str) -> float:
    if COUNT not in spec.algorithms[algorithm].hyperparameters:
        return spec.environment.count
    given = spec.algorithms[algorithm].hyperparameters[COUNT]
    stated = [choice.number_value for choice in given.choices] or [given.low or given.value.number_value]
    return min(stated)
