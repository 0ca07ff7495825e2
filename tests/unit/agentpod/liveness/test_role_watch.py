import pytest

from agentpod.liveness.role_watch import LONGEST_GAP_SECONDS, RoleAnswer, RoleWatch
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.progress_deadlines import ProgressDeadlines

COLLECTING = pb.ROLE_PHASE_COLLECTING


class Watched:
    """A watched role and the time, which advances by one second with each poll."""

    def __init__(self) -> None:
        self.now = 0.0
        self.watch = RoleWatch("worker-0", ProgressDeadlines(), self.now)
        self.counter = 0

    def poll(
        self, polls: int, *, steps: int = 0, phase: pb.RolePhase.ValueType = COLLECTING, answers: bool = True
    ) -> None:
        for _ in range(polls):
            self.now += 1.0
            self.counter += steps
            self.watch.observe(self.now, RoleAnswer(phase, self.counter) if answers else None, stopped=False)


def test_a_role_that_steps_is_never_stuck() -> None:
    watched = Watched()
    watched.poll(1000, steps=1)
    assert not watched.watch.judge().stuck


def test_a_role_whose_counter_stands_still_is_stuck_after_its_deadline() -> None:
    watched = Watched()
    watched.poll(20, steps=5)
    watched.poll(9)
    assert not watched.watch.judge().stuck
    watched.poll(1)
    assert watched.watch.judge().stuck


@pytest.mark.parametrize("every", [2, 10, 30, 64, 300])
def test_a_role_whose_steps_are_slow_at_regular_intervals_is_never_stuck(every: int) -> None:
    watched = Watched()
    for step in range(5 * every):
        watched.poll(1, steps=1)
        for _ in range(0 if step % every else 40):
            watched.poll(1)
            assert not watched.watch.judge().stuck


def test_an_idle_role_makes_progress_by_answering() -> None:
    watched = Watched()
    watched.poll(100, phase=pb.ROLE_PHASE_IDLE)
    assert not watched.watch.judge().stuck
    watched.poll(10, answers=False)
    assert watched.watch.judge().stuck
    assert "it does not answer" in watched.watch.judge().reason


def test_a_waiting_role_makes_progress_by_answering_and_has_the_deadline_of_an_idle_one() -> None:
    watched = Watched()
    watched.poll(100, phase=pb.ROLE_PHASE_IDLE)
    watched.poll(700, phase=pb.ROLE_PHASE_WAITING)
    assert not watched.watch.judge().stuck
    watched.poll(10, answers=False)
    assert watched.watch.judge().stuck


def test_compiling_is_no_sample_of_later_steps() -> None:
    watched = Watched()
    watched.poll(300, phase=pb.ROLE_PHASE_WARMING_UP)
    watched.poll(20, steps=5)
    assert watched.watch.judge().deadline_seconds == 10.0


def test_time_in_which_nothing_was_polled_does_not_count() -> None:
    watched = Watched()
    watched.poll(20, steps=5)
    watched.now += 3600.0
    watched.poll(1)
    assert watched.watch.message().age_duration.seconds == int(LONGEST_GAP_SECONDS)
    assert not watched.watch.judge().stuck


def test_after_a_restart_the_role_may_open_again_and_then_has_a_longer_deadline() -> None:
    watched = Watched()
    watched.poll(20, steps=5)
    watched.poll(10)
    watched.watch.restart()
    watched.poll(30, answers=False)
    assert not watched.watch.judge().stuck
    watched.poll(20, steps=5)
    assert watched.watch.judge().deadline_seconds == 20.0


def test_the_message_has_phase_counter_age_and_deadline() -> None:
    watched = Watched()
    watched.poll(20, steps=5)
    watched.poll(2)
    message = watched.watch.message()
    assert (message.role, message.phase, message.counter) == ("worker-0", COLLECTING, 100)
    assert (message.age_duration.seconds, message.deadline_duration.seconds) == (2, 10)


def hang(watched: Watched, seconds: int) -> int:
    """Lets the role make no progress, and restarts it once it is stuck; returns after how many seconds it was."""
    for second in range(1, seconds + 1):
        watched.poll(1)
        if watched.watch.judge().stuck:
            watched.watch.restart()
            return second
    return 0


def test_a_role_that_hangs_rarely_is_found_as_soon_each_time() -> None:
    watched, found = Watched(), []
    for _ in range(5):
        watched.poll(500, steps=5)
        found.append(hang(watched, 600))
    assert found == [10] * 5


def test_a_role_that_hangs_again_and_again_gets_more_time_each_time() -> None:
    watched, found = Watched(), []
    for _ in range(5):
        watched.poll(30, steps=5)
        found.append(hang(watched, 600))
    assert found == [10, 20, 40, 80, 160]


def test_a_role_that_is_slow_now_and_then_is_restarted_once() -> None:
    watched = Watched()
    watched.poll(100, steps=5)
    restarts = 0
    for _ in range(20):
        restarts += hang(watched, 15) > 0
        watched.poll(300, steps=5)
    assert restarts == 1
