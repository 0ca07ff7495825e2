import pytest

from podrace import backoff


def test_the_wait_doubles_up_to_its_limit():
    assert [backoff.exponential(failures, 10.0, 60.0) for failures in range(6)] == [0.0, 10.0, 20.0, 40.0, 60.0, 60.0]


def test_forgiven_failures_cause_no_wait():
    waits = [backoff.exponential(failures, 10.0, 600.0, forgiven=2) for failures in range(6)]
    assert waits == [0.0, 0.0, 0.0, 10.0, 20.0, 40.0]


@pytest.mark.parametrize("failures", [40, 10_000, 10**9])
def test_any_number_of_failures_has_a_wait(failures: int):
    assert backoff.exponential(failures, 0.1, 5.0) == 5.0
