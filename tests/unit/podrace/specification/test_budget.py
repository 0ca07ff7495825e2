"""Lengths follow from the budget where the specification says nothing."""

from typing import Any

import pytest

from podrace.specification import catalog
from podrace.specification.budget import Lengths, lengths_of, population_of, typical_rate
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1 import tournament_pb2 as pb


def resolved(objective: dict[str, Any], **sections: Any) -> pb.TournamentSpec:
    spec: dict[str, Any] = {"environment": {"id": "cartpole"}, "algorithms": {"ppo": {}}, "objective": objective}
    return resolve(parse(spec | sections, source="test"))


def lengths(spec: pb.TournamentSpec) -> tuple[int, int]:
    return spec.evaluation.every_environment_steps, spec.assignment.environment_steps


def test_a_pod_makes_48_evaluations_in_12_assignments_of_its_share() -> None:
    spec = resolved({"environment_steps": 9_600_000}, pool={"maximum_pods": 4})
    assert lengths(spec) == (50_000, 200_000)
    assert lengths(resolved({"environment_steps": 960_000}, pool={"maximum_pods": 4})) == (5_000, 20_000)
    # A pool without a limit counts as two pods.
    assert lengths(resolved({"environment_steps": 960_000})) == (10_000, 40_000)
    assert lengths(resolved({"environment_steps": 960_000}, pool={"minimum_pods": 4})) == (5_000, 20_000)


def test_lengths_have_limits_and_two_digits() -> None:
    assert lengths_of(1, has_target=False) == Lengths(2_000, 8_000)
    assert lengths_of(1e12, has_target=False) == Lengths(250_000, 1_000_000)
    assert lengths_of(1e12, has_target=True) == Lengths(50_000, 200_000)
    assert lengths_of(48 * 12_345, has_target=False) == Lengths(12_000, 48_000)


def test_a_wall_clock_counts_with_a_typical_rate() -> None:
    # 96 s at 50,000 steps/s are 4.8 million steps for each pod, whatever their number.
    for pods in (1, 8):
        spec = resolved({"wall_clock_duration": 96}, pool={"maximum_pods": pods})
        assert lengths(spec) == (100_000, 400_000)
    assert lengths(resolved({"wall_clock_duration": 96}, environment={"id": "mujoco:Ant-v5"})) == (10_000, 40_000)


def test_rates_are_limited_by_gradient_steps_and_averaged_geometrically() -> None:
    assert typical_rate("CartPole-v1", [catalog.PPO]) == 50_000
    assert typical_rate("python:module:factory", [catalog.PPO]) == 2_000
    assert typical_rate("pendulum", [catalog.SAC]) == 500  # one gradient step for each environment step
    assert typical_rate("cartpole", [catalog.DQN]) == 2_000  # one for every four
    assert typical_rate("pendulum", [catalog.PPO, catalog.SAC]) == pytest.approx(5_000)


def test_what_the_specification_states_is_kept() -> None:
    budget = {"environment_steps": 960_000}
    assert lengths(resolved(budget, assignment={"environment_steps": 7})) == (1, 7)
    assert lengths(resolved(budget, evaluation={"every_environment_steps": 300})) == (300, 40_000)
    # An assignment has at least one evaluation.
    assert lengths(resolved(budget, evaluation={"every_environment_steps": 90_000})) == (90_000, 90_000)
    both = {"assignment": {"environment_steps": 100}, "evaluation": {"every_environment_steps": 30}}
    assert lengths(resolved(budget, **both)) == (30, 100)


def test_without_a_budget_there_are_fixed_defaults() -> None:
    spec = resolved({"target_return": 475}, evolution={"strategy": "truncation"})
    assert lengths(spec) == (50_000, 200_000)
    assert spec.evolution.population_size == 8


def test_a_seat_of_a_population_is_decided_on_six_times() -> None:
    assert population_of(assignments=60, pods=2, starts=0) == 10
    assert population_of(assignments=1, pods=2, starts=0) == 4
    assert population_of(assignments=1e6, pods=2, starts=0) == 32
    assert population_of(assignments=1, pods=40, starts=0) == 40
    assert population_of(assignments=1, pods=2, starts=6) == 6
    evolution = {"strategy": "truncation"}
    given = resolved({"environment_steps": 960_000}, evolution=evolution, assignment={"environment_steps": 10_000})
    assert given.evolution.population_size == 16
    assert not resolved({"environment_steps": 960_000}).evolution.HasField("population_size")
    own = resolved({"environment_steps": 960_000}, evolution=evolution | {"population_size": 5})
    assert own.evolution.population_size == 5


def test_more_pods_than_the_largest_population_are_accepted() -> None:
    spec = resolved({"environment_steps": 10**9}, evolution={"strategy": "truncation"}, pool={"maximum_pods": 2000})
    assert spec.evolution.population_size == 1000


@pytest.mark.parametrize("strategy", ["tournament", "truncation"])
def test_resolving_again_changes_nothing(strategy: str) -> None:
    spec = resolved({"wall_clock_duration": 77, "target_return": 1.0}, evolution={"strategy": strategy})
    assert resolve(spec) == spec
    # A limit that is changed later does not change the lengths.
    spec.objective.wall_clock_duration.FromSeconds(10_000)
    assert lengths(resolve(spec)) == lengths(spec)
