"""An evaluator service behind a fault proxy: each score ends in a bounded time, and a network that is back is used."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from test_user_evaluator import Pod, pod, third_party

from agentpod.roles import user_evaluator
from benchmarks.connections.fault_proxy import FaultProxy

__all__ = ["pod", "third_party"]
BOUND_SECONDS = 10.0


@pytest.fixture
async def proxy(third_party, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FaultProxy]:
    monkeypatch.setattr(user_evaluator, "CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(user_evaluator, "OPEN_DEADLINE_SECONDS", 2.0)
    async with FaultProxy(third_party[1].removeprefix("grpc://")) as proxy:
        yield proxy


async def scored(pod: Pod, evaluator: user_evaluator.UserEvaluator) -> bool:
    """Scores once, after the pause that failures before it caused; returns whether the service did it."""
    pod.now += 1000.0
    begin = time.monotonic()
    evaluation = await pod.score(evaluator)
    assert time.monotonic() - begin < BOUND_SECONDS
    assert (evaluation is None) == bool(evaluator.fault)
    return evaluation is not None


async def recovered(pod: Pod, evaluator: user_evaluator.UserEvaluator) -> int:
    """Scores until the service answers; returns how often it failed."""
    for failures in range(10):
        if await scored(pod, evaluator):
            return failures
        await asyncio.sleep(0.2)
    raise AssertionError(evaluator.fault)


@pytest.mark.parametrize("fault", ["drop", "one_way", "refuse"])
async def test_a_service_that_cannot_be_reached_is_replaced_until_the_network_is_back(
    pod: Pod, proxy: FaultProxy, fault: str
) -> None:
    evaluator = pod.evaluator(f"grpc://{proxy.address}", answer_seconds=2.0)
    assert await scored(pod, evaluator)
    getattr(proxy, fault)()
    for _ in range(2):
        assert not await scored(pod, evaluator)
    proxy.heal()
    await recovered(pod, evaluator)


@pytest.mark.parametrize("fault", ["half_open", "reset"])
async def test_a_broken_connection_is_replaced(pod: Pod, proxy: FaultProxy, fault: str) -> None:
    evaluator = pod.evaluator(f"grpc://{proxy.address}", answer_seconds=2.0)
    assert await scored(pod, evaluator)
    getattr(proxy, fault)()
    assert await recovered(pod, evaluator) <= 4
    assert proxy.accepted >= 2


async def test_a_slow_network_only_delays(pod: Pod, proxy: FaultProxy) -> None:
    proxy.delay(0.05)
    assert await scored(pod, pod.evaluator(f"grpc://{proxy.address}", answer_seconds=5.0))
