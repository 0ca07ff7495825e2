import math
from random import Random
from statistics import fmean, pstdev

import pytest
from google.protobuf import json_format, struct_pb2

from leaderboard.evolution.space import (
    Choices,
    Range,
    declared_values,
    is_whole,
    perturbed,
    plain,
    scaled,
    spaces_of,
    stepped,
)
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1.tournament_pb2 import AlgorithmSpec

UP, DOWN = 0.0, 0.9
ONE_DEVIATION_UP, ONE_DEVIATION_DOWN = 0.8413447460685429, 0.15865525393145707
DISCOUNT = Range(0.9, 0.999, reverse=True)
ENTROPY = Range(1e-4, 1e-2, logarithmic=True, zero_probability=0.2)
LAMBDA = Range(0.9, 0.99, reverse=True, zero_probability=0.2)
WIDTH = Range(8, 128, logarithmic=True, whole=True, zero_probability=0.5)


class Scripted(Random):
    """Random numbers that a test has written down."""

    def __init__(self, *numbers: float) -> None:
        super().__init__(0)
        self._numbers = list(numbers)

    def random(self) -> float:
        return self._numbers.pop(0)


def test_a_logarithmic_value_is_multiplied_or_divided_by_the_factor() -> None:
    space = Range(1e-4, 1e-2, logarithmic=True)
    assert space.perturb(1e-3, 1.25, Scripted(UP)) == 1e-3 * 1.25
    assert space.perturb(1e-3, 1.25, Scripted(DOWN)) == 1e-3 / 1.25


def test_a_linear_value_moves_by_the_share_of_the_range_that_division_takes_off() -> None:
    space = Range(0.0, 10.0)
    assert space.perturb(5.0, 1.25, Scripted(UP)) == pytest.approx(7.0)  # 1 - 1/1.25 = a fifth of the range
    assert space.perturb(5.0, 1.25, Scripted(DOWN)) == pytest.approx(3.0)
    assert space.perturb(1.0, 2.0, Scripted(UP)) == 6.0


def test_ends_reflect_on_the_scale_of_the_range() -> None:
    assert Range(0.0, 10.0).perturb(9.0, 1.25, Scripted(UP)) == pytest.approx(9.0)  # 9 -> 11 -> 9
    assert Range(0.0, 10.0).perturb(10.0, 1.25, Scripted(UP)) == pytest.approx(8.0)
    assert Range(0.0, 10.0).perturb(0.5, 1.25, Scripted(DOWN)) == pytest.approx(1.5)
    space = Range(1e-4, 1e-2, logarithmic=True)
    assert space.perturb(1e-2, 2.0, Scripted(UP)) == pytest.approx(5e-3)
    assert space.perturb(1e-4, 2.0, Scripted(DOWN)) == pytest.approx(2e-4)


def test_a_value_beyond_the_other_end_after_reflection_is_clipped() -> None:
    assert Range(1.0, 2.0, logarithmic=True).perturb(1.5, 100.0, Scripted(UP)) == 1.0
    assert Range(1.0, 2.0, logarithmic=True).perturb(1.5, 100.0, Scripted(DOWN)) == 2.0


@pytest.mark.parametrize("space", [Range(1, 8, whole=True), Range(1, 8, logarithmic=True, whole=True)])
def test_whole_numbers_stay_whole_stay_inside_and_always_move(space: Range) -> None:
    for value in range(1, 9):
        for direction in (UP, DOWN):
            for factor in (1.01, 1.25, 3.0):
                moved = space.perturb(value, factor, Scripted(direction))
                assert moved == int(moved)
                assert 1 <= moved <= 8
                assert moved != value or factor == 3.0


def test_whole_numbers_move_by_one_in_the_direction_drawn_where_rounding_would_keep_them() -> None:
    space = Range(1, 100, logarithmic=True, whole=True)
    assert space.perturb(2, 1.25, Scripted(UP)) == 3
    assert space.perturb(2, 1.25, Scripted(DOWN)) == 1
    assert space.perturb(100, 1.001, Scripted(UP)) == 99


