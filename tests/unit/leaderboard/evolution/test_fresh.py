from collections import Counter
from collections.abc import Callable, Mapping
from math import log

import pytest

from leaderboard.evolution.fresh import draw, turn_of
from leaderboard.evolution.space import Range, declared_values, spaces_of
from podrace.tournament.v1.tournament_pb2 import AlgorithmSpec, TournamentSpec

MakeSpec = Callable[..., TournamentSpec]


def mix(ratios: Mapping[str, float]) -> TournamentSpec:
    return TournamentSpec(algorithms={name: AlgorithmSpec(ratio=ratio) for name, ratio in ratios.items()})


def turns(ratios: Mapping[str, float], count: int) -> list[str]:
    spec = mix(ratios)
    return [turn_of(spec, number).algorithm for number in range(count)]


def test_equal_ratios_take_turns_exactly() -> None:
    assert turns({"ppo": 1.0, "sac": 1.0, "td3": 1.0}, 7) == ["ppo", "sac", "td3", "ppo", "sac", "td3", "ppo"]


@pytest.mark.parametrize(
    "ratios",
    [
        {"ppo": 2.0, "sac": 1.0},
        {"ppo": 0.5, "sac": 0.3, "td3": 0.2},
        {"a": 0.1, "b": 0.7, "c": 1.0, "d": 3.3},
        {"a": 1 / 3, "b": 2 / 3},
    ],
)
def test_shares_are_exact_over_a_period_and_never_off_by_more_than_the_other_algorithms(
    ratios: dict[str, float],
) -> None:
    total = sum(ratios.values())
    sequence = turns(ratios, 510)
    for count in range(1, 511):
        so_far = Counter(sequence[:count])
        for name, ratio in ratios.items():
            assert abs(so_far[name] - count * ratio / total) < len(ratios) - 1 + 1e-6
    whole_periods = Counter(sequence)
    for name, ratio in ratios.items():
        assert whole_periods[name] == pytest.approx(510 * ratio / total)


def test_an_algorithm_with_ratio_zero_never_has_a_turn() -> None:
    assert set(turns({"ppo": 1.0, "sac": 0.0}, 50)) == {"ppo"}


def test_a_turn_is_first_if_no_lower_number_has_its_algorithm() -> None:
    spec = mix({"ppo": 3.0, "sac": 1.0, "td3": 1.0})
    seen: set[str] = set()
    for number in range(40):
        turn = turn_of(spec, number)
        assert turn.first is (turn.algorithm not in seen)
        seen.add(turn.algorithm)
    assert len(seen) == 3


def test_the_first_agent_of_an_algorithm_has_the_values_of_the_specification(make_spec: MakeSpec) -> None:
    spec = make_spec(
        algorithms={"ppo": {"hyperparameters": {"learning_rate": {"low": 1e-4, "high": 1e-2, "value": 2e-3}}}}
    )
    turn, values = draw(spec, 0)
    assert turn.first
    assert values == declared_values(spec.algorithms["ppo"])
    assert values["learning_rate"] == 2e-3


def test_later_fresh_agents_draw_searched_values_only(make_spec: MakeSpec) -> None:
    spec = make_spec()
    spaces = spaces_of("ppo", spec.algorithms["ppo"])
    declared = declared_values(spec.algorithms["ppo"])
    for number in range(1, 30):
        values = draw(spec, number)[1]
        assert {name for name in values if values[name] != declared[name]} == spaces.keys()
        for name, space in spaces.items():
            value = values[name]
            assert isinstance(space, Range)
            assert isinstance(value, float)
            assert space.low <= value <= space.high


def test_fresh_draws_depend_only_on_seed_and_number(make_spec: MakeSpec) -> None:
    spec, other_seed = make_spec(seed=1), make_spec(seed=2)
    assert draw(spec, 5) == draw(spec, 5)
    assert draw(spec, 5) != draw(other_seed, 5)
    assert draw(spec, 5) != draw(spec, 6)
    changed_elsewhere = make_spec(seed=1, evolution={"strategy": "random-search", "board_capacity": 3})
    assert draw(changed_elsewhere, 5) == draw(spec, 5)


def test_learning_rates_spread_evenly_over_their_logarithm(make_spec: MakeSpec) -> None:
    spec = make_spec(algorithms={"ppo": {"hyperparameters": {"learning_rate": {"low": 1e-4, "high": 1e-2}}}})
    rates = [float(str(draw(spec, number)[1]["learning_rate"])) for number in range(1, 600)]
    below = sum(rate < 1e-3 for rate in rates) / len(rates)
    assert below == pytest.approx(log(1e-3 / 1e-4) / log(1e-2 / 1e-4), abs=0.05)
