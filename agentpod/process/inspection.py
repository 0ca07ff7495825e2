"""Inspects a specification where pods run: makes its environments and algorithms once, and imports its plugins.

    python -m agentpod inspect < SPECIFICATION

The specification is a resolved, serialized TournamentSpec. One line of JSON is printed: a list of [key, problem]. The
process runs code that the specification names, so it has limits of its own and is killed with all that it started.
"""

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import torch
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from agentpod import algorithms
from agentpod.config import InspectConfig
from podrace.errors import FieldViolation, PodraceError
from podrace.limits.config import Allowed
from podrace.limits.file_options import with_paths
from podrace.plugins import loader
from podrace.plugins.address import PythonFunction, parse
from podrace.processes import user_ids
from podrace.specification.environment_search import algorithm_values
from podrace.tournament.v1.tournament_pb2 import AlgorithmSpec, EnvironmentSpec, TournamentSpec
from simulators.base import Space
from simulators.messages import make_simulator, with_options

CPU = torch.device("cpu")
SEED = 0


def run(config: InspectConfig) -> int:
    """Inspects the specification on stdin, prints what was found, and returns the exit code."""
    spec = TournamentSpec.FromString(sys.stdin.buffer.read())
    with _own_output() as output:
        if config.user_id:
            # Before the process becomes one of that user, who may be unable to read the folder of Python.
            importlib.import_module("simulators.gym.simulator")
            user_ids.limit(processes=True)
            user_ids.become(config.user_id, Path("/nonexistent"))
        loader.confine(config.memory_bytes)
        found = [[one.field, one.problem] for one in violations(spec, config.allow)]
        output.write(json.dumps(found) + "\n")
    return 0


def _own_output() -> TextIO:
    """Returns the output of this process for the caller; whatever else prints to it prints to stderr instead."""
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return own


def violations(spec: TournamentSpec, allowed: Allowed) -> Iterator[FieldViolation]:
    """Yields what makes a specification unusable in this process.

    Args:
        spec: Resolved specification.
        allowed: What it may name.
    """
    yield from _plugin_violations(spec)
    try:
        spaces = _spaces(spec.environment, allowed)
    except Exception as error:  # user code may raise anything
        try:
            spaces = _spaces(EnvironmentSpec(id=spec.environment.id, count=1), allowed)
        except Exception:
            yield FieldViolation("environment.id", _problem(error))
            return
        # It can be made without the options.
        yield FieldViolation("environment.options", _problem(error))
    for key, options in _variants(spec):
        try:
            _spaces(with_options(spec.environment, options, 1), allowed)
        except Exception as error:
            yield FieldViolation(key, _problem(error))
    for name, algorithm in sorted(spec.algorithms.items()):
        try:
            values = with_paths(name, _first_values(algorithm), allowed)
            with algorithms.reports_user_code(name, "__init__"):
                algorithms.make(name, *spaces, values, SEED, CPU)
        except PodraceError as error:
            yield FieldViolation(f"algorithms.{name}", _problem(error))


def _plugin_violations(spec: TournamentSpec) -> Iterator[FieldViolation]:
    plugins = {
        "evaluation.evaluator": spec.evaluation.evaluator,
        "evolution.generator": spec.evolution.generator,
        "evolution.updater": spec.evolution.updater,
    }
    for key, address in plugins.items():
        function = parse(address)
        if isinstance(function, PythonFunction):
            try:
                loader.load(function.module, function.name)
            except PodraceError as error:
                yield FieldViolation(key, _problem(error))


def _variants(spec: TournamentSpec) -> Iterator[tuple[str, Struct]]:
    """Yields the other options with which the environment will be made, by their key."""
    if spec.evaluation.options.fields:
        yield "evaluation.options", spec.evaluation.options
    for name, report in sorted(spec.reports.items()):
        if report.options.fields:
            yield f"reports.{name}.options", report.options


def _spaces(environment: EnvironmentSpec, allowed: Allowed) -> tuple[Space, Space]:
    """Makes one lane of an environment and returns its spaces for observations and actions."""
    made = with_options(environment, Struct(), 1)
    if made.id == "stocks" and "captured" in made.options.fields:
        # CUDA graphs need a GPU, which this process does not have; they change no space.
        del made.options.fields["captured"]
    simulator = make_simulator(made, CPU, allowed)
    try:
        return simulator.observation_space, simulator.action_space
    finally:
        simulator.close()


def _first_values(algorithm: AlgorithmSpec) -> dict[str, object]:
    """Returns the hyperparameters of the first agent of an algorithm."""
    values = {key: json_format.MessageToDict(each.value) for key, each in algorithm.hyperparameters.items()}
    return algorithm_values(values)


def _problem(error: Exception) -> str:
    """Returns one line that says what is wrong."""
    text = error.message if isinstance(error, PodraceError) else loader.describe_exception(error)
    return " ".join(text.split())
