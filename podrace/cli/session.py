"""Runs one command: its event loop, its interrupts, and its connection to a mesh."""

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from podrace import rpc
from podrace.cli import EXIT_INTERRUPTED
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings
from podrace.cli.terminal.output import notify
from podrace.client import Client, resolve
from podrace.errors import Cancelled, DeadlineExceeded, FailedPrecondition, NotFound, Unavailable
from podrace.mesh.home import Folders
from podrace.mesh.home_lock import Use
from podrace.mesh.session import open_mesh
from podrace.tournament.v1.tournament_pb2 import Tournament

REMOTE_SECONDS = 5.0
"""Time limit for an orchestrator named with --orchestrator to answer."""
NEEDED_BY_PODS = ("agentpod", "gymnasium", "numpy", "safetensors", "torch")
"""Modules without which no pod starts."""
QUERY_ATTEMPTS = 3
"""Attempts of a query on a home, because another command may stop its mesh meanwhile."""


def run(command: Callable[[Interrupts], Awaitable[int]]) -> int:
    """Runs a command in a new event loop and returns its exit code."""

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
    """Runs a command that needs no pods, and returns its exit code.

    The query is repeated if the mesh stops meanwhile, because another command may have run that mesh.
    """
    return run_asking_query(settings, lambda client, _: query(client))


def run_asking_query(settings: Settings, query: Callable[[Client, Interrupts], Awaitable[int]]) -> int:
    """Runs a query that prompts the user, as `run_query` does; its prompts are in `raised` blocks of the interrupts."""

    async def command(interrupts: Interrupts) -> int:
        attempts = 1 if settings.orchestrator else QUERY_ATTEMPTS
        while True:
            attempts -= 1
            try:
                async with open_client(settings, Use.QUERY, interrupts) as client:
                    return await query(client, interrupts)
            except (Unavailable, DeadlineExceeded, Cancelled):
                if not attempts:
                    raise

    return run(command)


@contextlib.asynccontextmanager
async def open_client(
    settings: Settings, use: Use, interrupts: Interrupts, *, notify: Callable[[str], None] = notify
) -> AsyncIterator[Client]:
    """Connects to the named orchestrator, to the running mesh of the home, or to a mesh started for the block.

    Raises:
        PodraceError: The mesh cannot be reached, joined or started.
    """
    if settings.orchestrator:
        await check_address(settings.orchestrator)
        async with Client(settings.orchestrator) as client:
            yield client
        return
    mesh = open_mesh(
        settings.home, use, store=settings.store, debug=settings.debug, notify=notify, hurried=interrupts.ordered
    )
    async with mesh as address, Client(address) as client:
        yield client


def require_training(settings: Settings) -> None:
    """Checks that pods can start where the embedded mesh runs. A mesh that the options name starts its own.

    Raises:
        FailedPrecondition: A package that every pod needs is not installed.
    """
    missing = [name for name in NEEDED_BY_PODS if importlib.util.find_spec(name) is None]
    if missing and not settings.orchestrator:
        raise FailedPrecondition(
            f"no agent can be trained here, because {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not"
            " installed: pip install 'podrace[agentpod]', or train in another mesh with --orchestrator ADDRESS"
        )


def has_tournaments(settings: Settings) -> bool:
    """Returns whether there may be tournaments, without starting a mesh."""
    return bool(settings.orchestrator) or Folders.of(settings.home).orchestrator_database.exists()


def require_tournaments(settings: Settings) -> None:
    """Checks that the home may have tournaments, without starting a mesh.

    Raises:
        NotFound: The home has no tournaments.
    """
    if not has_tournaments(settings):
        raise NotFound(
            f"{settings.home}: there are no tournaments; start one with `podrace train SPEC`, or name another home "
            "with --home"
        )


def check_remote(settings: Settings) -> None:
    """Checks that the orchestrator answers, if the options name one.

    Raises:
        Unavailable: The orchestrator does not answer.
    """
    if settings.orchestrator:
        asyncio.run(check_address(settings.orchestrator))


async def check_address(orchestrator: str) -> None:
    """Checks that the orchestrator at an address that the user named answers.

    Raises:
        Unavailable: It does not answer.
    """
    try:
        await rpc.wait_until_serving(orchestrator, deadline_seconds=REMOTE_SECONDS)
    except Unavailable as error:
        raise Unavailable(f"--orchestrator {orchestrator}: {error.message}; check the address") from None


def results_folder(settings: Settings, tournament: Tournament) -> Path:
    """Returns the folder with the results of a tournament, whether it exists or not."""
    return Folders.of(settings.home).tournament(tournament.tournament_id)


async def find_tournament(client: Client, text: str, settings: Settings) -> Tournament:
    """Returns the tournament that the user named.

    Raises:
        NotFound: No tournament matches.
        InvalidArgument: Several tournaments match.
    """
    tournaments = {tournament.tournament_id: tournament for tournament in await client.list_tournaments()}
    return tournaments[resolve.resolve_tournament(text, list(tournaments), where=settings.where)]
