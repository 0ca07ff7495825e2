"""Mutates the hyperparameters of a child.

Each searched hyperparameter changes with `mutation_probability`. It is then drawn again with `resample_probability`,
and otherwise perturbed by `mutation_factor` (leaderboard.evolution.space). This is "explore" of Jaderberg et al.,
"Population Based Training of Neural Networks", arXiv 1711.09846, section 4.1: perturb by a factor, or resample from the
prior.

Conditions between hyperparameters (`when` in the specification) are applied to the values that any strategy or plugin
has chosen (`settled_child`), so strategies need not take them into account.
"""

from collections.abc import Callable, Mapping
from random import Random

from leaderboard.evolution.space import Space, Value, is_structural, perturbed, plain, spaces_of
from leaderboard.seeding import happens
from podrace.specification.conditions import is_active, order_of
from podrace.tournament.v1.tournament_pb2 import AlgorithmSpec, EvolutionSpec


def mutate(
    parent: Mapping[str, Value], spaces: Mapping[str, Space], evolution: EvolutionSpec, random: Random
) -> dict[str, Value]:
    """Returns the hyperparameters of a child.

    Args:
        parent: Every hyperparameter of the parent.
        spaces: Of the hyperparameters that may change in a child (`movable_spaces`); all others keep their values.
        evolution: Resolved probabilities and factor.
        random: Random stream of the child.
    """

    def perturb(value: Value, space: Space) -> Value:
        return perturbed(space, value, evolution.mutation_factor, random)

    return vary(parent, spaces, evolution, perturb, random)


def vary(
    parent: Mapping[str, Value],
    spaces: Mapping[str, Space],
    evolution: EvolutionSpec,
    perturb: Callable[[Value, Space], Value],
    random: Random,
) -> dict[str, Value]:
    """As `mutate`, with another perturbation."""
    child = dict(parent)
    for name in sorted(spaces):
        if happens(random, evolution.mutation_probability):
            resampled = happens(random, evolution.resample_probability)
            child[name] = spaces[name].draw(random) if resampled else perturb(parent[name], spaces[name])
    return child


def settled_child(
    name: str,
    algorithm: AlgorithmSpec,
    parent: Mapping[str, Value],
    values: Mapping[str, Value],
    random: Random,
) -> dict[str, Value]:
    """Returns the values of a child.

    A hyperparameter that was inactive in the parent and is active now is drawn, unless the child has another value than
    its parent already. Structural hyperparameters are always the parent's.

    Args:
        name: Name of the algorithm.
        algorithm: Its resolved specification.
        parent: Values of the parent.
        values: Values that a strategy or a plugin chose for the child.
        random: Random stream for the draws.
    """
    result = dict(values)
    for key in order_of(algorithm.hyperparameters):
        if is_structural(name, algorithm, key):
            continue
        if not is_active(algorithm.hyperparameters[key], result):
            result[key] = plain(algorithm.hyperparameters[key].value)
        elif not is_active(algorithm.hyperparameters[key], parent) and result[key] == parent.get(key):
            result[key] = spaces_of(name, algorithm)[key].draw(random)
    return result


def describe_changes(parent: Mapping[str, Value], child: Mapping[str, Value]) -> str:
    """Describes the differences: `learning_rate 0.0003 -> 0.000375`; empty if there are none."""
    changed = (name for name in sorted(child) if child[name] != parent[name])
    return ", ".join(f"{name} {_shown(parent[name])} -> {_shown(child[name])}" for name in changed)


def _shown(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
