import math

import numpy as np
import pytest

from benchmarks.comparison.statistics import (
    Curve,
    area,
    difference_of,
    first_position,
    holm,
    honesty,
    interquartile_mean,
    interval_of,
    mean_curve,
    normalized,
    paired,
    sign_flip_test,
    value_at,
    z_score,
)

CURVE = Curve((10.0, 30.0, 50.0), (1.0, 3.0, 5.0))


def test_normalized_returns_are_0_for_the_random_policy_and_1_for_the_oracle():
    assert normalized(-1200.0, -1200.0, -150.0) == 0
    assert normalized(-150.0, -1200.0, -150.0) == 1
    assert normalized(-675.0, -1200.0, -150.0) == 0.5
    with pytest.raises(ValueError, match="not above"):
        normalized(0.0, 1.0, 1.0)


def test_an_interquartile_mean_leaves_out_a_quarter_at_each_end():
    # Of 8 values, 2 at each end: (3 + 4 + 5 + 6) / 4.
    assert interquartile_mean([100, 1, 2, 3, 4, 5, 6, -50]) == pytest.approx((2 + 3 + 4 + 5) / 4)
    # Of 6 values, 1 at each end (1.5 rounded down).
    assert interquartile_mean([0, 1, 2, 3, 4, 1000]) == pytest.approx(2.5)
    assert interquartile_mean([7.0]) == 7.0
    with pytest.raises(ValueError, match="at least one"):
        interquartile_mean([])


def test_an_interval_has_no_width_without_variation_and_contains_its_value():
    constant = interval_of({"a": [0.5] * 4, "b": [0.5] * 4})
    assert (constant.value, constant.low, constant.high) == (0.5, 0.5, 0.5)
    wide = interval_of({"a": [0.0, 0.2, 0.4, 0.6], "b": [0.5, 0.7, 0.9, 1.1]})
    assert wide.low < wide.value < wide.high
    assert wide == interval_of({"b": [0.5, 0.7, 0.9, 1.1], "a": [0.0, 0.2, 0.4, 0.6]})


def test_a_stratified_bootstrap_never_exchanges_tasks():
    # Drawn without strata, the number of zeros would vary; within tasks every resample is the same.
    found = interval_of({"easy": [1.0] * 5, "hard": [0.0] * 5})
    assert (found.low, found.high) == (found.value, found.value)
    assert found.value == 0.5


def test_the_bootstrap_interval_of_a_mean_is_about_that_of_the_normal_distribution():
    # Without trimming (3 values and fewer) the statistic is the mean; many strata of 3 make it nearly normal.
    random = np.random.default_rng(3)
    scores = {str(task): random.normal(size=3).tolist() for task in range(1)}
    found = interval_of(scores, confidence=0.9)
    assert found.value == pytest.approx(np.mean(scores["0"]))
    assert min(scores["0"]) <= found.low < found.high <= max(scores["0"])


def test_differences_are_paired_by_seed():
    base = {"a": {1: 0.1, 2: 0.9, 3: 0.5}, "b": {1: -3.0, 2: 4.0, 3: 1.0}}
    better = {task: {seed: value + 0.25 for seed, value in seeds.items()} for task, seeds in base.items()}
    found = difference_of(better, base)
    assert found is not None
    # The seeds differ much more than the contenders; the paired difference has no variation at all.
    assert found.value == pytest.approx(0.25)
    assert found.low == pytest.approx(0.25)
    assert found.above_zero


def test_fewer_than_three_seeds_of_a_task_give_no_interval():
    found = interval_of({"a": [0.1, 0.9, 0.5], "b": [0.2, 0.4]})
    assert found.value == pytest.approx(0.36667, abs=1e-4)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert not found.above_zero


def test_seeds_that_one_contender_lacks_are_left_out():
    assert paired({1: 1.0, 2: 2.0, 4: 4.0}, {2: 20.0, 3: 30.0, 4: 40.0}) == [(2.0, 20.0), (4.0, 40.0)]
    assert difference_of({"a": {1: 1.0}}, {"a": {2: 1.0}}) is None
    assert difference_of({"a": {1: 1.0}}, {"b": {1: 1.0}}) is None


def test_the_sign_flip_test_counts_sign_changes():
    # All three are below 0: only the observed signs have a sum as low, 1 of 8.
    assert sign_flip_test([-1.0, -2.0, -3.0]) == 1 / 8
    # Sums of +-1 +-2: -3, -1, 1, 3; the observed sum 1 - 2 = -1: 2 of 4 are at most that.
    assert sign_flip_test([1.0, -2.0]) == 2 / 4
    assert sign_flip_test([1.0, 2.0, 3.0]) == 1.0
    assert sign_flip_test([]) == 1.0
    assert sign_flip_test([0.0, 0.0]) == 1.0


def test_with_many_seeds_sign_changes_are_drawn():
    assert sign_flip_test([-1.0] * 20) < 0.001
    values = np.random.default_rng(1).normal(size=20).tolist()
    assert sign_flip_test(values) == sign_flip_test(values)


def test_holm_multiplies_the_smallest_p_value_by_the_number_of_tests():
    # Sorted: 0.01 * 3 = 0.03, 0.02 * 2 = 0.04, 0.03 * 1 = 0.03, which may not be below 0.04.
    assert holm({"c": 0.03, "a": 0.01, "b": 0.02}) == pytest.approx({"c": 0.04, "a": 0.03, "b": 0.04})
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_a_curve_has_its_last_value_until_the_next_point():
    assert [value_at(CURVE, at) for at in (9.9, 10, 29, 30, 99)] == [None, 1.0, 1.0, 3.0, 5.0]


def test_a_return_is_reached_at_the_first_point_with_it():
    assert [first_position(CURVE, value) for value in (0.5, 1.0, 2.0, 5.0, 6.0)] == [10.0, 10.0, 30.0, 50.0, None]


def test_the_area_counts_the_time_before_the_first_point():
    # 10 * -1 + 20 * 1 + 20 * 3 + 10 * 5 over 60.
    assert area(CURVE, 60.0, before=-1.0) == pytest.approx((-10 + 20 + 60 + 50) / 60)
    # The end is before the last point: 10 * -1 + 20 * 1 + 10 * 3 over 40.
    assert area(CURVE, 40.0, before=-1.0) == pytest.approx((-10 + 20 + 30) / 40)


def test_the_mean_of_curves_begins_with_the_value_before_their_first_points():
    assert mean_curve([CURVE, Curve((0.0,), (3.0,))], [0.0, 10.0, 60.0], before=0.0) == [1.5, 2.0, 4.0]


def test_z_scores_are_in_standard_errors_of_the_difference():
    assert z_score(10.0, 3.0, 5.0, 4.0) == 1.0
    assert z_score(1.0, 0.0, 1.0, 0.0) is None
    found = honesty([0.5, -2.5, 2.0])
    assert (found.runs, found.within_two) == (3, 2)
    assert math.isclose(found.mean_z, 0.0, abs_tol=1e-12)
    assert honesty([]).mean_z == 0.0
