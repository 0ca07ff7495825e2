"""Searches options of the environment: keys of `environment.search`, and the environments that an agent uses. Pure.

    [environment.search]
    count = { choices = [16, 64] }
    "options.frame_skip" = { choices = [1, 2, 4] }
    "options.wrappers.frame_stack.count" = { choices = [2, 4] }

Resolving copies each entry to the hyperparameters of every algorithm, with the prefix `environment.`, unless the
algorithm has its own. Drawing, conditions, statistics and records then treat it as any other structural hyperparameter:
a child has its parent's value, because the value may shape networks and memories. A pod takes the values
out again when it opens the environments of an agent.

Policies are scored in the environment of the specification, so that scores of different agents are comparable. Only
what determines the observations and actions of the policy applies there too: options of the wrappers in
`INTERFACE_WRAPPERS`, and the keys in `environment.search_in_evaluation`.
"""

from collections.abc import Mapping
from typing import Any, cast

from google.protobuf import json_format, struct_pb2

from podrace.specification import data_leakage
from podrace.specification.catalog import Hyperparameter, simulator_of
from podrace.specification.messages import bad_spec
from podrace.tournament.v1 import tournament_pb2 as pb

PREFIX = "environment."
COUNT = "environment.count"
INTERFACE_WRAPPERS = ("clip_actions", "scale_actions", "normalize_observations", "pixels", "frame_stack")
"""Wrappers that change observations and actions, but not rewards and the ends of episodes."""
TRAINING_WRAPPERS = ("shape_rewards", "normalize_rewards")
"""Wrappers that are left out of evaluations: they change rewards for training only."""
TRAINING_OPTIONS = {"stocks": ("staggered",)}
"""Options of simulators that are left out of evaluations: they shorten first episodes, and evaluations count those."""
LARGEST_COUNT = 1_000_000
_OPTIONS, _WRAPPERS = "environment.options.", "wrappers"
_LARGEST_NUMBER = 1e300
_DATA_OPTIONS = ("split", *data_leakage.CUTS, *data_leakage.FOLD_CUTS)
"""Options that choose the data of training. With searched ones, agents could be trained on the data of the reports."""


def spread(spec: pb.TournamentSpec) -> None:
    """Copies the entries of `environment.search` to the hyperparameters of every algorithm, in place.

    Raises:
        InvalidArgument: `environment.search_in_evaluation` names a key that is not searched.
    """
    searched = spec.environment.search
    for algorithm in spec.algorithms.values():
        for key in sorted(searched):
            if PREFIX + key not in algorithm.hyperparameters:
                algorithm.hyperparameters[PREFIX + key].CopyFrom(searched[key])
    keys = {key for algorithm in spec.algorithms.values() for key in algorithm.hyperparameters}
    for key in spec.environment.search_in_evaluation:
        if PREFIX + key not in keys:
            raise bad_spec(f"environment.search_in_evaluation: {key!r} is not searched; add it to environment.search")


def declared(environment: pb.EnvironmentSpec, key: str, spec: pb.HyperparameterSpec, where: str) -> Hyperparameter:
    """Returns the default and the allowed values of a key that begins with `environment.`.

    Args:
        environment: Environment of the specification.
        key: The key.
        spec: What the specification says about it.
        where: Dotted key for error messages.

    Raises:
        InvalidArgument: It cannot be searched.
    """
    if key == COUNT:
        text = "environments that each worker steps as one batch"
        return Hyperparameter(environment.count, text, 1, LARGEST_COUNT, scale="log", structural=True)
    if not key.startswith(_OPTIONS):
        raise bad_spec(f"{where}: only environment.count and environment.options.NAME can be searched")
    path = key.removeprefix(_OPTIONS).split(".")
    if path[0] in _DATA_OPTIONS:
        raise bad_spec(f"{where}: options that choose the data cannot be searched; set environment.options.{path[0]}")
    if path == [_WRAPPERS] or (path[0] == _WRAPPERS and len(path) != 3):
        raise bad_spec(f"{where}: expected options.wrappers.NAME.OPTION, such as options.wrappers.frame_stack.count")
    default = _default_of(environment, path, spec, where)
    if not isinstance(default, bool | int | float | str):
        raise bad_spec(f"{where}: only numbers, texts, true and false can be searched, not {default!r}")
    plain = float(default) if isinstance(default, int) and not isinstance(default, bool) else default
    is_number = isinstance(plain, float)
    low, high = (-_LARGEST_NUMBER, _LARGEST_NUMBER) if is_number else (None, None)
    return Hyperparameter(plain, "option of the environment", low, high, structural=True)


