import math

import pytest

from orchestrator.decisions.pod_silence import Contact, SilenceLimits, why_killed

LIMITS = SilenceLimits(silent_seconds=10.0, opening_seconds=120.0, starting_seconds=600.0)
NOW, LEASE = 1000.0, 10.0


def reason(contact: Contact, *, listening_since: float = 0.0, limits: SilenceLimits = LIMITS) -> str:
    return why_killed(NOW, contact, listening_since, LEASE, limits)


@pytest.mark.parametrize(("expired_for", "killed"), [(-1.0, False), (9.0, False), (10.0, True)])
def test_a_pod_with_a_lease_is_killed_when_the_lease_expired_longer_ago_than_the_limit(
    expired_for: float, killed: bool
) -> None:
    assert bool(reason(Contact(None, NOW - expired_for))) == killed


@pytest.mark.parametrize(("ago", "killed"), [(19.0, False), (20.0, True)])
def test_a_pod_without_a_lease_is_killed_when_its_next_call_is_overdue(ago: float, killed: bool) -> None:
    assert bool(reason(Contact(NOW - ago, None))) == killed


def test_the_reason_says_how_long_ago_the_lease_expired() -> None:
    assert reason(Contact(None, NOW - 12.0)) == "it does not call: its lease expired 12 s ago"


def test_a_pod_that_does_not_run_yet_is_not_judged() -> None:
    assert reason(Contact(None, None)) == ""


@pytest.mark.parametrize(("seconds", "killed"), [(599.0, False), (600.0, True)])
def test_a_pod_that_never_called_is_killed_after_the_limit_for_starting(seconds: float, killed: bool) -> None:
    assert bool(reason(Contact(None, None, running_since=NOW - seconds))) == killed


def test_the_lease_of_an_evicted_pod_does_not_count_while_it_starts_again() -> None:
    assert reason(Contact(None, NOW - 500.0, running_since=NOW - 60.0)) == ""


def test_a_pod_whose_call_waits_is_not_silent() -> None:
    assert reason(Contact(0.0, None, waiting=True)) == ""


def test_a_pod_that_opens_its_roles_gets_more_time() -> None:
    assert reason(Contact(None, NOW - 60.0, opening=True)) == ""
    assert reason(Contact(None, NOW - 120.0, opening=True))


def test_time_in_which_the_orchestrator_did_not_run_does_not_count() -> None:
    assert reason(Contact(None, 0.0), listening_since=NOW - 9.0) == ""
    assert reason(Contact(None, 0.0), listening_since=NOW - 10.0)


def test_an_infinite_limit_kills_no_pod() -> None:
    assert reason(Contact(0.0, 0.0), limits=SilenceLimits(math.inf, math.inf, math.inf)) == ""
