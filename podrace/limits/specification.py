"""Checks a whole specification against what the operator allows, and names the keys that are not. Pure.

check_specification(resolve(spec), allowed)                 # when a tournament is created, and by the pod
check_options(spec, request.options, allowed, "options")    # of an evaluation that a caller requests
"""

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from podrace.limits.config import Allowed
from podrace.limits.names import (
    FUNCTION,
    environment_problem,
    options_problem,
    plugin_problem,
    shown,
    text_problem,
    wrapper_addresses,
)
from podrace.specification.declared_algorithms import LEARNER_CODE, learner_addresses
from podrace.specification.messages import Problems, bad_spec
from podrace.tournament.v1.tournament_pb2 import (
    HYPERPARAMETER_TYPE_TEXT,
    AlgorithmSpec,
    HyperparameterSpec,
    TournamentSpec,
)

INSTALLED_ONLY = (
    "an algorithm runs in the process of the learner, which holds the token of its pod, so only installed ones may be"
    " named here: install its distribution with an entry point in the group podrace.algorithms, and use that name"
)
INSTALLED_CODE_ONLY = (
    "a {0} runs in the process of the learner, which holds the token of its pod, so only installed ones may be"
    " named here: install its distribution with an entry point in the group podrace.{0}s, and use that name"
)
_SEARCHED = "environment.options."


def check_specification(spec: TournamentSpec, allowed: Allowed) -> None:
    """Refuses a resolved specification that names what the operator does not allow.

    Raises:
        InvalidArgument: The message has each key, its value, and the setting of the operator (BAD_SPEC).
    """
    problems = Problems()
    problems.add(*_problems(spec, allowed))
    problems.refuse()


def check_options(spec: TournamentSpec, options: Struct, allowed: Allowed, key: str) -> None:
    """Refuses options for the environment of a specification; raises as `check_specification`.

    Whether the pods of a tournament keep user code apart depends on the specification, so options name no other code.
    """
    values = values_of(options)
    if problem := options_problem(spec.environment.id, values, allowed, key):
        raise bad_spec(problem)
    for address in () if allowed.everything else wrapper_addresses(values):
        if address not in wrappers_of(spec):
            raise bad_spec(f"{key}.wrappers: {shown(address)} is not named by the specification of the tournament")


def wrappers_of(spec: TournamentSpec) -> frozenset[str]:
    """Returns the addresses of the code of users that the wrappers of a specification name, in all its options."""
    options = [spec.environment.options, spec.evaluation.options, *(one.options for one in spec.reports.values())]
    found = [address for each in options for address in wrapper_addresses(values_of(each))]
    searched = (pair for algorithm in spec.algorithms.values() for pair in _searched(algorithm))
    return frozenset((*found, *(address for key, value in searched for address in wrapper_addresses({key: value}))))


def values_of(options: Struct) -> dict[str, Any]:
    """Returns options as plain values."""
    return json_format.MessageToDict(options)


def _problems(spec: TournamentSpec, allowed: Allowed) -> Iterator[str]:
    id, environment, evaluation = spec.environment.id, spec.environment, spec.evaluation
    yield environment_problem(id, values_of(environment.options), allowed)
    yield options_problem(id, values_of(evaluation.options), allowed, "evaluation.options")
    for name, report in sorted(spec.reports.items()):
        yield options_problem(id, values_of(report.options), allowed, f"reports.{name}.options")
    for name, algorithm in sorted(spec.algorithms.items()):
        for option, value in _searched(algorithm):
            yield options_problem(id, {option: value}, allowed, f"algorithms.{name}.hyperparameters.{_SEARCHED[:-1]}")
    plugins: Mapping[str, str] = {
        "evaluation.evaluator": evaluation.evaluator,
        "evolution.generator": spec.evolution.generator,
        "evolution.updater": spec.evolution.updater,
        "pod.worker": spec.pod.worker,
    }
    yield from (plugin_refusal(key, address, allowed) for key, address in plugins.items())
    for name, algorithm in sorted(spec.algorithms.items()):
        if name.startswith(FUNCTION) and not allowed.everything:
            yield f"algorithms.{name}: {INSTALLED_ONLY}"
        for key, kind in LEARNER_CODE.items():
            for address in learner_addresses(key, name, algorithm):
                if address.startswith(FUNCTION) and not allowed.everything:
                    where = f"algorithms.{name}.hyperparameters.{key} = {shown(address)}"
                    yield f"{where}: {INSTALLED_CODE_ONLY.format(kind)}"
        for key, text in _free_texts(algorithm):
            if problem := "" if allowed.everything else text_problem(text, allowed):
                yield f"algorithms.{name}.hyperparameters.{key} = {shown(text)}: {problem}"


def plugin_refusal(key: str, address: str, allowed: Allowed) -> str:
    """Returns why a key may not name a plugin; empty if it may, or names none."""
    problem = plugin_problem(address, allowed) if address else ""
    return f"{key} = {shown(address)}: {problem}" if problem else ""


def _free_texts(algorithm: AlgorithmSpec) -> Iterator[tuple[str, str]]:
    """Yields the key and each value of every hyperparameter that may be any text, and hence the path of a file."""
    declared = algorithm.declaration.hyperparameters
    for key in (one.name for one in declared if one.type == HYPERPARAMETER_TYPE_TEXT and not one.choices):
        searched = algorithm.hyperparameters[key] if key in algorithm.hyperparameters else HyperparameterSpec()
        yield from ((key, value.string_value) for value in (searched.value, *searched.choices) if value.string_value)
        yield from ((key, start.fields[key].string_value) for start in algorithm.starts if key in start.fields)


def _searched(algorithm: AlgorithmSpec) -> Iterator[tuple[str, object]]:
    """Yields each option of the environment that is searched, with each of its values."""
    for key, searched in sorted(algorithm.hyperparameters.items()):
        if key.startswith(_SEARCHED):
            for value in (searched.value, *searched.choices):
                yield key.removeprefix(_SEARCHED), json_format.MessageToDict(value)
    for start in algorithm.starts:
        for key, value in values_of(start).items():
            if key.startswith(_SEARCHED):
                yield key.removeprefix(_SEARCHED), value