@pytest.mark.parametrize("space", [Range(0.0, 1.0), Range(1.0, 9.0, logarithmic=True), Range(1, 9, whole=True)])
def test_with_factor_one_nothing_moves(space: Range) -> None:
    assert space.perturb(1.0, 1.0, Scripted(UP)) == 1.0


def test_draws_are_uniform_on_the_scale_of_the_range() -> None:
    assert Range(2.0, 4.0).draw(Scripted(0.25)) == 2.5
    assert Range(1e-4, 1e-2, logarithmic=True).draw(Scripted(0.5)) == pytest.approx(1e-3)
    assert Range(1e-4, 1e-2, logarithmic=True).draw(Scripted(0.0)) == 1e-4


def test_every_whole_number_is_drawn_equally_often_on_a_linear_scale() -> None:
    draws = [Range(1, 4, whole=True).draw(Scripted((position + 0.5) / 400)) for position in range(400)]
    assert [draws.count(value) for value in (1, 2, 3, 4)] == [100] * 4


def test_a_logarithmic_whole_number_is_drawn_in_proportion_to_the_logarithm_of_its_share() -> None:
    draws = [Range(1, 8, logarithmic=True, whole=True).draw(Scripted((i + 0.5) / 10_000)) for i in range(10_000)]
    for value in range(1, 9):
        share = math.log((value + 0.5) / (value - 0.5)) / math.log(8.5 / 0.5)
        assert draws.count(value) == pytest.approx(10_000 * share, abs=2)


@pytest.mark.parametrize(
    "space",
    [
        Range(-3.0, 0.1),
        Range(1e-5, 0.02, logarithmic=True),
        Range(1.5, 7.2, whole=True),
        Range(2, 900, True, True),
        DISCOUNT,
        ENTROPY,
        LAMBDA,
        WIDTH,
    ],
)
def test_draws_and_moves_never_leave_the_range(space: Range) -> None:
    random = Random(0)
    for _ in range(2000):
        value = space.draw(random)
        assert space.contains(value)
        assert space.contains(space.perturb(value, 1.0 + 3 * random.random(), random))
        assert space.contains(space.scale(value, 0.2 + 2 * random.random()))
        assert space.contains(space.step(value, 3 * random.random(), random))


def test_a_choice_moves_to_a_neighbor_and_turns_at_the_ends() -> None:
    space = Choices(("a", "b", "c"))
    assert [space.perturb("b", 1.25, Scripted(direction)) for direction in (UP, DOWN)] == ["c", "a"]
    assert [space.perturb("a", 1.25, Scripted(direction)) for direction in (UP, DOWN)] == ["b", "b"]
    assert [space.perturb("c", 1.25, Scripted(direction)) for direction in (UP, DOWN)] == ["b", "b"]


def test_a_single_choice_stays_and_an_unknown_value_is_drawn_again() -> None:
    assert Choices(("a",)).perturb("a", 1.25, Scripted(UP)) == "a"
    assert Choices(("a", "b")).perturb("z", 1.25, Scripted(UP, 0.7)) == "b"


def test_a_value_is_scaled_by_a_factor_on_a_logarithmic_range_and_by_its_share_of_a_linear_one() -> None:
    assert Range(1e-4, 1e-2, logarithmic=True).scale(1e-3, 1.2) == pytest.approx(1.2e-3)
    assert Range(1e-4, 1e-2, logarithmic=True).scale(1e-3, 0.8) == pytest.approx(8e-4)
    assert Range(0.0, 10.0).scale(5.0, 1.2) == pytest.approx(7.0)
    assert Range(0.0, 10.0).scale(5.0, 0.8) == pytest.approx(3.0)
    assert Range(0.0, 10.0).scale(9.0, 1.2) == pytest.approx(9.0)  # 9 -> 11 -> 9
    assert Range(1, 100, whole=True, logarithmic=True).scale(2, 1.2) == 3
    assert Range(1, 100, whole=True, logarithmic=True).scale(2, 0.8) == 1
    assert Range(0.0, 10.0).scale(9.0, 1.0) == 9.0


