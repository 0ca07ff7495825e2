"""Which waiting requests are computed together, and when."""

import math

from podrace.serving.decisions.batch_cut import BatchLimits, Waiting, admits, cut, expired

NOW = 100.0
WITHOUT_DELAY = BatchLimits(maximum_rows=10)
WITH_DELAY = BatchLimits(maximum_rows=10, delay_seconds=0.5)


def test_nothing_is_computed_while_nothing_waits():
    assert cut([], NOW, WITHOUT_DELAY) == (0, math.inf, "nothing waits")


def test_without_a_delay_all_that_waits_is_computed_at_once():
    assert cut([Waiting(1, NOW), Waiting(4, NOW)], NOW, WITHOUT_DELAY).take == 2


def test_a_batch_has_no_more_rows_than_the_limit():
    waiting = [Waiting(4, NOW), Waiting(6, NOW), Waiting(1, NOW)]
    assert cut(waiting, NOW, WITH_DELAY) == (2, 0.0, "the batch is full")
    assert cut([Waiting(4, NOW), Waiting(7, NOW)], NOW, WITH_DELAY).take == 1


def test_a_request_larger_than_the_limit_is_computed_alone():
    assert cut([Waiting(50, NOW), Waiting(1, NOW)], NOW, WITH_DELAY).take == 1


def test_a_batch_that_is_not_full_waits_for_the_rest_of_the_delay_of_its_oldest_request():
    found = cut([Waiting(1, NOW - 0.25), Waiting(1, NOW)], NOW, WITH_DELAY)
    assert (found.take, found.wait_seconds) == (0, 0.25)
    assert cut([Waiting(1, NOW - 0.5)], NOW, WITH_DELAY).take == 1


def test_a_batch_starts_as_long_before_the_first_deadline_as_it_takes_to_compute():
    waiting = [Waiting(1, NOW), Waiting(1, NOW, deadline=NOW + 0.25)]
    assert cut(waiting, NOW, WITH_DELAY, compute_seconds=0.125) == (0, 0.125, "others may join")
    assert cut(waiting, NOW + 0.125, WITH_DELAY, compute_seconds=0.125) == (2, 0.0, "a deadline is near")


def test_requests_past_their_deadline_are_named():
    assert expired([Waiting(1, NOW, NOW), Waiting(1, NOW), Waiting(1, NOW, NOW - 1)], NOW) == [0, 2]


def test_a_queue_refuses_what_exceeds_it_but_an_empty_one_takes_any_request():
    limits = BatchLimits(queued_rows=10)
    assert admits(4, 6, limits)
    assert not admits(5, 6, limits)
    assert admits(0, 11, limits)
