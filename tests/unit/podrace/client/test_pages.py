"""A list is read to its last page: in smaller pages if one is too large, and after a pause if there were many calls."""

import pytest

from podrace.client.calls.channels import LONGEST_PAUSE_SECONDS, MOST_REPEATS, PAGE_SIZE, pages_by
from podrace.errors import ResourceExhausted
from podrace.orchestrator.v1.orchestrator_pb2 import ListTournamentsRequest, ListTournamentsResponse

TOO_LARGE = ResourceExhausted("Received message larger than max")


class Lists:
    """Answers with these errors before each of two pages, and records page sizes and pauses."""

    def __init__(self, *errors: ResourceExhausted) -> None:
        self.errors, self._errors = errors, list(errors)
        self.sizes: list[int] = []
        self.pauses: list[float] = []

    async def ask(self, request: ListTournamentsRequest) -> ListTournamentsResponse:
        self.sizes.append(request.page_size)
        if self._errors:
            raise self._errors.pop(0)
        self._errors = list(self.errors)
        return ListTournamentsResponse(next_page_token="" if request.page_token else "second")

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def read(self) -> int:
        request = ListTournamentsRequest(page_size=PAGE_SIZE)
        return len([page async for page in pages_by(self.ask, request, sleep=self.sleep)])


def limited(seconds: float) -> ResourceExhausted:
    return ResourceExhausted("too many calls", retry_seconds=seconds)


async def test_a_page_that_is_too_large_is_requested_with_half_as_many_entries_at_once() -> None:
    lists = Lists(TOO_LARGE)
    assert await lists.read() == 2
    assert lists.sizes == [64, 32, 32, 16]
    assert lists.pauses == []


async def test_a_limited_rate_delays_a_page_and_leaves_its_size() -> None:
    lists = Lists(*[limited(0.25)] * MOST_REPEATS)
    assert await lists.read() == 2
    assert set(lists.sizes) == {PAGE_SIZE}
    assert lists.pauses == [0.25] * 2 * MOST_REPEATS


async def test_repeats_and_pauses_are_bounded() -> None:
    lists = Lists(*[limited(3600.0)] * (MOST_REPEATS + 1))
    with pytest.raises(ResourceExhausted, match="too many calls"):
        await lists.read()
    assert lists.pauses == [LONGEST_PAUSE_SECONDS] * MOST_REPEATS