def test_choices_are_scaled_to_the_neighbor_on_that_side() -> None:
    space = Choices(("a", "b", "c"))
    assert [scaled(space, "b", factor, Scripted()) for factor in (1.2, 0.8, 1.0)] == ["c", "a", "b"]
    assert scaled(space, "c", 1.2, Scripted()) == "b"


@pytest.mark.parametrize(
    "space", [Range(-2.0, 3.0), Range(1e-5, 1e-1, logarithmic=True), Range(1, 9, whole=True), DISCOUNT]
)
def test_a_position_maps_to_a_value_and_back(space: Range) -> None:
    assert (space.position(space.low), space.position(space.high)) == (0.0, pytest.approx(1.0))
    assert (space.at(0.0), space.at(1.0)) == (space.low, pytest.approx(space.high))
    for value in (space.at(0.25), space.at(0.5)):
        assert space.at(space.position(value)) == pytest.approx(value)
    assert Range(1e-4, 1e-2, logarithmic=True).at(0.5) == pytest.approx(1e-3)


def test_spaces_are_those_of_the_specification_and_whole_numbers_those_of_the_catalog() -> None:
    searched = {
        "learning_rate": {"low": 1e-4, "high": 1e-2},
        "epochs": {"low": 2, "high": 8},
        "gae_lambda": {"low": 0, "high": 1, "value": 1},
        "activation": {"choices": ["tanh", "relu"]},
        "hidden_sizes": {"choices": [[64, 64], [128, 128]]},
        "clip_range": 0.2,
        "entropy_coefficient": 0.01,
    }
    values = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"ppo": {"hyperparameters": searched}},
        "objective": {"target_return": 475.0},
    }
    ppo = resolve(parse(values, source="test")).algorithms["ppo"]
    assert spaces_of("ppo", ppo) == {
        "activation": Choices(("tanh", "relu")),
        "epochs": Range(2, 8, whole=True),
        "gae_lambda": Range(0, 1),
        "hidden_sizes": Choices(([64.0, 64.0], [128.0, 128.0])),
        "learning_rate": Range(1e-4, 1e-2, logarithmic=True),
    }
    declared = declared_values(ppo)
    assert declared["clip_range"] == 0.2
    assert declared["hidden_sizes"] == [64.0, 64.0]
    assert declared.keys() == ppo.hyperparameters.keys()


def test_booleans_are_not_whole_numbers() -> None:
    assert is_whole("ppo", AlgorithmSpec(), "epochs")
    assert not is_whole("ppo", AlgorithmSpec(), "normalize_rewards")
    assert not is_whole("ppo", AlgorithmSpec(), "learning_rate")


def test_perturbed_handles_ranges_and_choices() -> None:
    assert perturbed(Range(0.0, 10.0), 5.0, 2.0, Scripted(UP)) == 10.0
    assert perturbed(Choices((1.0, 2.0)), 1.0, 2.0, Scripted(UP)) == 2.0


# --- scale of 1 - x ----------------------------------------------------------------------------------------------


def test_a_reverse_logarithmic_range_is_uniform_in_the_logarithm_of_one_minus_the_value() -> None:
    assert [DISCOUNT.draw(Scripted(share)) for share in (0.0, 0.5, 1.0)] == pytest.approx([0.9, 0.99, 0.999])
    assert [DISCOUNT.position(value) for value in (0.9, 0.99, 0.999)] == pytest.approx([0.0, 0.5, 1.0])
    assert DISCOUNT.coordinate(0.99) == pytest.approx(math.log(100))


def test_a_reverse_logarithmic_value_moves_by_a_factor_of_its_distance_to_one() -> None:
    assert DISCOUNT.perturb(0.98, 2.0, Scripted(UP)) == pytest.approx(0.99)
    assert DISCOUNT.perturb(0.98, 2.0, Scripted(DOWN)) == pytest.approx(0.96)
    assert DISCOUNT.scale(0.98, 2.0) == pytest.approx(0.99)
    assert DISCOUNT.scale(0.98, 0.5) == pytest.approx(0.96)


