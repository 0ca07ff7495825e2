from agentpod.liveness.idle_pod import IdlePod
from agentpod.liveness.role_watch import LONGEST_GAP_SECONDS, RoleAnswer
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.progress_deadlines import ProgressDeadlines

IDLE, WAITING, COLLECTING = pb.ROLE_PHASE_IDLE, pb.ROLE_PHASE_WAITING, pb.ROLE_PHASE_COLLECTING


class Observed:
    """A learner and a worker, polled once a second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.updates: int | None = None
        self.counter = 0
        self.idle = IdlePod(ProgressDeadlines(), lambda: self.updates, self.now)

    def poll(
        self, polls: int, worker: pb.RolePhase.ValueType | None = IDLE, learner: pb.RolePhase.ValueType = IDLE
    ) -> None:
        for _ in range(polls):
            self.now += 1.0
            answer = None if worker is None else RoleAnswer(worker, self.counter)
            self.idle.observe(self.now, {"learner": RoleAnswer(learner, 7), "worker-0": answer})

    def train(self, updates: int = 10, seconds: int = 1) -> None:
        for update in range(updates):
            self.updates = update
            self.poll(seconds, COLLECTING)

    @property
    def stuck(self) -> bool:
        return self.idle.judge().stuck


def test_a_pod_that_trains_and_works_no_more_is_stuck_after_a_multiple_of_the_time_of_an_update() -> None:
    observed = Observed()
    observed.train(seconds=3)
    assert observed.idle.judge().deadline_seconds == 30.0
    observed.poll(30)
    assert not observed.stuck
    observed.poll(1)
    assert observed.stuck


def test_several_updates_between_two_polls_count_as_several() -> None:
    observed = Observed()
    for update in range(0, 1000, 10):
        observed.updates = update
        observed.poll(20, COLLECTING)
    assert observed.idle.judge().deadline_seconds == 20.0


def test_a_role_that_works_waits_or_does_not_answer_is_watched_by_itself() -> None:
    for worker, learner in ((COLLECTING, IDLE), (IDLE, WAITING), (None, IDLE)):
        observed = Observed()
        observed.train()
        observed.poll(1000, worker, learner)
        assert not observed.stuck


def test_an_update_or_a_step_between_two_polls_is_progress() -> None:
    observed = Observed()
    observed.train()
    for _ in range(9):
        observed.poll(9)
        observed.counter += 1
        observed.poll(9)
        observed.updates = (observed.updates or 0) + 1
    assert not observed.stuck


def test_a_pod_that_does_not_train_has_the_longest_deadline() -> None:
    observed = Observed()
    observed.train()
    observed.updates = None
    observed.poll(600)
    assert not observed.stuck
    observed.poll(1)
    assert observed.stuck


def test_time_in_which_nothing_was_polled_does_not_count() -> None:
    observed = Observed()
    observed.train()
    observed.poll(1)
    observed.now += 3600.0
    observed.poll(1)
    assert not observed.stuck
    observed.poll(int(10 - LONGEST_GAP_SECONDS))
    assert observed.stuck


def test_after_a_report_the_deadline_is_twice_as_long() -> None:
    observed = Observed()
    observed.train()
    observed.poll(11)
    assert observed.stuck
    observed.idle.restart()
    observed.poll(19)
    assert not observed.stuck
    observed.poll(1)
    assert observed.stuck


def test_the_reported_progress_has_the_time_without_work_and_its_deadline() -> None:
    observed = Observed()
    observed.train()
    observed.poll(6)
    progress = pb.RoleProgress(role="learner")
    observed.idle.stamp(progress)
    assert (progress.age_duration.seconds, progress.deadline_duration.seconds) == (5, 10)
