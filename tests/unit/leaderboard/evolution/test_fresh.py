from collections import Counter
from collections.abc import Callable, Mapping
from math import log
from time import process_time

import pytest

from leaderboard.evolution.fresh import Turn, draw, turn_by_pod_time, turn_of
from leaderboard.evolution.space import Range, declared_values, is_structural, spaces_of
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
            assert isinstance(space, Range)
            assert space.contains(values[name])


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


def test_by_pod_time_every_algorithm_has_a_first_agent_the_largest_ratio_first() -> None:
    spec, spent = mix({"a": 1.0, "b": 2.0, "c": 1.0, "none": 0.0}), dict[str, float]()
    firsts = []
    for _ in range(3):
        turn = turn_by_pod_time(spec, spent)
        assert turn.first
        firsts.append(turn.algorithm)
        spent[turn.algorithm] = 1000.0
    assert firsts == ["b", "a", "c"]
    assert not turn_by_pod_time(spec, spent).first


def test_the_turn_is_that_of_the_algorithm_whose_pod_time_is_furthest_below_its_share() -> None:
    spec = mix({"a": 1.0, "b": 1.0, "c": 2.0})
    # Shares of 400 s: 100, 100 and 200 s.
    assert turn_by_pod_time(spec, {"a": 90.0, "b": 60.0, "c": 250.0}).algorithm == "b"
    assert turn_by_pod_time(spec, {"a": 130.0, "b": 110.0, "c": 160.0}).algorithm == "c"
    assert turn_by_pod_time(spec, {"a": 100.0, "b": 100.0, "c": 200.0}).algorithm == "a"


def test_without_an_algorithm_that_left_the_draw_the_others_share_the_pod_time() -> None:
    spec = mix({"a": 1.0, "b": 3.0, "c": 1.0})
    assert turn_by_pod_time(spec, {"a": 50.0, "b": 0.0, "c": 49.0}, left={"b"}).algorithm == "c"
    with pytest.raises(ValueError, match="no algorithm"):
        turn_by_pod_time(spec, {}, left={"a", "b", "c"})


@pytest.mark.parametrize("pods", [1, 2, 8])
def test_shares_of_pod_time_equal_the_ratios_however_long_the_agents_take(pods: int) -> None:
    ratios, lengths = {"a": 1.0, "b": 1.0, "c": 2.0}, {"a": 7.0, "b": 1.0, "c": 3.0}
    spec, spent = mix(ratios), dict[str, float]()
    work: dict[int, tuple[str, float]] = {}
    clock = 0.0
    for _ in range(1000):
        for pod in set(range(pods)) - work.keys():
            name = turn_by_pod_time(spec, spent).algorithm
            spent.setdefault(name, 0.0)
            work[pod] = name, clock + lengths[name]
        end = min(end for _, end in work.values())
        for name, _ in work.values():
            spent[name] += end - clock
        clock, work = end, {pod: one for pod, one in work.items() if one[1] > end}
    for name, ratio in ratios.items():
        assert spent[name] / sum(spent.values()) == pytest.approx(ratio / 4, abs=0.02)


def test_the_first_agents_of_an_algorithm_have_the_values_of_its_starts_in_order(make_spec: MakeSpec) -> None:
    starts = [{"learning_rate": 2e-4}, {"learning_rate": 1e-3, "hidden_sizes": [32, 32]}]
    spec = make_spec(algorithms={"ppo": {"starts": starts}, "a2c": {"ratio": 2.0}})
    declared = declared_values(spec.algorithms["ppo"])
    numbers = [number for number in range(12) if turn_of(spec, number).algorithm == "ppo"]
    assert draw(spec, numbers[0])[1] == declared | {"learning_rate": 2e-4}
    assert draw(spec, numbers[1])[1] == declared | {"learning_rate": 1e-3, "hidden_sizes": [32.0, 32.0]}
    third = draw(spec, numbers[2])[1]
    assert third["hidden_sizes"] == declared["hidden_sizes"]
    assert third["clip_range"] != declared["clip_range"]


def test_a_turn_counts_the_lower_numbers_of_its_algorithm_over_all_periods() -> None:
    spec, seen = mix({"ppo": 3.0, "sac": 1.0, "td3": 1.0}), Counter[str]()
    for number in range(40):
        turn = turn_of(spec, number)
        assert turn.ordinal == seen[turn.algorithm]
        seen[turn.algorithm] += 1


def test_with_the_wide_preset_the_first_agent_draws_its_values_too(make_spec: MakeSpec) -> None:
    spec = make_spec(search="wide")
    turn, values = draw(spec, 0)
    assert turn.first
    spaces = spaces_of("ppo", spec.algorithms["ppo"])
    assert {name for name, value in values.items() if value != declared_values(spec.algorithms["ppo"])[name]} <= set(
        spaces
    )
    assert values["learning_rate"] != 3e-4
    starts = make_spec(search="wide", algorithms={"ppo": {"starts": [{"learning_rate": 2e-3}]}})
    assert draw(starts, 0)[1] == declared_values(starts.algorithms["ppo"]) | {"learning_rate": 2e-3}


def test_searched_keys_of_the_environment_are_drawn_and_children_keep_them(make_spec: MakeSpec) -> None:
    searched = {"count": {"low": 8, "high": 64}, "options.frame_skip": {"choices": [1, 2, 4]}}
    spec = make_spec(environment={"id": "CartPole-v1", "search": searched})
    drawn = [draw(spec, number)[1] for number in range(40)]
    assert drawn[0]["environment.count"] == 16.0
    counts = {values["environment.count"] for values in drawn}
    assert len(counts) > 10
    assert all(isinstance(count, float) and count.is_integer() and 8 <= count <= 64 for count in counts)
    assert {values["environment.options.frame_skip"] for values in drawn} == {1.0, 2.0, 4.0}
    assert is_structural("ppo", AlgorithmSpec(), "environment.count")
    assert is_structural("ppo", AlgorithmSpec(), "environment.options.frame_skip")


def test_the_turns_are_those_of_smooth_weighted_round_robin_in_whatever_order_they_are_computed() -> None:
    spec = mix({"ppo": 1.0, "a2c": 0.333333})
    # The weights in alphabetical order, as whole numbers.
    weights = {"a2c": 333_333, "ppo": 1_000_000}
    credit, counts, expected = dict.fromkeys(weights, 0), dict.fromkeys(weights, 0), []
    for _ in range(300):
        credit = {name: credit[name] + weight for name, weight in weights.items()}
        name = max(credit, key=lambda name: credit[name])
        credit[name] -= sum(weights.values())
        expected.append(Turn(name, first=counts[name] == 0, ordinal=counts[name]))
        counts[name] += 1
    assert [turn_of(spec, number) for number in reversed(range(300))] == expected[::-1]
    later = turn_of(spec, 1_333_333 + 7)
    name, ordinal = expected[7].algorithm, expected[7].ordinal
    assert ordinal is not None
    assert later == Turn(name, first=False, ordinal=ordinal + weights[name])


def test_a_turn_in_a_long_period_does_not_repeat_the_turns_before() -> None:
    spec = mix({"ppo": 1.0, "a2c": 0.1234567})
    turn_of(spec, 20_000)
    begin = process_time()
    for number in range(20_000, 20_300):
        turn_of(spec, number)
    # Repeating all earlier turns takes several seconds.
    assert process_time() - begin < 1.0
