"""Decides whether a specification names user code, which runs apart from the leader of a pod. Pure.

    if runs_apart(spec, allowed):
        ...         # workers and evaluators have a process, and where possible a user id, of their own

User code is what a specification names by `python:module:function` or `module:Name-v0`: environments, wrappers,
workers and evaluation functions. Packages that the operator has
installed are trusted, and a simulator at `grpc://` runs elsewhere.
"""

from podrace.limits.config import Allowed
from podrace.limits.names import FUNCTION, imported_module
from podrace.limits.specification import wrappers_of
from podrace.specification.declared_algorithms import LEARNER_CODE, learner_addresses
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def runs_apart(spec: TournamentSpec, allowed: Allowed) -> bool:
    """Returns whether the pods of a tournament run user code that must not share a process with the leader.

    With `allow.everything` the services, the pods and the code belong to one user.
    """
    return not allowed.everything and names_user_code(spec)


def names_user_code(spec: TournamentSpec) -> bool:
    """Returns whether the pods of a tournament import modules that its specification names."""
    named = bool(imported_module(spec.environment.id)) or spec.evaluation.evaluator.startswith(FUNCTION)
    return named or spec.pod.worker.startswith(FUNCTION) or bool(wrappers_of(spec))


def imports_user_code(spec: TournamentSpec) -> bool:
    """Returns whether pods or services import modules that a specification names, for its generator for instance."""
    # A class of an algorithm is imported where a specification is inspected; elsewhere only with `allow.everything`.
    learner_code = [
        address for pair in spec.algorithms.items() for key in LEARNER_CODE for address in learner_addresses(key, *pair)
    ]
    plugins = (spec.evolution.generator, spec.evolution.updater, *spec.algorithms, *learner_code)
    return names_user_code(spec) or any(address.startswith(FUNCTION) for address in plugins)
