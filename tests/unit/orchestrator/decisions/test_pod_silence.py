import math
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.decisions.pod_silence import (
    Contact,
    SilenceLimits,
    counts_since,
    silent_together,
    was_cut_off,
    why_killed,
)

LIMITS = SilenceLimits(silent_seconds=10.0, opening_seconds=120.0, starting_seconds=600.0, together_seconds=120.0)
NOW, LEASE = 1000.0, 10.0


def reason(
    contact: Contact, *, listening_since: float = 0.0, limits: SilenceLimits = LIMITS, together: bool = False
) -> str:
    return why_killed(NOW, contact, listening_since, LEASE, limits, together=together)


def heard(ago: float, **changes: Any) -> Contact:
    """A pod that called so many seconds ago."""
    return Contact(NOW - ago, NOW - ago + LEASE, last_begin=NOW - ago, **changes)


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
    assert reason(Contact(0.0, 0.0), limits=SilenceLimits(math.inf, math.inf, math.inf, math.inf)) == ""


@pytest.mark.parametrize(("ago", "killed"), [(119.0, False), (120.0, True)])
def test_pods_that_stopped_calling_together_are_killed_after_the_limit_for_them(ago: float, killed: bool) -> None:
    assert bool(reason(heard(ago), together=True)) == killed


def test_the_reason_says_that_the_pods_stopped_calling_together() -> None:
    assert reason(heard(130.0), together=True) == (
        "it does not call: its lease expired 120 s ago, and all other pods stopped calling at the same time"
    )


def together(**contacts: Contact) -> set[str]:
    return set(silent_together(NOW, contacts, LEASE))


def test_pods_stopped_calling_together_if_none_has_called_for_a_lease_duration() -> None:
    assert together(p0=heard(10.0), p1=heard(13.0), p2=heard(20.0)) == {"p0", "p1", "p2"}
    assert together(p0=heard(9.0), p1=heard(13.0)) == set()


def test_a_single_pod_is_not_silent_together_with_others() -> None:
    assert together(p0=heard(30.0)) == set()
    assert together(p0=heard(30.0), p1=Contact(None, None, running_since=NOW - 60.0)) == set()


def test_a_pod_whose_call_waits_shows_that_the_connection_works() -> None:
    assert together(p0=heard(30.0), p1=heard(30.0), p2=Contact(None, None, waiting=True)) == set()


def test_a_pod_that_stopped_calling_long_before_the_others_is_judged_alone() -> None:
    assert together(p0=heard(15.0), p1=heard(15.0), p2=heard(60.0)) == {"p0", "p1"}
    assert together(p0=heard(15.0), p1=heard(60.0)) == set()


def test_the_end_of_a_broken_call_is_no_sign_of_a_working_connection() -> None:
    """The orchestrator notices after seconds that the connection of a waiting call is lost."""
    broken = Contact(NOW - 6.0, None, last_begin=NOW - 17.0)
    assert together(p0=heard(17.0), p1=broken) == {"p0", "p1"}


def test_the_last_pod_of_those_that_stopped_calling_together_is_not_alone() -> None:
    left = {"p1": heard(70.0)}
    assert silent_together(NOW, left, LEASE, before=frozenset({"p0", "p1"})) == {"p1"}
    assert silent_together(NOW, left, LEASE) == frozenset()


@pytest.mark.parametrize(("unavailable_since", "found"), [(None, False), (NOW - 9.0, False), (NOW - 10.0, True)])
def test_the_orchestrator_was_cut_off_if_its_launcher_did_not_answer_for_a_lease_duration(
    unavailable_since: float | None, found: bool
) -> None:
    assert was_cut_off(NOW, unavailable_since, LEASE) == found


ORPHANED = replace(LIMITS, orphaned_seconds=300.0)


def test_silence_counts_from_the_end_of_an_interruption() -> None:
    assert counts_since(NOW, heard(299.0), 5.0, NOW - 3.0, ORPHANED) == NOW - 3.0
    assert counts_since(NOW, heard(299.0), NOW - 2.0, NOW - 3.0, ORPHANED) == NOW - 2.0


def test_interruptions_keep_no_pod_that_would_have_exited_by_itself() -> None:
    for contact in (heard(300.0), Contact(None, None, running_since=NOW - 300.0)):
        assert counts_since(NOW, contact, 5.0, NOW - 3.0, ORPHANED) == 5.0
    assert counts_since(NOW, Contact(None, NOW - 400.0), 5.0, NOW - 3.0, ORPHANED) == NOW - 3.0
