"""Recurrent state of clients: bounds, expiry, one step at a time."""

import numpy as np
import pytest

from podrace.access.principal import Principal, roles_with_included, set_current_principal
from podrace.access.v1 import access_pb2
from podrace.errors import NOT_OPEN, QUOTA_EXCEEDED, Aborted, FailedPrecondition, InvalidArgument, ResourceExhausted
from podrace.serving.servicer import session_key, session_owner
from podrace.serving.sessions import SessionLimits, SessionTable

ROWS, SIZE = 2, 3


def table(**limits) -> SessionTable:
    return SessionTable(SessionLimits(**limits))


def opened(sessions: SessionTable, key: str, now: float = 0.0, value: float = 1.0, owner: str = "") -> None:
    kept = sessions.begin(key, "v", ROWS, SIZE, now, owner)
    sessions.put(key, kept, np.full((ROWS, SIZE), value, np.float32), now)


def test_a_session_begins_with_zeros_and_keeps_the_state_of_its_last_step():
    sessions = table()
    kept = sessions.begin("k", "v", ROWS, SIZE, 0.0)
    assert not kept.state.any()
    sessions.put("k", kept, np.ones((ROWS, SIZE), np.float32), 1.0)
    assert sessions.take("k", ROWS, 2.0).state.all()


def test_a_step_that_failed_leaves_the_state_as_it_was():
    sessions = table()
    opened(sessions, "k", value=7.0)
    sessions.put("k", sessions.take("k", ROWS, 1.0), None, 1.0)
    assert (sessions.take("k", ROWS, 2.0).state == 7.0).all()


def test_only_one_step_of_a_session_runs_at_a_time():
    sessions = table()
    opened(sessions, "k")
    sessions.take("k", ROWS, 1.0)
    with pytest.raises(Aborted):
        sessions.take("k", ROWS, 1.0)
    with pytest.raises(Aborted):
        sessions.begin("k", "v", ROWS, SIZE, 1.0)


def test_an_unknown_session_is_not_begun_silently():
    with pytest.raises(FailedPrecondition, match="begin an episode") as raised:
        table().take("k", ROWS, 0.0)
    assert raised.value.reason == NOT_OPEN


def test_a_session_keeps_its_number_of_environments():
    sessions = table()
    opened(sessions, "k")
    with pytest.raises(InvalidArgument, match="3 observations in a session of 2"):
        sessions.take("k", 3, 1.0)


def test_an_idle_session_expires_and_one_in_use_does_not():
    sessions = table(idle_seconds=10.0)
    opened(sessions, "idle", now=0.0)
    opened(sessions, "used", now=0.0)
    sessions.put("used", sessions.take("used", ROWS, 9.0), None, 9.0)
    sessions.expire(10.0)
    assert "idle" not in sessions
    assert "used" in sessions


def test_a_busy_session_does_not_expire():
    sessions = table(idle_seconds=10.0)
    kept = sessions.begin("k", "v", ROWS, SIZE, 0.0)
    sessions.expire(1000.0)
    sessions.put("k", kept, None, 1000.0)
    assert "k" in sessions


def test_further_sessions_are_refused_until_one_ends():
    sessions = table(maximum=2)
    opened(sessions, "a")
    opened(sessions, "b")
    with pytest.raises(ResourceExhausted, match="2 sessions with 48 bytes"):
        sessions.begin("c", "v", ROWS, SIZE, 1.0)
    sessions.end("a")
    opened(sessions, "c")
    assert len(sessions) == 2


def test_the_bytes_of_all_states_are_bounded():
    sessions = table(state_bytes=ROWS * SIZE * 4)
    opened(sessions, "a")
    with pytest.raises(ResourceExhausted):
        opened(sessions, "b")
    opened(sessions, "a")  # beginning again replaces its state
    sessions.end("a")
    opened(sessions, "b")


def test_a_session_that_ended_during_a_step_stays_ended():
    sessions = table()
    kept = sessions.begin("k", "v", ROWS, SIZE, 0.0)
    assert sessions.end_of_version("v") == 1
    sessions.put("k", kept, np.ones((ROWS, SIZE), np.float32), 1.0)
    assert "k" not in sessions
    assert sessions.versions() == set()


@pytest.mark.parametrize(
    "limits",
    [{"maximum_of_owner": 2}, {"state_bytes_of_owner": 2 * ROWS * SIZE * 4}],
    ids=lambda limits: next(iter(limits)),
)
def test_one_owner_cannot_hold_the_sessions_of_all(limits):
    sessions = table(maximum=4, **limits)
    for key in ("a1", "a2"):
        opened(sessions, key, owner="alice")
    with pytest.raises(ResourceExhausted, match=rf"alice has 2 sessions .*{next(iter(limits))} =") as refused:
        opened(sessions, "a3", owner="alice")
    assert refused.value.reason == QUOTA_EXCEEDED
    assert refused.value.metadata["setting"] == f"limits.sessions.{next(iter(limits))}"
    opened(sessions, "a1", owner="alice")  # beginning again needs no further one
    opened(sessions, "b1", owner="bob")
    sessions.end("a1")
    opened(sessions, "a3", owner="alice")
    sessions.expire(1e6)
    assert not sessions._usage, "an owner without sessions takes no memory"


def test_a_caller_without_an_owner_is_limited_by_all_sessions_only():
    sessions = table(maximum=5, maximum_of_owner=1)
    for number in range(5):
        opened(sessions, f"k{number}")
    with pytest.raises(ResourceExhausted, match="5 sessions with"):
        opened(sessions, "k5")


def test_a_name_in_two_namespaces_is_two_callers_with_sessions_of_their_own():
    def keyed(name: str, namespace: str, session_id: str = "s", role: int = access_pb2.ROLE_VIEWER) -> tuple[str, str]:
        set_current_principal(Principal(name, roles_with_included([role]), namespace))
        return session_key(session_id), session_owner()

    keys = [
        keyed("alice", ""),
        keyed("alice", "vision"),
        keyed("alice", "speech"),
        keyed("a", "", "b\ns"),
        keyed("a\nb", ""),
    ]
    assert len({key for key, _ in keys}) == len(keys)
    assert [owner for _, owner in keys[:2]] == ["alice", "vision/alice"]
    assert keyed("root", "", role=access_pb2.ROLE_OPERATOR)[1] == ""
    assert session_key("") == ""
