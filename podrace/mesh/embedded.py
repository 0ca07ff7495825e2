"""The embedded mesh: an orchestrator and a leaderboard as processes of this machine, kept running for one command.

That command holds the lock of the home (podrace.mesh.home_lock) and the lifeline of the mesh. When it dies, however
it dies,
the kernel gives up both, and every process of the mesh publishes what it has and ends.
"""

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from podrace.errors import FailedPrecondition
from podrace.mesh import orphan_pods
from podrace.mesh.home import Folders
from podrace.mesh.service_process import POLL_SECONDS, ServiceCommand, ServiceProcess, listens
from podrace.processes import lifeline

PREVIOUS_MESH_SECONDS = 60.0
"""How long the processes of a mesh whose command was killed may take to publish and end."""
NOTICE_SECONDS = 1.0
"""After this long the user is told what is waited for."""
GRACE_SECONDS = 40.0
"""How long a service may take to end; the orchestrator waits for its pods."""
PODS_GRACE_SECONDS = 20.0
"""How long pods may take that are still there when the services have ended."""


def service_commands(
    folders: Folders, *, store: str, mesh_id: str, start_pods: bool, debug: bool
) -> list[ServiceCommand]:
    """How the two services of a mesh are started, in order.

    Args:
        folders: Those of the home.
        store: URI of the checkpoint store.
        mesh_id: The same for every start of a service within one life of the mesh, and for no other: by it the
            orchestrator knows whether a tournament that was running is still wanted.
        start_pods: Whether the orchestrator may start pods.
        debug: Whether the services log everything.
    """
    shared = {
        "telemetry.log_level": "debug" if debug else "info",
        "lifeline": folders.lifeline,
        "store": store,
    }
    leaderboard = {
        "server.listen": f"unix:{folders.leaderboard_socket}",
        "database": folders.leaderboard_database,
        "runtime_folder": folders.runtime,
    }
    orchestrator = {
        "server.listen": f"unix:{folders.orchestrator_socket}",
        "database": folders.orchestrator_database,
        "leaderboard": f"unix:{folders.leaderboard_socket}",
        "mesh_id": mesh_id,
        "runtime_folder": folders.runtime,
        "log_folder": folders.logs,
        "start_pods": str(start_pods).lower(),
    }
    return [
        _command("leaderboard", shared | leaderboard, folders),
        _command("orchestrator", shared | orchestrator, folders),
    ]


def _command(name: str, keys: Mapping[str, object], folders: Folders) -> ServiceCommand:
    overrides = [argument for key, value in keys.items() for argument in ("--set", f"{key}={value}")]
    return ServiceCommand(
        name=name,
        arguments=(sys.executable, "-m", name, *overrides),
        socket=folders.runtime / f"{name}.sock",
        log=folders.logs / f"{name}.log",
    )


@contextlib.asynccontextmanager
async def running(
    folders: Folders,
    commands: Sequence[ServiceCommand],
    *,
    tell: Callable[[str], None],
    hurried: Callable[[], bool] = lambda: False,
) -> AsyncIterator[None]:
    """Runs a mesh for the length of the block. The caller holds the lock of the home.

    Args:
        folders: Those of the home, which exists.
        commands: The services in the order in which they start; they stop in the opposite one.
        tell: Takes lines for a person.
        hurried: Asked when the block ends: whether to kill instead of waiting.

    Raises:
        PodraceError: A service did not start, or died and did not start again; the block is cancelled then.
    """
    await _wait_for_previous(folders, tell)
    folders.make_runtime()
    services = [ServiceProcess(command, tell=tell) for command in commands]
    try:
        with lifeline.hold(folders.lifeline):
            try:
                for service in services:
                    await service.start()
                async with _watched(services):
                    yield
            finally:
                await _stop(services, hurried)
    finally:
        try:
            # The lifeline is gone: what is left of the mesh publishes and ends by itself.
            if not hurried():
                await _wait_until_empty(folders, PODS_GRACE_SECONDS)
        finally:
            orphan_pods.remove(folders.pods)
            shutil.rmtree(folders.runtime, ignore_errors=True)


async def _wait_for_previous(folders: Folders, tell: Callable[[str], None]) -> None:
    """Lets the processes of a mesh end whose command was killed: they still publish, and hold the databases."""
    if await _wait_until_empty(folders, NOTICE_SECONDS):
        return
    tell(f"the previous mesh on {folders.home} is ending; waiting for it")
    if not await _wait_until_empty(folders, PREVIOUS_MESH_SECONDS):
        raise FailedPrecondition(
            f"processes of the previous mesh on {folders.home} still run (waited {PREVIOUS_MESH_SECONDS:g} s); see"
            f" {folders.logs}, or use another --home"
        )


async def _wait_until_empty(folders: Folders, deadline_seconds: float) -> bool:
    """Waits until no process of the mesh is left; returns whether that came true within the deadline."""
    sockets = folders.orchestrator_socket, folders.leaderboard_socket, folders.nursery_socket
    give_up = time.monotonic() + deadline_seconds
    while any(listens(socket) for socket in sockets) or orphan_pods.living_roles(folders.pods):
        if time.monotonic() > give_up:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


@contextlib.asynccontextmanager
async def _watched(services: Sequence[ServiceProcess]) -> AsyncIterator[None]:
    """Keeps the services running during the block; cancels it and raises the error when one does not come up again."""
    block = asyncio.current_task()
    assert block is not None
    failures: list[BaseException] = []

    def on_done(watching: asyncio.Task[None]) -> None:
        failure = None if watching.cancelled() else watching.exception()
        if failure:
            failures.append(failure)
            block.cancel()

    tasks = [asyncio.create_task(service.watch()) for service in services]
    for task in tasks:
        task.add_done_callback(on_done)
    try:
        yield
    except asyncio.CancelledError:
        if not failures:
            raise
        block.uncancel()
        raise failures[0] from None
    finally:
        for task in tasks:
            task.cancel()


async def _stop(services: Sequence[ServiceProcess], hurried: Callable[[], bool]) -> None:
    """Stops the services, the last one started first; kills them when there is no time, or no more time."""
    try:
        for service in reversed(services):
            if not hurried():
                await service.stop(grace_seconds=GRACE_SECONDS)
    finally:
        for service in services:
            service.kill()
