"""The pause schedule of a failing plugin."""

from podrace.plugins.circuit_breaker import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, CircuitBreaker, pause_seconds


def test_two_failures_in_a_row_cause_no_pause() -> None:
    breaker = CircuitBreaker().after_failure(100.0, "one").after_failure(100.0, "two")
    assert not breaker.is_open(100.0)
    assert (breaker.failures, breaker.last_failure) == (2, "two")


def test_the_third_failure_in_a_row_causes_a_pause_of_ten_seconds() -> None:
    breaker = CircuitBreaker()
    for _ in range(3):
        breaker = breaker.after_failure(100.0, "again")
    assert breaker.is_open(100.0 + FIRST_PAUSE_SECONDS - 0.01)
    assert not breaker.is_open(100.0 + FIRST_PAUSE_SECONDS)
    assert breaker.summary == "paused after 3 failures in a row; last failure: again"


def test_pauses_double_up_to_a_limit_for_any_number_of_failures() -> None:
    assert [pause_seconds(failures) for failures in range(6)] == [0, 0, 0, 10, 20, 40]
    assert pause_seconds(9) == LONGEST_PAUSE_SECONDS
    assert pause_seconds(1_000_000) == LONGEST_PAUSE_SECONDS
