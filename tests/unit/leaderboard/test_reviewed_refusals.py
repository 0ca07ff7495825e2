"""A review lists refusals in pages, so that it is never larger than a message may be."""

from collections.abc import Callable
from typing import Any

from leaderboard import service
from leaderboard.service import GeneratorServicer
from leaderboard.store.refusal_records import LONGEST_MESSAGE, PAGE_SIZE, add_refusal
from podrace.digests import digest
from podrace.leaderboard.v1.leaderboard_pb2 import Refusal, ReviewAgentsRequest
from podrace.page_bytes import fitting
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

LARGEST_MESSAGE_BYTES = 4 * 2**20


async def reviewed_pages(mesh: Any, tournament_id: str) -> list[list[Refusal]]:
    """Reviews a tournament until no further refusal is listed, and returns the refusals of each review."""
    servicer = GeneratorServicer(mesh.generator, mesh.state, mesh.generator.owners)
    pages: list[list[Refusal]] = []
    while not pages or pages[-1]:
        last = pages[-1][-1].number if pages else 0
        request = ReviewAgentsRequest(tournament_id=tournament_id, refusals_after=last)
        answer = await servicer.ReviewAgents(request, None)  # type: ignore[arg-type]
        assert answer.ByteSize() < LARGEST_MESSAGE_BYTES
        pages.append(list(answer.refusals))
    return pages[:-1]


async def record(mesh: Any, tournament_id: str, count: int, message: str) -> None:
    for number in range(count):
        refusal = Refusal(agent_id=f"{tournament_id}-a0", manifest_digest=digest(bytes([number])), message=message)
        assert await mesh.state.transact(add_refusal, tournament_id, refusal)


async def test_large_recorded_refusals_arrive_in_pages_with_short_messages(
    mesh: Any, make_spec: Callable[..., TournamentSpec]
) -> None:
    name = (await mesh.generate(make_spec(), 0)).tournament_id
    await record(mesh, name, PAGE_SIZE + 5, "\N{EURO SIGN}" * 2**18)
    pages = await reviewed_pages(mesh, name)
    assert [len(page) for page in pages] == [PAGE_SIZE, 5]
    assert [one.number for page in pages for one in page] == list(range(1, PAGE_SIZE + 6))
    assert {len(one.message) for page in pages for one in page} == {LONGEST_MESSAGE}


async def test_refusals_that_do_not_fit_are_listed_in_the_next_review(
    mesh: Any, make_spec: Callable[..., TournamentSpec], monkeypatch: Any
) -> None:
    monkeypatch.setattr(service, "fitting", lambda entries: fitting(entries, most_bytes=1500))
    name = (await mesh.generate(make_spec(), 0)).tournament_id
    await record(mesh, name, 5, "long" * 1000)
    pages = await reviewed_pages(mesh, name)
    assert [[one.number for one in page] for page in pages] == [[1, 2], [3, 4], [5]]
