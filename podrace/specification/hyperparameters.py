"""Fills in and checks the algorithms of a specification and their hyperparameters."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from google.protobuf import json_format, struct_pb2

from podrace.config import unknown
from podrace.plugins.address import parse
from podrace.specification import catalog, environment_search
from podrace.specification.catalog import Hyperparameter
from podrace.specification.conditions import check_conditions
from podrace.specification.declared_algorithms import entry_of
from podrace.specification.hyperparameter_checks import check_range, check_value, check_within, extra_value
from podrace.specification.known.simulators import of_teams
from podrace.specification.messages import Problems, bad_spec
from podrace.tournament.v1 import tournament_pb2 as pb

PYTHON = "python:"
"""Prefix of the name of an algorithm that is a class of a module."""
MINIBATCH_SIZE = "minibatch_size"
MINIBATCHES = 16
"""Smallest number of minibatches that a rollout is divided into by default where the simulator steps on a GPU."""
LARGEST_MINIBATCH = 16_384
"""Largest default there."""
_SCALES = {"linear": pb.SCALE_LINEAR, "log": pb.SCALE_LOG, "reverse_log": pb.SCALE_REVERSE_LOG}


def resolve_algorithms(spec: pb.TournamentSpec) -> None:
    """Completes all algorithms of a specification in place.

    Raises:
        InvalidArgument: There is no algorithm, a name is unknown, or a value is wrong.
    """
    if not spec.algorithms:
        raise bad_spec("algorithms: empty; name at least one, for instance [algorithms.ppo]")
    problems = Problems()
    for name in sorted(spec.algorithms):
        with problems.collect():
            _resolve_algorithm(spec, name)
    problems.refuse()
    if not any(algorithm.ratio for algorithm in spec.algorithms.values()):
        raise bad_spec("algorithms: every ratio is 0, so no agent could be generated")


def _resolve_algorithm(spec: pb.TournamentSpec, name: str) -> None:
    algorithm, problems = spec.algorithms[name], Problems()
    entry = _known_entry(name, algorithm)
    if not algorithm.HasField("ratio"):
        algorithm.ratio = 1.0
    with problems.collect():
        check_action_kind(name, entry, spec.environment)
    where = f"algorithms.{name}.hyperparameters"
    known = dict(entry.hyperparameters)
    with problems.collect():
        known = declared_hyperparameters(name, algorithm, spec.environment)
    for key, declared in with_gpu_defaults(known, spec, algorithm).items():
        with problems.collect():
            if key.startswith(environment_search.PREFIX):
                environment_search.prefer_present_value(algorithm.hyperparameters[key], declared)
            _resolve_hyperparameter(algorithm.hyperparameters[key], declared, f"{where}.{key}")
    # What follows needs valid hyperparameters.
    problems.refuse()
    with problems.collect():
        check_conditions(algorithm.hyperparameters, known, where)
    with problems.collect():
        _check_starts(algorithm, known, f"algorithms.{name}.starts")
    problems.refuse()


def _known_entry(name: str, algorithm: pb.AlgorithmSpec) -> catalog.Algorithm:
    """Returns what is known about an algorithm.

    Raises:
        InvalidArgument: It is unknown, or its declaration is missing.
    """
    where, entry = f"algorithms.{name}", entry_of(name, algorithm)
    if entry is None and name.startswith(PYTHON) and parse(name) is None:
        raise bad_spec(f"{where}: expected python:module:Class")
    if entry is None and name.startswith(PYTHON):
        raise bad_spec(
            f"{where}: has no declaration; the command and the Python client add it, others send what"
            f" `podrace algorithms {name} --declaration` prints"
        )
    if entry is None:
        raise bad_spec(unknown(where, "algorithm", name, catalog.ALGORITHMS))
    return entry


def declared_hyperparameters(
    name: str, algorithm: pb.AlgorithmSpec, environment: pb.EnvironmentSpec
) -> dict[str, Hyperparameter]:
    """Returns every hyperparameter of an algorithm of a specification: those of the catalog, and those of its
    environment that are searched.

    Raises:
        InvalidArgument: The specification has others.
    """
    entry, where, problems = entry_of(name, algorithm), f"algorithms.{name}.hyperparameters", Problems()
    known = dict(entry.hyperparameters) if entry else {}
    for key in sorted(algorithm.hyperparameters):
        if key.startswith(environment_search.PREFIX):
            given = algorithm.hyperparameters[key]
            with problems.collect():
                known[key] = environment_search.declared(environment, key, given, f"{where}.{key}")
        elif key not in known:
            problems.add(unknown(f"{where}.{key}", "hyperparameter", key, known))
    problems.refuse()
    return known


def with_gpu_defaults(
    declared: Mapping[str, Hyperparameter], spec: pb.TournamentSpec, algorithm: pb.AlgorithmSpec
) -> dict[str, Hyperparameter]:
    """Returns the hyperparameters of an algorithm with the defaults for simulators that step on a GPU.

    Thousands of environments make rollouts of a hundred thousand steps. A gradient step with 512 of them would take
    about as long as one with several thousand, because a small minibatch leaves most of a GPU idle.
    """
    on_gpu = spec.pod.gpus and catalog.steps_on_gpu(spec.environment.id) and spec.pod.plane not in ("shared", "grpc")
    if not on_gpu or MINIBATCH_SIZE not in declared or "horizon" not in declared:
        return dict(declared)
    given = algorithm.hyperparameters.get("horizon")
    default = declared["horizon"].default
    horizon = given.value.number_value if given and given.HasField("value") else default
    smallest = declared[MINIBATCH_SIZE].default
    if not isinstance(horizon, int | float) or not isinstance(smallest, int):
        return dict(declared)
    size = minibatch_size(spec.environment.count * spec.pod.workers * int(horizon), smallest)
    return {**declared, MINIBATCH_SIZE: replace(declared[MINIBATCH_SIZE], default=size)}


def minibatch_size(rollout_steps: int, smallest: int) -> int:
    """Returns the largest power of two that divides a rollout into at least MINIBATCHES minibatches.

    Args:
        rollout_steps: Steps of a rollout, over all environments of a learner.
        smallest: The default elsewhere, which is the least that is returned.
    """
    most = min(rollout_steps // MINIBATCHES, LARGEST_MINIBATCH)
    return max(smallest, 1 << most.bit_length() - 1) if most > 0 else smallest


def _check_starts(algorithm: pb.AlgorithmSpec, declared: Mapping[str, Hyperparameter], where: str) -> None:
    for index, start in enumerate(algorithm.starts):
        if not start.fields:
            raise bad_spec(f"{where}[{index}]: is empty; give hyperparameters, or leave it out")
        for key in sorted(start.fields):
            path = f"{where}[{index}].{key}"
            if key not in declared:
                raise bad_spec(unknown(path, "hyperparameter", key, declared))
            check_value(start.fields[key], declared[key], path)
            check_within(start.fields[key], algorithm.hyperparameters[key], path)


def starts_problem(spec: pb.TournamentSpec) -> str:
    """Returns why some of the `starts` of the algorithms would never be tried; empty if all are."""
    starts = sum(len(algorithm.starts) for algorithm in spec.algorithms.values())
    evolution = spec.evolution
    if starts and evolution.ancestor_agent_id:
        return (
            f"evolution.ancestor_agent_id = {evolution.ancestor_agent_id!r}: the first agents start from this agent, so"
            " algorithms.NAME.starts are not tried; leave out one of the two"
        )
    if evolution.HasField("population_size") and starts > evolution.population_size:
        return (
            f"evolution.population_size = {evolution.population_size}: is less than the {starts} entries of"
            " algorithms.NAME.starts; only the first population_size agents are fresh"
        )
    return ""


def check_action_kind(name: str, entry: catalog.Algorithm, environment: pb.EnvironmentSpec) -> None:
    """Checks that an algorithm supports the actions and the number of agents of an environment that the catalog knows.

    Raises:
        InvalidArgument: The algorithm does not support it.
    """
    environment_id = environment.id
    simulator = catalog.SIMULATORS.get(environment_id)
    option = simulator.continuous_option if simulator else ""
    chosen = bool(option) and option in environment.options and environment.options[option] is True
    kind = "continuous" if chosen else simulator.action_kind if simulator else ""
    if kind and kind not in entry.action_kinds:
        hint = f"; set environment.options.{option} = true" if option and not chosen and kind == "discrete" else ""
        raise bad_spec(
            f"algorithms.{name}: handles {' and '.join(entry.action_kinds)} actions,"
            f" but those of environment {environment_id!r} are {kind}{hint}"
        )
    teams = of_teams(environment_id)
    if (simulator or teams) and entry.teams != teams:
        fitting = ", ".join(key for key, known in catalog.ALGORITHMS.items() if known.teams == teams)
        raise bad_spec(
            f"algorithms.{name}: trains {'teams' if entry.teams else 'one agent'}, but environment {environment_id!r}"
            f" has {'several agents' if teams else 'one agent'}: choose among {fitting}"
        )


def _resolve_hyperparameter(given: pb.HyperparameterSpec, declared: Hyperparameter, where: str) -> None:
    """Completes one hyperparameter in place.

    Afterwards it has a value and, if it is searched, also a range with a scale, or choices.
    """
    searched = given.HasField("low") or given.HasField("high") or len(given.choices) > 0
    if not given.HasField("value") and not searched and declared.search:
        given.low, given.high, zero_probability = declared.search
        if zero_probability and not given.HasField("zero_probability"):
            given.zero_probability = zero_probability
    if given.HasField("low") != given.HasField("high"):
        raise bad_spec(f"{where}: low and high belong together")
    if given.HasField("zero_probability") and not given.HasField("low"):
        raise bad_spec(f"{where}.zero_probability: belongs to a range; give low and high too, or leave it out")
    if given.scale == pb.SCALE_UNSPECIFIED and given.HasField("low"):
        given.scale = _scale_of(given, declared)
    if not given.HasField("value"):
        given.value.CopyFrom(_first_value(given, declared))
    for value in (given.value, *given.choices):
        check_value(value, declared, where)
    if given.HasField("low"):
        check_range(given, declared, where)
    check_within(given.value, given, where)


def _scale_of(given: pb.HyperparameterSpec, declared: Hyperparameter) -> pb.Scale.ValueType:
    """Returns the declared scale, or else the linear one if the range reaches 1, where log(1 - x) has no value."""
    reaches_one = declared.scale == "reverse_log" and given.high >= 1 and not given.HasField("zero_probability")
    return pb.SCALE_LINEAR if reaches_one else _SCALES[declared.scale]


def _first_value(given: pb.HyperparameterSpec, declared: Hyperparameter) -> struct_pb2.Value:
    """Returns the first choice, or else the default, clipped to the range."""
    if given.choices:
        return given.choices[0]
    default = declared.default
    if given.HasField("low") and isinstance(default, int | float) and not isinstance(default, bool):
        inside = type(default)(min(max(default, given.low), given.high))
        default = default if default == extra_value(given) else inside
    plain: Any = list(default) if isinstance(default, tuple) else default
    return json_format.ParseDict(plain, struct_pb2.Value())
