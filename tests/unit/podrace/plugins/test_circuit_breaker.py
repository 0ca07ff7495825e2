from podrace.plugins.circuit_breaker import FIRST_REST_SECONDS, LONGEST_REST_SECONDS, Patience, rest_seconds


def test_two_failures_in_a_row_are_forgiven() -> None:
    patience = Patience().after_failure(100.0, "one").after_failure(100.0, "two")
    assert not patience.rests(100.0)
    assert (patience.failures, patience.last) == (2, "two")


def test_the_third_has_a_rest_follow_that_ends() -> None:
    patience = Patience()
    for _ in range(3):
        patience = patience.after_failure(100.0, "again")
    assert patience.rests(100.0 + FIRST_REST_SECONDS - 0.01)
    assert not patience.rests(100.0 + FIRST_REST_SECONDS)


def test_rests_double_up_to_a_limit_however_many_failures_there_were() -> None:
    assert [rest_seconds(failures) for failures in range(6)] == [0, 0, 0, 10, 20, 40]
    assert rest_seconds(9) == LONGEST_REST_SECONDS
    assert rest_seconds(1_000_000) == LONGEST_REST_SECONDS