def test_a_reverse_logarithmic_range_reflects_on_its_scale() -> None:
    # 1 - x = 0.06 -> 0.18, reflected at 0.1: 0.1^2 / 0.18.
    assert DISCOUNT.perturb(0.94, 3.0, Scripted(DOWN)) == pytest.approx(1 - 0.01 / 0.18)
    assert DISCOUNT.perturb(0.9985, 3.0, Scripted(UP)) == pytest.approx(1 - 1e-6 / 0.0005)


# --- an extra value ----------------------------------------------------------------------------------------------


def test_zero_is_drawn_with_its_probability_and_the_rest_is_uniform_in_the_logarithm() -> None:
    draws = [ENTROPY.draw(Scripted((i + 0.5) / 1000)) for i in range(1000)]
    assert draws.count(0.0) == 200
    assert sum(1e-4 <= value < 1e-3 for value in draws) == pytest.approx(400, abs=1)
    assert sum(1e-3 <= value <= 1e-2 for value in draws) == pytest.approx(400, abs=1)


def test_the_extra_value_of_a_reverse_logarithmic_range_is_one() -> None:
    draws = [LAMBDA.draw(Scripted((i + 0.5) / 1000)) for i in range(1000)]
    assert draws.count(1.0) == 200
    assert max(value for value in draws if value < 1) == pytest.approx(0.99, abs=1e-4)


def test_a_perturbation_beyond_the_low_end_reaches_zero_and_one_of_zero_returns_to_that_end() -> None:
    assert ENTROPY.perturb(1.5e-4, 2.0, Scripted(DOWN)) == 0.0
    assert ENTROPY.scale(1.5e-4, 0.5) == 0.0
    assert ENTROPY.perturb(4e-4, 2.0, Scripted(DOWN)) == pytest.approx(2e-4)
    assert [ENTROPY.perturb(0.0, 2.0, Scripted(direction)) for direction in (UP, DOWN)] == [1e-4, 1e-4]
    assert ENTROPY.perturb(8e-3, 2.0, Scripted(UP)) == pytest.approx(1e-4 / 1.6e-2)  # reflected at the other end


def test_a_perturbation_beyond_the_high_end_of_a_reverse_range_reaches_one_and_returns_from_it() -> None:
    assert LAMBDA.perturb(0.985, 2.0, Scripted(UP)) == 1.0
    assert [LAMBDA.perturb(1.0, 2.0, Scripted(direction)) for direction in (UP, DOWN)] == [0.99, 0.99]


@pytest.mark.parametrize("space", [ENTROPY, LAMBDA, WIDTH])
def test_positions_of_a_range_with_an_extra_value_are_inverse_and_uniform_for_draws(space: Range) -> None:
    assert space.extra is not None
    assert space.at(space.position(space.extra)) == space.extra
    for position in (0.01, 0.3, 0.5, 0.7, 0.99):
        assert space.at(space.position(space.at(position))) == pytest.approx(space.at(position))
    at_extra = [space.at((i + 0.5) / 1000) for i in range(1000)].count(space.extra)
    assert at_extra == 1000 * space.zero_probability


def test_the_extra_value_has_a_coordinate_beyond_the_end() -> None:
    # Zero has a fifth of the positions: its middle lies an eighth of the range below the low end.
    assert ENTROPY.coordinate(0.0) == pytest.approx(math.log(1e-4) - math.log(100) / 8)
    assert LAMBDA.coordinate(1.0) == pytest.approx(math.log(100) + math.log(10) / 8)


# --- steps -------------------------------------------------------------------------------------------------------


