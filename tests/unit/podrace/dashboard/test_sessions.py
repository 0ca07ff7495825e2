"""A session ends with its token, when it is not used, when there are too many, and when it is taken."""

from typing import Any

import pytest

from podrace.dashboard.entrance.reader import Reader
from podrace.dashboard.entrance.sessions import Session, Sessions, SignInLimits, digest_of

LIMITS = SignInLimits(longest_seconds=100.0, idle_seconds=30.0, most=4, most_of_person=2)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(clock, LIMITS)


def reader(clock: Clock, lifetime: float = 100.0) -> Reader:
    made: Any = Reader.__new__(Reader)
    made.end, made.used, made._clock, made._closed = clock() + lifetime, clock(), clock, False
    return made  # type: ignore[no-any-return]


def begin(sessions: Sessions, clock: Clock, name: str = "alice", lifetime: float = 100.0) -> str:
    return sessions.begin(Session(("", name), reader(clock, lifetime)))[0]


def test_a_session_is_found_by_its_id_alone(sessions: Sessions, clock: Clock):
    id = begin(sessions, clock)
    found = sessions.find(id)
    assert found is not None
    assert found.person == ("", "alice")
    for wrong in ("", id[:-1], id + "x", digest_of(id), "x" * 100_000, "\udcff"):
        assert sessions.find(wrong) is None


def test_ids_are_long_and_no_two_are_equal(sessions: Sessions, clock: Clock):
    ids = {begin(sessions, clock, f"person-{number}") for number in range(50)}
    assert len(ids) == 50
    assert min(map(len, ids)) >= 43


def test_what_is_kept_does_not_open_a_session_and_does_not_show_a_token(sessions: Sessions, clock: Clock):
    id = begin(sessions, clock)
    assert id not in str(vars(sessions))


def test_a_session_that_is_not_used_ends(sessions: Sessions, clock: Clock):
    id = begin(sessions, clock)
    clock.now += 29.0
    assert sessions.find(id)
    clock.now += 29.0
    assert sessions.find(id), "the last request counts"
    clock.now += 30.0
    assert sessions.find(id) is None
    assert len(sessions.take_ended()) == 1
    assert len(sessions) == 0


def test_a_session_ends_with_its_token_however_much_it_is_used(sessions: Sessions, clock: Clock):
    id = begin(sessions, clock, lifetime=40.0)
    for _ in range(3):
        clock.now += 13.0
        found = sessions.find(id)
        assert found
        assert not found.reader.ended
    clock.now += 1.0
    assert sessions.find(id) is None
    assert found.reader.ended


def test_of_too_many_sessions_of_a_person_the_longest_unused_ends(sessions: Sessions, clock: Clock):
    first, second = begin(sessions, clock), begin(sessions, clock)
    other = begin(sessions, clock, "bob")
    clock.now += 1.0
    sessions.find(first)
    third, ended = sessions.begin(Session(("", "alice"), reader(clock)))
    assert [sessions.find(id) is not None for id in (first, second, third, other)] == [True, False, True, True]
    assert len(ended) == 1


def test_of_too_many_sessions_the_longest_unused_ends(sessions: Sessions, clock: Clock):
    ids = []
    for number in range(5):
        ids.append(begin(sessions, clock, f"person-{number}"))
        clock.now += 1.0
    assert [sessions.find(id) is not None for id in ids] == [False, True, True, True, True]


def test_persons_of_two_namespaces_with_the_same_name_are_two_persons(sessions: Sessions, clock: Clock):
    ids = [sessions.begin(Session((space, "alice"), reader(clock)))[0] for space in ("", "", "vision")]
    assert all(sessions.find(id) for id in ids)


def test_a_session_that_was_taken_is_not_found(sessions: Sessions, clock: Clock):
    id = begin(sessions, clock)
    found = sessions.find(id)
    assert found
    assert sessions.take(found.reader) == [found]
    assert sessions.find(id) is None
    assert sessions.take(found.reader) == []
