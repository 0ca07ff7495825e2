"""Tests that a leader notices a follower on another host that hangs, or that is gone."""

import asyncio
from pathlib import Path

import pytest
from supervised_pod import COLLECTING, SupervisedPod

from agentpod.fusion.follower_calls import ALIVE
from agentpod.fusion.shared_training import SharedTraining
from agentpod.session.role_polls import RolePolls
from podrace.errors import InvalidArgument
from podrace.tasks import cancel_all

LONG = 60.0
REMOTE, ROLE = 2, "learner-2"


async def waiting(shared: SharedTraining, learner: int = REMOTE) -> "asyncio.Task[object]":
    """Returns the call of a learner, which waits."""
    call = asyncio.create_task(shared.wait_for_change("", LONG, learner))
    await asyncio.sleep(0)
    return call


class Pod(SupervisedPod):
    """A pod whose worker steps, with two learners on this host and two on another one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shared = SharedTraining(4, REMOTE, 60.0, clock=lambda: self.now)

    async def _poll(self) -> dict[str, object]:  # type: ignore[override]
        return {**await super()._poll(), **self.shared.calls.answers()}


async def test_a_follower_that_has_never_called_is_not_judged(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    await pod.polls(700, steps=1)
    assert (pod.reported, pod.exits) == ([], [])
    assert all(role.role != ROLE for role in pod.shown)


async def test_followers_on_the_leaders_host_are_polled() -> None:
    calls = SharedTraining(4, REMOTE, LONG).calls
    with calls.in_progress(1), calls.in_progress(REMOTE):
        assert calls.answers() == {ROLE: ALIVE}


async def test_a_follower_that_waits_in_a_call_is_alive(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    call = await waiting(pod.shared)
    await pod.polls(700, steps=1)
    assert (pod.reported, pod.exits) == ([], [])
    await cancel_all(call)


async def test_the_pod_of_a_follower_that_stops_calling_is_replaced_after_ten_seconds(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    call = await waiting(pod.shared)
    await pod.polls(20, steps=1)
    # This call is answered at once, and no other follows: the process is stopped.
    await pod.shared.wait_for_change("old", LONG, REMOTE)
    await pod.polls(9, steps=1)
    assert pod.exits == []
    await pod.polls(1, steps=1)
    (stuck,) = pod.reported
    assert (stuck.progress.role, stuck.restarted) == (ROLE, False)
    assert stuck.reason.startswith("it does not answer: 10.0 s in phase waiting; the deadline is 10.0 s")
    assert pod.exits == [f"{ROLE}: {stuck.reason}"]
    await cancel_all(call)


async def test_a_follower_whose_connection_broke_may_be_starting_again(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    for _ in range(3):
        call = await waiting(pod.shared)
        await pod.polls(20, steps=1)
        await cancel_all(call)
        await pod.polls(60, steps=1)
    assert (pod.reported, pod.exits) == ([], [])


async def test_the_pod_of_a_follower_that_does_not_come_back_is_replaced(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    call = await waiting(pod.shared)
    await pod.polls(20, steps=1)
    await cancel_all(call)
    await pod.polls(68, steps=1)
    assert pod.exits == []
    await pod.polls(1, steps=1)
    assert [stuck.progress.role for stuck in pod.reported] == [ROLE]
    assert len(pod.exits) == 1


async def test_the_late_end_of_a_call_does_not_hide_the_next_one(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    first = await waiting(pod.shared)
    second = await waiting(pod.shared)
    await cancel_all(first)
    pod.now = 100.0
    assert pod.shared.calls.answers() == {ROLE: ALIVE}
    await cancel_all(second)


async def test_a_leader_polls_with_what_the_calls_show(tmp_path: Path) -> None:
    config = SupervisedPod(tmp_path).config
    polls = RolePolls(config, calls=lambda: {ROLE: COLLECTING})
    try:
        answers = await polls.poll()
    finally:
        await polls.close()
    assert answers[ROLE] == COLLECTING
    assert answers["worker-0"] is None


@pytest.mark.parametrize("learner", [0, 4])
async def test_a_refused_call_is_not_recorded(learner: int) -> None:
    shared = SharedTraining(4, REMOTE, LONG)
    with pytest.raises(InvalidArgument, match="learner_index"):
        await shared.wait_for_change("", LONG, learner)
    assert shared.calls.answers() == {}
