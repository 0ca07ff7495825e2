"""Tests that no follower misses the end of the leader."""

import asyncio

import pytest

from agentpod.fusion.shared_training import SharedTraining
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.tasks import cancel_all

LONG = 60.0


async def waiting(shared: SharedTraining, learner: int) -> "asyncio.Task[object]":
    """Returns the call of a learner, which waits."""
    call = asyncio.create_task(shared.wait_for_change("", LONG, learner))
    await asyncio.sleep(0)
    return call


async def test_the_end_waits_for_a_follower_between_two_calls() -> None:
    shared = SharedTraining(4, 4, LONG)
    first, second = await waiting(shared, 1), await waiting(shared, 2)
    await cancel_all(second)
    await shared.wait_for_change("old", LONG, 3)
    shared.end()
    ending = asyncio.create_task(shared.all_notified(LONG))
    await first
    assert not ending.done()
    assert (await shared.wait_for_change("", LONG, 3)).ending
    assert await ending


async def test_the_end_does_not_wait_longer_for_a_follower_that_is_gone() -> None:
    shared = SharedTraining(4, 4, LONG)
    await shared.wait_for_change("old", LONG, 1)
    shared.end()
    assert not await shared.all_notified(0.0)


async def test_without_followers_the_end_does_not_wait() -> None:
    shared = SharedTraining(4, 4, LONG)
    shared.end()
    assert await shared.all_notified(0.0)


@pytest.mark.parametrize("learner", [0, 4, 2**32 - 1])
async def test_a_follower_that_the_pod_does_not_have_is_refused_and_never_waited_for(learner: int) -> None:
    shared = SharedTraining(4, 4, LONG)
    with pytest.raises(InvalidArgument, match=rf"^learner_index = {learner} must be at least 1 and less than 4"):
        await shared.wait_for_change("old", LONG, learner)
    shared.end()
    assert await shared.all_notified(0.0)


def joining(session: str, learner: int) -> pb.JoinFusionRequest:
    return pb.JoinFusionRequest(session=session, learner_index=learner)


async def test_a_prepared_training_is_ready_when_every_follower_has_tried_to_join_it() -> None:
    shared = SharedTraining(3, 3, LONG)
    asking = await waiting(shared, 1)
    shared.prepare(pb.GetTrainingResponse(session="prepared"))
    assert (await asking).session == "prepared"
    ready = asyncio.create_task(shared.all_ready())
    for session, learner in (("old", 2), ("prepared", 1), ("prepared", 1), ("prepared", 7)):
        with pytest.raises(FailedPrecondition):
            await shared.join(joining(session, learner))
    await asyncio.sleep(0)
    assert not ready.done()
    with pytest.raises(FailedPrecondition):
        await shared.join(joining("prepared", 2))
    assert await ready


async def test_a_withdrawn_preparation_is_not_waited_for() -> None:
    shared = SharedTraining(2, 2, LONG)
    shared.prepare(pb.GetTrainingResponse(session="prepared"))
    ready = asyncio.create_task(shared.all_ready())
    await asyncio.sleep(0)
    shared.withdraw()
    assert not await ready
