"""Keeps a view of a tournament current until the tournament has ended, and shows it several times a second."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from podrace.client import reconnect
from podrace.client.client import Client
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.orchestrator.v1.orchestrator_pb2 import Pod
from podrace.tasks import first_finished
from podrace.tournament.v1.tournament_pb2 import Tournament

DRAW_SECONDS = 0.25
"""Pause between two calls of `draw`."""


@dataclass
class TournamentView:
    """The latest known state of a tournament, its pods and its board."""

    tournament: Tournament
    pods: list[Pod] = field(default_factory=list)
    board: list[Candidate] = field(default_factory=list)
    first_score: float | None = None
    """Score of the first submission, from which progress towards the target return is measured."""
    last_event: str = ""
    """Message of the latest event."""
    stopping: bool = False
    """Whether the user has asked to cancel the tournament."""
    last_update: float = field(default_factory=time.monotonic)
    """When the last message of the orchestrator arrived, on the monotonic clock."""


async def follow_to_end(
    client: Client,
    view: TournamentView,
    *,
    draw: Callable[[TournamentView], None],
    stop: asyncio.Event,
    stop_reason: str,
) -> None:
    """Updates `view` until the tournament has ended.

    Args:
        client: Client of the mesh that runs the tournament.
        view: Updated in place.
        draw: Called with the view several times a second.
        stop: When it is set, the tournament is cancelled. The function still returns only when it has ended.
        stop_reason: Reason to record for the cancellation.

    Raises:
        PodraceError: A call failed with an error that is not in `reconnect.RETRYABLE`.
    """
    submitted = asyncio.Event()
    await _until_first_returns(
        _follow_tournament(client, view),
        _follow_submissions(client, view, submitted),
        _refresh_board(client, view, submitted),
        _draw_often(view, draw),
        _cancel_when(stop, client, view, stop_reason),
    )
    view.board = await client.list_board(view.tournament)
    draw(view)


async def _until_first_returns(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Runs coroutines concurrently until one returns or raises, and raises its error."""
    for task in await first_finished(*coroutines):
        task.result()


async def _follow_tournament(client: Client, view: TournamentView) -> None:
    async for update in client.follow(view.tournament):
        view.tournament, view.pods, view.last_update = update.tournament, list(update.pods), time.monotonic()
        if update.events:
            view.last_event = update.events[-1].message


async def _follow_submissions(client: Client, view: TournamentView, submitted: asyncio.Event) -> None:
    async for update in client.follow_submissions(view.tournament):
        if view.first_score is None:
            view.first_score = update.candidate.score
        submitted.set()


async def _refresh_board(client: Client, view: TournamentView, submitted: asyncio.Event) -> None:
    """Reads the whole board after submissions, because a submission may change the ranks of other candidates."""
    while True:
        await submitted.wait()
        submitted.clear()
        with contextlib.suppress(*reconnect.RETRYABLE):
            view.board = await client.list_board(view.tournament)
        await asyncio.sleep(reconnect.RETRY_SECONDS)


async def _draw_often(view: TournamentView, draw: Callable[[TournamentView], None]) -> None:
    while True:
        draw(view)
        await asyncio.sleep(DRAW_SECONDS)


async def _cancel_when(stop: asyncio.Event, client: Client, view: TournamentView, reason: str) -> None:
    await stop.wait()
    view.stopping = True
    while True:
        with contextlib.suppress(*reconnect.RETRYABLE):
            await client.cancel_tournament(view.tournament.tournament_id, reason)
            await asyncio.Event().wait()
        await asyncio.sleep(reconnect.RETRY_SECONDS)


async def wait_for_pods_to_exit(client: Client, view: TournamentView, *, deadline_seconds: float) -> None:
    """Waits until the tournament has no pods left, but not longer than the deadline."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(deadline_seconds):
            while True:
                with contextlib.suppress(*reconnect.RETRYABLE):
                    view.pods = await client.list_pods(view.tournament.tournament_id)
                    if not view.pods:
                        return
                await asyncio.sleep(reconnect.RETRY_SECONDS)
