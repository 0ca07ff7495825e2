"""Requests of one version are computed in batches, and each gets its own rows."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from policies import published

from podrace.errors import Cancelled, DeadlineExceeded, Internal, InvalidArgument, ResourceExhausted
from podrace.policy.loading import onnx_file
from podrace.serving.batcher import Batcher, BatchItem
from podrace.serving.decisions.batch_cut import BatchLimits
from podrace.serving.policy_version import PolicyVersion


class SpiedVersion(PolicyVersion):
    """Records how many rows each batch had; raises `failure` if it is set."""

    def __init__(self, model: bytes) -> None:
        super().__init__(model)
        self.batches: list[int] = []
        self.failure: Exception | None = None

    def compute(self, observation, state, *, outputs):
        if self.failure:
            raise self.failure
        self.batches.append(len(observation))
        return super().compute(observation, state, outputs=outputs)


class World:
    def __init__(self, case: str = "logits", *, inline: bool = True, members: int = 1, **limits) -> None:
        self.policy = SpiedVersion(onnx_file([published(case, seed).checkpoint for seed in range(members)]))
        self.executor = ThreadPoolExecutor(1)
        self.now = 0.0
        seconds = 1e9 if inline else 0.0
        self.batcher = Batcher(self.policy, BatchLimits(**limits), self.executor, lambda: self.now, seconds)
        self.random = np.random.default_rng(0)

    def observation(self, rows: int = 1):
        return self.random.standard_normal((rows, 3)).astype(np.float32)

    def expected(self, observation):
        return self.policy.compute(observation, np.zeros((len(observation), 0), np.float32), outputs=False)["action"]


@pytest.mark.parametrize("inline", [True, False])
async def test_requests_that_arrive_together_are_one_batch_and_each_gets_its_own_actions(inline):
    world = World(inline=inline)
    observations = [world.observation(rows) for rows in (1, 3, 2)]
    answers = await asyncio.gather(*(world.batcher.act(BatchItem(each)) for each in observations))
    assert world.policy.batches == [6]
    for observation, answer in zip(observations, answers, strict=True):
        assert (answer.action == world.expected(observation)).all()
        assert answer.version == world.policy.version


async def test_requests_that_arrive_while_the_policy_computes_are_the_next_batch():
    world = World(inline=False)
    first = asyncio.create_task(world.batcher.act(BatchItem(world.observation())))
    while not world.batcher._computing:
        await asyncio.sleep(0)
    others = [asyncio.create_task(world.batcher.act(BatchItem(world.observation()))) for _ in range(5)]
    await asyncio.gather(first, *others)
    assert world.policy.batches == [1, 5]


async def test_states_and_samples_of_a_batch_stay_apart():
    world = World("recurrent")
    one, other = world.observation(2), world.observation(1)
    state = np.ones((2, 5), np.float32)
    first, second = await asyncio.gather(
        world.batcher.act(BatchItem(one, state)), world.batcher.act(BatchItem(other, random=np.random.default_rng(7)))
    )
    assert world.policy.batches == [3]
    alone = world.policy.compute(one, state, outputs=False)
    assert np.allclose(first.next_state, alone["next_state"], atol=1e-6)
    zero = world.policy.compute(other, np.zeros((1, 5), np.float32), outputs=True)
    assert (second.action == world.policy.sampled(zero, np.random.default_rng(7))).all()


async def test_a_queue_that_is_full_refuses_with_a_time_to_wait():
    world = World(queued_rows=4)
    waiting = [asyncio.create_task(world.batcher.act(BatchItem(world.observation(2)))) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ResourceExhausted, match="4 observations wait") as raised:
        await world.batcher.act(BatchItem(world.observation()))
    assert raised.value.retry_seconds
    await asyncio.gather(*waiting)


async def test_a_request_past_its_deadline_is_not_computed():
    world = World()
    late = asyncio.create_task(world.batcher.act(BatchItem(world.observation(), deadline=1.0)))
    kept = asyncio.create_task(world.batcher.act(BatchItem(world.observation(), deadline=3.0)))
    await asyncio.sleep(0)
    world.now = 2.0
    with pytest.raises(DeadlineExceeded):
        await late
    await kept
    assert world.policy.batches == [1]


async def test_a_request_that_its_caller_cancelled_is_not_computed():
    world = World()
    gone = asyncio.create_task(world.batcher.act(BatchItem(world.observation())))
    await asyncio.sleep(0)
    gone.cancel()
    await world.batcher.act(BatchItem(world.observation()))
    assert world.policy.batches == [1]


async def test_an_error_of_the_policy_reaches_every_request_of_the_batch_and_the_next_batch_is_computed():
    world = World("squashed")
    asks = [BatchItem(world.observation()), BatchItem(world.observation(), random=np.random.default_rng(0))]
    world.policy.failure = RuntimeError("out of memory")
    found = await asyncio.gather(*map(world.batcher.act, asks), return_exceptions=True)
    assert [type(error) for error in found] == [Internal, Internal]
    assert "failed on 2 requests: out of memory" in found[0].message
    world.policy.failure = None
    assert len((await world.batcher.act(asks[0])).action) == 1


async def test_a_sampled_request_to_an_ensemble_is_refused_without_an_effect_on_others():
    world = World(members=2)
    sampled = BatchItem(world.observation(), random=np.random.default_rng(0))
    asks = [BatchItem(world.observation()), sampled, BatchItem(world.observation())]
    first, refused, last = await asyncio.gather(*map(world.batcher.act, asks), return_exceptions=True)
    assert isinstance(refused, InvalidArgument)
    assert (first.action, last.action) == (world.expected(asks[0].observation), world.expected(asks[2].observation))
    assert world.policy.batches[0] == 2


@pytest.mark.parametrize(("error", "kind"), [(InvalidArgument("no"), InvalidArgument), (ValueError("no"), Internal)])
async def test_an_action_that_cannot_be_sampled_fails_its_own_request(error, kind, monkeypatch):
    world = World()

    def sampled(found, random):
        raise error

    monkeypatch.setattr(world.policy, "sampled", sampled)
    asks = [BatchItem(world.observation()), BatchItem(world.observation(), random=np.random.default_rng(0))]
    acted, failed = await asyncio.gather(*map(world.batcher.act, asks), return_exceptions=True)
    assert type(failed) is kind
    assert acted.action == world.expected(asks[0].observation)


async def test_what_waits_is_cancelled_when_the_batcher_closes():
    world = World()
    waiting = asyncio.create_task(world.batcher.act(BatchItem(world.observation())))
    await asyncio.sleep(0)
    world.batcher.close()
    with pytest.raises(Cancelled):
        await waiting