def prefer_present_value(given: pb.HyperparameterSpec, declared: Hyperparameter) -> None:
    """Sets the value of an entry without one to that of the environment, if it is among the choices."""
    present = json_format.ParseDict(cast(Any, declared.default), struct_pb2.Value())
    if not given.HasField("value") and present in given.choices:
        given.value.CopyFrom(present)


def algorithm_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the hyperparameters of an agent without those of its environment."""
    return {key: value for key, value in values.items() if not key.startswith(PREFIX)}


def training_environment(environment: pb.EnvironmentSpec, values: Mapping[str, Any]) -> pb.EnvironmentSpec:
    """Returns the environment that an agent trains in.

    Args:
        environment: Environment of the specification.
        values: Hyperparameters of the agent.
    """
    return _with(environment, {key: value for key, value in values.items() if key.startswith(PREFIX)})


def evaluation_environment(
    environment: pb.EnvironmentSpec, values: Mapping[str, Any], specified: pb.EnvironmentSpec
) -> pb.EnvironmentSpec:
    """Returns the environment in which the policy of an agent is scored.

    Args:
        environment: Environment of the specification with the options of the evaluation.
        values: Hyperparameters of the agent.
        specified: Environment of the specification, for its `search_in_evaluation`.
    """
    listed = {PREFIX + key for key in specified.search_in_evaluation}
    applied = {key: value for key, value in values.items() if key in listed and key != COUNT}
    for key, value in values.items():
        path = key.removeprefix(_OPTIONS).split(".")
        if key.startswith(_OPTIONS) and path[0] == _WRAPPERS and len(path) == 3:
            wrapper = _wrapper(json_format.MessageToDict(specified.options), path[1])
            if wrapper and wrapper.get("name") in INTERFACE_WRAPPERS:
                applied[key] = value
    return _without_training_changes(_with(environment, applied))


def _without_training_changes(environment: pb.EnvironmentSpec) -> pb.EnvironmentSpec:
    """Removes what changes rewards or episodes for training, in place: scores are returns of the environment itself."""
    for name in TRAINING_OPTIONS.get(simulator_of(environment), ()):
        if name in environment.options:
            del environment.options[name]
    wrappers = json_format.MessageToDict(environment.options).get(_WRAPPERS, [])
    if not isinstance(wrappers, list):
        return environment
    kept = [one for one in wrappers if not (isinstance(one, dict) and one.get("name") in TRAINING_WRAPPERS)]
    if len(kept) < len(wrappers):
        environment.options[_WRAPPERS] = kept
    return environment


def _default_of(environment: pb.EnvironmentSpec, path: list[str], spec: pb.HyperparameterSpec, where: str) -> Any:
    """Returns the value of the specification: the option's, or else the value or the first choice of the search."""
    options = json_format.MessageToDict(environment.options)
    if path[0] == _WRAPPERS:
        found = _wrapper(options, path[1])
        if found is None:
            raise bad_spec(
                f"{where}: environment.options.wrappers has no wrapper {path[1]!r}, or more than one; name one that is"
                " there, or give its position, beginning with 0"
            )
        value = found.get(path[2])
    else:
        value = options
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
    if value is not None:
        return value
    if spec.HasField("value"):
        return json_format.MessageToDict(spec.value)
    if spec.choices:
        return json_format.MessageToDict(spec.choices[0])
    raise bad_spec(f"{where}: has no value yet; set it in environment.options, or give `value` with the range")


def _wrapper(options: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Returns the options of the wrapper with a name or at a position; None if there is none or more than one."""
    wrappers = [one for one in options.get(_WRAPPERS, ()) if isinstance(one, dict)]
    if name.isdecimal():
        return wrappers[int(name)] if int(name) < len(wrappers) else None
    found = [one for one in wrappers if one.get("name") == name]
    return found[0] if len(found) == 1 else None


def _with(environment: pb.EnvironmentSpec, values: Mapping[str, Any]) -> pb.EnvironmentSpec:
    """Returns a copy of an environment with other values; a wrapper that it does not have is left out."""
    changed = pb.EnvironmentSpec()
    changed.CopyFrom(environment)
    options = json_format.MessageToDict(changed.options)
    for key, value in sorted(values.items()):
        if key == COUNT:
            changed.count = int(value)
            continue
        *parents, name = key.removeprefix(_OPTIONS).split(".")
        table: Any = options
        if parents[:1] == [_WRAPPERS]:
            table = _wrapper(options, parents[1])
        else:
            for parent in parents:
                table = table.setdefault(parent, {})
        if table is not None:
            table[name] = value
    if options:
        changed.options.Clear()
        changed.options.update(options)
    return changed
