import math
from collections import Counter
from random import Random

import pytest

from leaderboard.evolution.parzen import SMALLEST_WIDTH, Density, Row, most_promising, split


def numbers(*values: float) -> list[Row]:
    return [(value,) for value in values]


def test_widths_of_numbers_follow_the_normal_reference_rule() -> None:
    # The standard deviation of the three is sqrt(0.08 / 3) = 0.16330, and 3^(-1/5) is 0.80274.
    assert Density(numbers(0.2, 0.4, 0.6), [0]).widths == [pytest.approx(1.06 * 0.16330 * 0.80274, rel=1e-4)]
    assert Density(numbers(0.5, 0.5), [0]).widths == [SMALLEST_WIDTH]


def test_widths_of_categories_come_from_their_shares() -> None:
    # Half of 1 - 4/9 - 1/9 is 2/9, whose root is 0.47140.
    assert Density(numbers(0, 0, 1), [3]).widths == [pytest.approx(1.06 * 0.47140 * 0.80274, rel=1e-4)]


def test_no_category_is_less_probable_far_away_than_with_equal_probabilities() -> None:
    assert Density([(0.0,), (1.0,)], [2]).widths[0] <= 0.5


def test_the_density_of_a_number_is_a_mean_of_truncated_normal_densities() -> None:
    density = Density(numbers(0.2, 0.4, 0.6), [0])
    width = density.widths[0]

    def kernel(own: float) -> float:
        inside = 0.5 * (math.erf((1 - own) / width / math.sqrt(2)) - math.erf(-own / width / math.sqrt(2)))
        return math.exp(-(((0.3 - own) / width) ** 2) / 2) / (width * math.sqrt(2 * math.pi) * inside)

    assert density.at((0.3,)) == pytest.approx((kernel(0.2) + kernel(0.4) + kernel(0.6)) / 3)


def test_densities_integrate_to_one() -> None:
    at_the_ends = Density(numbers(0.0, 0.05, 0.4, 1.0), [0])
    assert sum(at_the_ends.at(((n + 0.5) / 2000,)) for n in range(2000)) / 2000 == pytest.approx(1.0, rel=1e-4)
    categories = Density(numbers(0, 0, 1), [4])
    assert sum(categories.at((float(category),)) for category in range(4)) == pytest.approx(1.0)


def test_a_row_without_a_value_has_a_uniform_kernel() -> None:
    assert Density([(None,)], [0]).at((0.3,)) == 1.0
    assert Density([(None,)], [4]).at((2.0,)) == 0.25
    both = Density([(0.2, None), (0.4, 0.7), (0.6, 0.9)], [0, 0])
    assert both.widths[1] == pytest.approx(1.06 * 0.1 * 2 ** (-1 / 6))


def test_rows_are_drawn_around_those_of_the_density() -> None:
    density = Density([(0.3, 1.0), (0.32, 1.0), (0.28, 0.0)], [0, 2])
    random = Random(1)
    drawn = [density.draw(random) for _ in range(2000)]
    first = [row[0] for row in drawn if row[0] is not None]
    assert all(0 <= value <= 1 for value in first)
    assert sum(first) / 2000 == pytest.approx(0.3, abs=0.01)
    deviation = math.sqrt(sum((value - 0.3) ** 2 for value in first) / 2000)
    assert deviation == pytest.approx(math.hypot(3 * density.widths[0], 0.0163), rel=0.1), "wider than the density"
    assert {row[1] for row in drawn} == {0.0, 1.0}


def test_values_that_a_row_does_not_have_are_drawn_evenly() -> None:
    random = Random(1)
    drawn = [Density([(None, None)], [0, 4]).draw(random) for _ in range(4000)]
    assert sum(row[0] or 0.0 for row in drawn) / 4000 == pytest.approx(0.5, abs=0.02)
    shares = Counter(row[1] for row in drawn)
    assert [shares[category] / 4000 for category in range(4)] == pytest.approx([0.25] * 4, abs=0.03)


def test_a_choice_among_one_is_that_one() -> None:
    assert Density([(0.0,)], [1]).draw(Random(1)) == (0.0,)
    assert Density([(None,)], [1]).draw(Random(1)) == (0.0,)


@pytest.mark.parametrize(
    ("count", "least", "share", "good", "bad"),
    [(20, 3, 0.15, 3, 17), (40, 3, 0.15, 6, 34), (5, 3, 0.15, 3, 3), (5, 5, 0.15, 5, 5), (20, 3, 1.0, 20, 3)],
)
def test_the_good_share_is_limited_by_the_least_number(
    count: int, least: int, share: float, good: int, bad: int
) -> None:
    rows = numbers(*(float(n) for n in range(count)))
    found_good, found_bad = split(rows, least, share)
    assert list(found_good) == rows[:good]
    assert list(found_bad) == rows[count - bad :]


def test_the_chosen_row_is_where_good_rows_are_and_bad_ones_are_not() -> None:
    good = [(0.2, 1.0), (0.25, 1.0), (0.7, 0.0), (0.2, 1.0)]
    bad = [(0.7, 0.0), (0.75, 0.0), (0.65, 0.0), (0.9, 1.0)]
    for seed in range(20):
        number = most_promising(good, bad, [0, 2], Random(seed))[0]
        assert number is not None
        assert number < 0.5
        assert most_promising([(1.0,), (1.0,), (0.0,)], [(0.0,), (0.0,), (2.0,)], [3], Random(seed)) == (1.0,)


def test_the_order_of_the_rows_does_not_change_a_density() -> None:
    rows = [(0.2, 1.0), (0.25, 1.0), (0.7, 0.0), (0.11, 1.0)]
    for row in rows:
        assert Density(rows, [0, 2]).at(row) == Density(rows[::-1], [0, 2]).at(row)
