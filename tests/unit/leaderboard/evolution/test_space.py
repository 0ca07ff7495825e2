import math
from random import Random

import pytest

from leaderboard.evolution.space import Choices, Range, declared_values, is_whole, perturbed, scaled, spaces_of
from podrace.specification.resolve import parse, resolve

UP, DOWN = 0.0, 0.9


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
    [Range(-3.0, 0.1), Range(1e-5, 0.02, logarithmic=True), Range(1.5, 7.2, whole=True), Range(2, 900, True, True)],
)
def test_draws_and_moves_never_leave_the_range(space: Range) -> None:
    random = Random(0)
    for _ in range(2000):
        value = space.draw(random)
        moved = space.perturb(value, 1.0 + 3 * random.random(), random)
        assert space.low <= value <= space.high
        assert space.low <= moved <= space.high


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


@pytest.mark.parametrize("space", [Range(-2.0, 3.0), Range(1e-5, 1e-1, logarithmic=True), Range(1, 9, whole=True)])
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
    assert is_whole("ppo", "epochs")
    assert not is_whole("ppo", "normalize_rewards")
    assert not is_whole("ppo", "learning_rate")


def test_perturbed_handles_ranges_and_choices() -> None:
    assert perturbed(Range(0.0, 10.0), 5.0, 2.0, Scripted(UP)) == 10.0
    assert perturbed(Choices((1.0, 2.0)), 1.0, 2.0, Scripted(UP)) == 2.0
