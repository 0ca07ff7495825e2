"""A reduced curve has the outline of the whole one, and never more values than there is room for."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podrace.dashboard.downsampling import bands, edges, extremes, held, slots

VALUES = st.lists(
    st.tuples(st.floats(0, 1000), st.floats(-1e6, 1e6)).map(lambda pair: (round(pair[0], 2), round(pair[1], 1))),
    max_size=200,
).map(sorted)


@given(curve=VALUES, buckets=st.integers(1, 50))
def test_the_smallest_and_the_largest_value_of_each_bucket_are_kept(curve, buckets):
    positions, values = [one[0] for one in curve], [one[1] for one in curve]
    limits = edges(0.0, 1000.0, buckets)
    found = extremes(positions, values, limits)
    assert len(found) == 2 * buckets
    for bucket in range(buckets):
        last = bucket == buckets - 1
        inside = [v for x, v in curve if limits[bucket] <= x and (x < limits[bucket + 1] or (last and x <= limits[-1]))]
        kept = [value for value in found[2 * bucket : 2 * bucket + 2] if value is not None]
        if inside:
            assert min(kept) == pytest.approx(min(inside), rel=1e-5)
            assert max(kept) == pytest.approx(max(inside), rel=1e-5)
        else:
            assert kept == []


def test_extremes_keep_their_order():
    assert extremes([0.0, 1.0, 2.0, 3.0], [5.0, 9.0, 1.0, 5.0], edges(0.0, 3.0, 1)) == [9.0, 1.0]
    assert extremes([0.0, 1.0, 2.0, 3.0], [5.0, 1.0, 9.0, 5.0], edges(0.0, 3.0, 1)) == [1.0, 9.0]


def test_values_outside_of_the_range_are_left_out():
    assert extremes([0.0, 5.0, 10.0], [1.0, 2.0, 3.0], edges(4.0, 6.0, 2)) == [None, None, 2.0, None]


def test_all_points_at_one_position_are_in_the_last_bucket():
    assert extremes([7.0, 7.0], [1.0, 2.0], edges(7.0, 7.0, 2)) == [None, None, 1.0, 2.0]


@pytest.mark.parametrize(("low", "high", "buckets"), [(0.0, 1.0, 0), (math.nan, 1.0, 2), (0.0, math.inf, 2)])
def test_a_range_that_cannot_be_divided_is_refused(low, high, buckets):
    with pytest.raises(ValueError, match="expected a finite range"):
        edges(low, high, buckets)


@given(low=st.floats(-1e6, 1e6), width=st.floats(0, 1e6), buckets=st.integers(1, 100))
def test_slots_ascend_within_the_range(low, width, buckets):
    limits = edges(low, low + width, buckets)
    found = slots(limits)
    assert found == sorted(found)
    assert len(found) == 2 * buckets


def test_a_band_holds_eighty_percent_of_the_values_of_a_bucket():
    curves = [([0.5], [float(value)]) for value in range(11)]
    low, middle, high = bands(curves, edges(0.0, 1.0, 1))
    assert (low[0], middle[0], high[0]) == (1.0, 5.0, 9.0)
    assert (low[1], middle[1], high[1]) == (None, None, None)


def test_a_band_of_one_value_is_that_value():
    assert bands([([0.5], [3.0])], edges(0.0, 1.0, 1)) == ([3.0, None], [3.0, None], [3.0, None])


def test_a_step_holds_until_the_next_one():
    assert held([1.0, 3.0], [10.0, 30.0], [0.0, 1.0, 2.0, 3.0, 4.0]) == [None, 10.0, 10.0, 30.0, 30.0]