def test_a_step_moves_the_position_by_a_normally_distributed_distance() -> None:
    assert Range(0.0, 10.0).step(5.0, 0.1, Scripted(ONE_DEVIATION_UP)) == pytest.approx(6.0)
    assert Range(0.0, 10.0).step(5.0, 0.1, Scripted(ONE_DEVIATION_DOWN)) == pytest.approx(4.0)
    space = Range(1e-4, 1e-2, logarithmic=True)
    assert space.step(1e-3, 0.25, Scripted(ONE_DEVIATION_UP)) == pytest.approx(10**-2.5)
    assert DISCOUNT.step(0.99, 0.25, Scripted(ONE_DEVIATION_UP)) == pytest.approx(1 - 10**-2.5)
    random = Random(0)
    moves = [Range(0.0, 1.0).step(0.5, 0.1, random) - 0.5 for _ in range(5000)]
    assert (fmean(moves), pstdev(moves)) == (pytest.approx(0, abs=0.005), pytest.approx(0.1, abs=0.005))


def test_a_step_is_reflected_at_the_ends_however_long_it_is() -> None:
    assert Range(0.0, 10.0).step(9.5, 0.1, Scripted(ONE_DEVIATION_UP)) == pytest.approx(9.5)  # 9.5 -> 10.5 -> 9.5
    assert Range(0.0, 10.0).step(1.0, 0.3, Scripted(ONE_DEVIATION_DOWN)) == pytest.approx(2.0)
    assert Range(0.0, 10.0).step(2.0, 3.1, Scripted(ONE_DEVIATION_UP)) == pytest.approx(7.0)  # 33 -> -13 -> 13 -> 7
    assert Range(0.0, 1.0).contains(Range(0.0, 1.0).step(0.5, 0.1, Scripted(0.0)))


def test_a_whole_number_steps_by_at_least_one_in_the_direction_of_the_step() -> None:
    space = Range(1, 100, logarithmic=True, whole=True)
    assert space.step(10, 1e-6, Scripted(ONE_DEVIATION_UP)) == 11
    assert space.step(10, 1e-6, Scripted(ONE_DEVIATION_DOWN)) == 9
    assert space.step(100, 1e-6, Scripted(ONE_DEVIATION_UP)) == 99
    assert space.step(10, 0.25, Scripted(ONE_DEVIATION_UP)) == 32  # 10^1.5


def test_steps_reach_the_extra_value_and_always_leave_it() -> None:
    # 1e-4 is at position 0.2, and zero below it.
    assert ENTROPY.step(1e-4, 0.1, Scripted(ONE_DEVIATION_DOWN)) == 0.0
    assert ENTROPY.step(0.0, 0.01, Scripted(ONE_DEVIATION_DOWN)) == 1e-4
    assert ENTROPY.step(0.0, 0.5, Scripted(ONE_DEVIATION_UP)) == pytest.approx(1e-3)  # position 0.1 -> 0.6
    assert LAMBDA.step(0.99, 0.1, Scripted(ONE_DEVIATION_UP)) == 1.0
    assert LAMBDA.step(1.0, 0.01, Scripted(ONE_DEVIATION_UP)) == 0.99
    assert WIDTH.step(0.0, 0.01, Scripted(ONE_DEVIATION_UP)) == 8


def test_steps_of_size_zero_move_nothing_and_choices_step_to_a_neighbor() -> None:
    assert stepped(Range(1, 9, whole=True), 4.0, 0.0, Scripted(UP)) == 4.0
    assert stepped(ENTROPY, 0.0, 0.0, Scripted(UP)) == 0.0
    choices = Choices(("a", "b", "c"))
    assert stepped(choices, "b", 0.0, Scripted(UP)) == "b"
    assert [stepped(choices, "b", 0.12, Scripted(direction)) for direction in (UP, DOWN)] == ["c", "a"]


@pytest.mark.parametrize("value", [0.1, 3.0, 1e300, "relu", "", True, False, None, [1.0, "a", [2.0]]])
def test_a_plain_value_is_the_json_form_of_the_message(value):
    message = json_format.ParseDict(value, struct_pb2.Value())
    found = plain(message)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_a_number_without_json_form_is_refused(number):
    with pytest.raises(ValueError, match="number_value"):
        plain(struct_pb2.Value(number_value=number))
