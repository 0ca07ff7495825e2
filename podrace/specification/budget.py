"""Derives the length of an assignment, the period of evaluations and the size of a population from the budget. Pure.

They are derived where the specification says nothing and `objective` has a budget: `environment_steps`, or else
`wall_clock_duration` times a typical rate. GetTournament returns the values; resolving again does not change them.

    steps of a pod         budget / pods; pods = `pool.maximum_pods`, or at least 2 if the pool has no limit
    period of evaluations  steps of a pod / 48, from 2,000 to 250,000; at most 50,000 with `target_return`
    assignment             4 periods, and at least `evaluation.every_environment_steps` if that is given
    population             a sixth of the assignments that the budget holds, from 4 to 32, at least one for each pod and
                           for each of `algorithms.NAME.starts`, and at most 1,000

Why these numbers: a strategy learns from scores, and each decision costs time. With 48 evaluations in the time of a
pod, a ladder of halving (2, 6 and 18 periods) fits twice, and a seat of a population is decided on six times. The upper
limits keep agents short enough to be replaced in long tournaments, the lower one is about one rollout. With a target,
evaluations are frequent enough to notice it.

Why steps, if only the wall clock is limited: periods in seconds would depend on the load of the machine, so agents
could not be compared at equal steps, and no tournament could be repeated. The rate is known in its order of magnitude
only. If it is wrong by a factor of 4, a pod makes 12 or 192 evaluations instead of 48, which is still useful, and
`evaluation.share` limits their cost.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from podrace.specification import evolution_settings
from podrace.specification.catalog import Algorithm
from podrace.specification.declared_algorithms import entry_of
from podrace.tournament.v1 import tournament_pb2 as pb

EVALUATIONS_PER_POD = 48
EVALUATIONS_PER_ASSIGNMENT = 4
ASSIGNMENTS_PER_SEAT = 6
PERIOD_LIMITS = (2_000, 250_000)
LONGEST_PERIOD_WITH_TARGET = 50_000
POPULATION_LIMITS = (4, 32)
LARGEST_POPULATION = 1000
"""Largest `evolution.population_size` that is accepted."""
PODS_OF_AN_UNLIMITED_POOL = 2
RATES: Mapping[str, float] = {
    "cartpole": 50_000,
    "pendulum": 50_000,
    "acrobot": 50_000,
    "mountaincar": 50_000,
    "stocks": 50_000,
    "warp:": 50_000,
    "isaac": 50_000,
    "mujoco:": 5_000,
    "envpool:": 5_000,
    "atari:": 1_000,
    "": 2_000,
}
"""Typical environment steps per second of a pod with one core, or one GPU, that trains PPO, by a prefix of the
environment's id in lower case; the first that matches."""
GRADIENT_STEPS_PER_SECOND = 500.0
"""Typical for an off-policy algorithm on one core; it limits the rate of environment steps."""


@dataclass(frozen=True)
class Lengths:
    """What is derived from a budget."""

    period_steps: int
    """Environment steps between two evaluations of an agent."""
    assignment_steps: int
    """Environment steps of an assignment."""


def fill(spec: pb.TournamentSpec) -> None:
    """Sets what can be derived and is not set, in place.

    Args:
        spec: Its environment is resolved; no other section has to be.
    """
    pods = max(spec.pool.maximum_pods or PODS_OF_AN_UNLIMITED_POOL, spec.pool.minimum_pods, 1)
    steps = budget_steps(spec, pods)
    if steps is None:
        return
    lengths = lengths_of(steps / pods, has_target=spec.objective.HasField("target_return"))
    if not spec.assignment.HasField("environment_steps"):
        if not spec.evaluation.HasField("every_environment_steps"):
            spec.evaluation.every_environment_steps = lengths.period_steps
        spec.assignment.environment_steps = max(lengths.assignment_steps, spec.evaluation.every_environment_steps)
    strategy = spec.evolution.strategy or str(evolution_settings.DEFAULTS["strategy"])
    has_population = "population_size" in evolution_settings.SETTINGS.get(strategy, {})
    if has_population and not spec.evolution.HasField("population_size"):
        starts = sum(len(algorithm.starts) for algorithm in spec.algorithms.values())
        spec.evolution.population_size = population_of(steps / spec.assignment.environment_steps, pods, starts)


def lengths_of(pod_steps: float, *, has_target: bool) -> Lengths:
    """Returns the lengths for a budget of environment steps of one pod."""
    low, high = PERIOD_LIMITS
    high = min(high, LONGEST_PERIOD_WITH_TARGET) if has_target else high
    period = _two_digits(min(max(pod_steps / EVALUATIONS_PER_POD, low), high))
    return Lengths(period, EVALUATIONS_PER_ASSIGNMENT * period)


def population_of(assignments: float, pods: int, starts: int) -> int:
    """Returns the size of a population.

    Args:
        assignments: How many assignments the budget holds.
        pods: Number of pods.
        starts: Number of `algorithms.NAME.starts`, which are tried by the first agents.
    """
    low, high = POPULATION_LIMITS
    size = min(max(int(assignments / ASSIGNMENTS_PER_SEAT), low), high)
    return min(max(size, pods, starts), LARGEST_POPULATION)


def budget_steps(spec: pb.TournamentSpec, pods: int) -> float | None:
    """Returns the environment steps that the objective allows; None without a budget.

    Args:
        spec: The specification.
        pods: Number of pods.
    """
    objective = spec.objective
    if objective.HasField("environment_steps"):
        return objective.environment_steps
    if objective.HasField("wall_clock_duration"):
        known = [entry_of(name, algorithm) for name, algorithm in spec.algorithms.items()]
        return _seconds(objective.wall_clock_duration) * pods * typical_rate(spec.environment.id, known)
    return None


def typical_rate(environment_id: str, algorithms: Iterable[Algorithm | None]) -> float:
    """Returns the typical environment steps per second of a pod with one core: the geometric mean over algorithms."""
    rate = next(rate for begin, rate in RATES.items() if environment_id.lower().startswith(begin))
    rates = []
    for entry in algorithms:
        updates = entry.hyperparameters.get("updates_per_step") if entry else None
        steps = updates.default if updates else 0
        limit = GRADIENT_STEPS_PER_SECOND / steps if isinstance(steps, int | float) and steps > 0 else math.inf
        rates.append(min(rate, limit))
    return math.prod(rates) ** (1 / len(rates)) if rates else rate


def _seconds(duration: Duration) -> float:
    return duration.ToNanoseconds() / 1e9


def _two_digits(number: float) -> int:
    """Rounds down to two significant digits, so that the value is easy to read."""
    unit = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return int(number // unit * unit)
