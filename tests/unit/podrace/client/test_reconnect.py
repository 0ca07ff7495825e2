from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from podrace.client import reconnect
from podrace.errors import PodraceError, ResourceExhausted, Unavailable

LOST = Unavailable("the connection was lost")
REFUSED = ResourceExhausted("100 streams are open", retry_seconds=0.02)
FULL = ResourceExhausted("the disk is full")


async def followed(*streams: list[int | PodraceError]) -> tuple[list[int], list[int]]:
    """Follows these streams one after the other; returns the messages, and where each stream was begun."""
    begun, answers = list[int](), iter(streams)

    async def watch(resume_token: int) -> AsyncIterator[Any]:
        begun.append(resume_token)
        for one in next(answers):
            if isinstance(one, PodraceError):
                raise one
            yield SimpleNamespace(resume_token=one)

    found = list[int]()
    async for update in reconnect.resumed(watch):
        found.append(update.resume_token)
        if update.resume_token == 9:
            break
    return found, begun


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect, "RETRY_SECONDS", 0.0)


async def test_a_lost_stream_is_resumed_after_the_last_message() -> None:
    assert await followed([1, 2, LOST], [LOST], [3, 9]) == ([1, 2, 3, 9], [0, 2, 2])


async def test_a_stream_that_was_open_waits_until_the_lost_one_no_longer_counts() -> None:
    assert await followed([1, LOST], [REFUSED], [REFUSED], [9]) == ([1, 9], [0, 1, 1, 1])


@pytest.mark.parametrize("streams", [([REFUSED],), ([1, FULL],)])
async def test_a_first_stream_that_is_refused_and_any_other_error_are_final(streams: Any) -> None:
    with pytest.raises(ResourceExhausted):
        await followed(*streams)
