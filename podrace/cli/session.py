"""One command from its first call to its exit code: its event loop, Ctrl-C, and the mesh it talks to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from podrace import rpc
from podrace.cli import EXIT_INTERRUPTED
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings
from podrace.cli.terminal.output import tell
from podrace.client import Client, resolve
from podrace.errors import Cancelled, DeadlineExceeded, NotFound, Unavailable
from podrace.mesh.home import Folders
from podrace.mesh.home_lock import Use
from podrace.mesh.session import open_mesh
from podrace.tournament.v1.tournament_pb2 import Tournament

REMOTE_SECONDS = 5.0
"""How long an orchestrator named by its address may take to answer."""
QUERY_ATTEMPTS = 3


def run(command: Callable[[Interrupts], Awaitable[int]]) -> int:
    """Runs a command in an event loop of its own and returns its exit code."""

    async def interruptible() -> int:
        task = asyncio.current_task()
        assert task is not None
        interrupts = Interrupts(task)
        try:
            with interrupts.catch():
                return await command(interrupts)
        except asyncio.CancelledError:
            if not interrupts.count:
                raise
            return EXIT_INTERRUPTED

    return asyncio.run(interruptible())


def run_query(settings: Settings, query: Callable[[Client], Awaitable[int]]) -> int:
    """Runs a command that asks or tells and needs no pods.

    It is begun again when its mesh goes meanwhile: another command may have owned it.
    """

    async def command(interrupts: Interrupts) -> int:
        attempts = 1 if settings.orchestrator else QUERY_ATTEMPTS
        while True:
            attempts -= 1
            try:
                async with open_client(settings, Use.QUERY, interrupts) as client:
                    return await query(client)
            except (Unavailable, DeadlineExceeded, Cancelled):
                if not attempts:
                    raise

    return run(command)


@contextlib.asynccontextmanager
async def open_client(
    settings: Settings, use: Use, interrupts: Interrupts, *, notify: Callable[[str], None] = tell
) -> AsyncIterator[Client]:
    """Connects to the orchestrator that was named, to the mesh that runs on the home, or to one started for the block.

    Raises:
        PodraceError: There is no mesh to reach, to join, or to start; the line says why.
    """
    if settings.orchestrator:
        await _check_remote(settings)
        async with Client(settings.orchestrator) as client:
            yield client
        return
    mesh = open_mesh(
        settings.home, use, store=settings.store, debug=settings.debug, notify=notify, hurried=interrupts.ordered
    )
    async with mesh as address, Client(address) as client:
        yield client


def has_tournaments(settings: Settings) -> bool:
    """Whether there may be tournaments: asked before a mesh is started in vain."""
    return bool(settings.orchestrator) or Folders.of(settings.home).orchestrator_database.exists()


def require_tournaments(settings: Settings) -> None:
    """Refuses to look for a tournament where none can be.

    Raises:
        NotFound: The home has no tournaments.
    """
    if not has_tournaments(settings):
        raise NotFound(
            f"{settings.home}: there are no tournaments; begin one with `podrace train SPEC`, or name the folder of "
            "another with --home"
        )


def check_remote(settings: Settings) -> None:
    """Refuses an orchestrator that does not answer; nothing is done where none is named.

    Raises:
        Unavailable: It does not answer.
    """
    if settings.orchestrator:
        asyncio.run(_check_remote(settings))


async def _check_remote(settings: Settings) -> None:
    try:
        await rpc.wait_until_serving(settings.orchestrator, deadline_seconds=REMOTE_SECONDS)
    except Unavailable as error:
        raise Unavailable(f"--orchestrator {settings.orchestrator}: {error.message}; check the address") from None


async def find_tournament(client: Client, text: str, settings: Settings) -> Tournament:
    """The tournament that a person means.

    Raises:
        NotFound: None.
        InvalidArgument: Several.
    """
    tournaments = {tournament.tournament_id: tournament for tournament in await client.list_tournaments()}
    return tournaments[resolve.resolve_tournament(text, list(tournaments), where=settings.where)]
