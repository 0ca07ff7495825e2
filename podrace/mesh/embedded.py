"""Runs the embedded mesh: an orchestrator and a leaderboard as local processes, for the duration of one command.

The command holds the lock of the home (`podrace.mesh.home_lock`) and the lifeline of the mesh. When the command exits
or is killed, the kernel releases both. Every process of the mesh then publishes its results and exits.
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
"""Time limit for the processes of a mesh whose command was killed to publish and exit."""
NOTICE_SECONDS = 1.0
"""After this time the user is notified that the command waits for the previous mesh."""
GRACE_SECONDS = 40.0
"""Time limit for a service to stop; the orchestrator waits for its pods."""
PODS_GRACE_SECONDS = 20.0
"""Time limit for pods that still run after the services have stopped."""


def service_commands(
    folders: Folders, *, store: str, mesh_id: str, start_pods: bool, debug: bool
) -> list[ServiceCommand]:
    """Returns the commands that start the leaderboard and the orchestrator, in this order.

    Args:
        folders: Folders of the home.
        store: URI of the checkpoint store.
        mesh_id: Identifies one run of the mesh. A service that is restarted within that run gets the same id, from
            which the orchestrator knows whether a tournament that was running is still wanted.
        start_pods: Whether the orchestrator may start pods.
        debug: Whether the services log at level debug.
    """
    shared = {
        "telemetry.log_level": "debug" if debug else "info",
        "lifeline": folders.lifeline,
        "store": store,
        # The mesh belongs to one user, who can start any program without it.
        "allow.everything": "true",
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
    notify: Callable[[str], None],
    hurried: Callable[[], bool] = lambda: False,
) -> AsyncIterator[None]:
    """Runs a mesh for the duration of the block. The caller holds the lock of the home.

    Args:
        folders: Folders of the home, which must exist.
        commands: The services in the order in which they start. They stop in reverse order.
        notify: Receives lines for the user.
        hurried: Called at the end of the block; returns whether to kill the services instead of waiting for them.

    Raises:
        PodraceError: A service did not start, or crashed and did not restart; the block is then cancelled.
    """
    # Checked first: what lies in the runtime folder of another user is neither called nor killed.
    folders.make_runtime()
    await _wait_for_previous(folders, notify)
    services = [ServiceProcess(command, notify=notify) for command in commands]
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
            # The lifeline is released, so the remaining processes of the mesh publish and exit on their own.
            if not hurried():
                await _wait_until_empty(folders, PODS_GRACE_SECONDS)
        finally:
            orphan_pods.remove(folders.pods)
            shutil.rmtree(folders.runtime, ignore_errors=True)


async def _wait_for_previous(folders: Folders, notify: Callable[[str], None]) -> None:
    """Waits for the processes of a mesh whose command was killed: they still publish and use the databases."""
    if await _wait_until_empty(folders, NOTICE_SECONDS):
        return
    notify(f"the previous mesh on {folders.home} is stopping; waiting for it")
    if not await _wait_until_empty(folders, PREVIOUS_MESH_SECONDS):
        raise FailedPrecondition(
            f"processes of the previous mesh on {folders.home} are still running (waited {PREVIOUS_MESH_SECONDS:g} s);"
            f" see {folders.logs}, or use another --home"
        )


async def _wait_until_empty(folders: Folders, deadline_seconds: float) -> bool:
    """Waits until no process of the mesh runs; returns False if some still run at the deadline."""
    sockets = folders.orchestrator_socket, folders.leaderboard_socket, folders.forkserver_socket
    give_up = time.monotonic() + deadline_seconds
    while any(listens(socket) for socket in sockets) or orphan_pods.living_roles(folders.pods):
        if time.monotonic() > give_up:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


@contextlib.asynccontextmanager
async def _watched(services: Sequence[ServiceProcess]) -> AsyncIterator[None]:
    """Restarts crashed services during the block; cancels the block and raises the error if a service stays down."""
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
    """Stops the services in reverse order; kills those that have not stopped when the user is in a hurry."""
    try:
        for service in reversed(services):
            if not hurried():
                await service.stop(grace_seconds=GRACE_SECONDS)
    finally:
        for service in services:
            service.kill()
