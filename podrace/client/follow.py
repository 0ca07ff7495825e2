"""Follows a tournament from its first message to its end: both watches, reconnected when a service restarts."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from podrace.client.calls import Clients
from podrace.errors import Cancelled, DeadlineExceeded, Unavailable
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.orchestrator.v1.orchestrator_pb2 import Pod
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import Tournament

END_STATES = {
    tournament_pb2.TOURNAMENT_STATE_COMPLETED,
    tournament_pb2.TOURNAMENT_STATE_CANCELLED,
    tournament_pb2.TOURNAMENT_STATE_FAILED,
}
PATIENCE = contextlib.suppress(Unavailable, Cancelled, DeadlineExceeded)
"""Lets pass how calls fail while their server restarts."""
PAUSE_SECONDS = 0.5
"""Between two calls of one kind."""
DRAW_SECONDS = 0.25


@dataclass
class View:
    """What is known of a tournament at this moment."""

    tournament: Tournament
    pods: list[Pod] = field(default_factory=list)
    board: list[Candidate] = field(default_factory=list)
    first_score: float | None = None
    """Score of the first submission: where the way to the target return begins."""
    last_event: str = ""
    stopping: bool = False
    """The user asked for the end."""
    heard: float = field(default_factory=time.monotonic)
    """When the orchestrator last said something, on the monotonic clock."""


async def follow(
    clients: Clients, view: View, *, draw: Callable[[View], None], stop: asyncio.Event, stop_reason: str
) -> None:
    """Keeps `view` true until the tournament has reached its end state.

    Args:
        clients: Of its mesh.
        view: Updated in place.
        draw: Shows it, several times a second.
        stop: When it is set, the tournament is cancelled; following goes on to its end.
        stop_reason: Why, for the record.

    Raises:
        PodraceError: A call failed in a way that waiting does not mend.
    """
    arrived = asyncio.Event()
    await _until_first_ends(
        _follow_tournament(clients, view),
        _follow_submissions(clients, view, arrived),
        _refresh_board(clients, view, arrived),
        _draw_often(view, draw),
        _cancel_when(stop, clients, view, stop_reason),
    )
    view.board = await clients.list_candidates(view.tournament)
    draw(view)


async def _until_first_ends(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Runs them together until one ends; what it raised is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _follow_tournament(clients: Clients, view: View) -> None:
    """Ends with the tournament."""
    token = 0
    while True:
        with PATIENCE:
            async for message in clients.watch_tournament(view.tournament.tournament_id, token):
                token = message.resume_token
                view.tournament, view.pods, view.heard = message.tournament, list(message.pods), time.monotonic()
                if message.events:
                    view.last_event = message.events[-1].message
                if message.tournament.state in END_STATES:
                    return
        await asyncio.sleep(PAUSE_SECONDS)


async def _follow_submissions(clients: Clients, view: View, arrived: asyncio.Event) -> None:
    token = 0
    while True:
        with PATIENCE:
            async for message in clients.watch_candidates(view.tournament, token):
                token = message.resume_token
                if view.first_score is None:
                    view.first_score = message.candidate.score
                arrived.set()
        await asyncio.sleep(PAUSE_SECONDS)


async def _refresh_board(clients: Clients, view: View, arrived: asyncio.Event) -> None:
    """Reads the board again when submissions have arrived: each may move others, so that it does not tell all."""
    while True:
        await arrived.wait()
        arrived.clear()
        with PATIENCE:
            view.board = await clients.list_candidates(view.tournament)
        await asyncio.sleep(PAUSE_SECONDS)


async def _draw_often(view: View, draw: Callable[[View], None]) -> None:
    while True:
        draw(view)
        await asyncio.sleep(DRAW_SECONDS)


async def _cancel_when(stop: asyncio.Event, clients: Clients, view: View, reason: str) -> None:
    await stop.wait()
    view.stopping = True
    while True:
        with PATIENCE:
            await clients.cancel_tournament(view.tournament.tournament_id, reason)
            await asyncio.Event().wait()
        await asyncio.sleep(PAUSE_SECONDS)


async def wait_for_pods_to_go(clients: Clients, view: View, *, deadline_seconds: float) -> None:
    """Waits until the launcher knows no pod of the tournament any more, at most until the deadline."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(deadline_seconds):
            while True:
                with PATIENCE:
                    view.pods = await clients.list_pods(view.tournament.tournament_id)
                    if not view.pods:
                        return
                await asyncio.sleep(PAUSE_SECONDS)
