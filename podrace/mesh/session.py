"""Opens the embedded mesh of a home: joins the running mesh, or starts one for the duration of a block.

    async with open_mesh(Path("podrace-home")) as address, Client(address) as client:
        await client.create_tournament(specification)

The yielded address is that of the orchestrator.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from podrace.mesh import embedded
from podrace.mesh.home import Folders
from podrace.mesh.home_lock import Use, claim
from podrace.mesh.store_choice import choose_store

CLAIM_SECONDS = 30.0
"""Time to wait for the mesh of another process that is starting or stopping."""


def _ignore(line: str) -> None:
    pass


def _never() -> bool:
    return False


@contextlib.asynccontextmanager
async def open_mesh(
    home: Path,
    use: Use = Use.TRAIN,
    *,
    store: str = "",
    debug: bool = False,
    notify: Callable[[str], None] = _ignore,
    hurried: Callable[[], bool] = _never,
) -> AsyncIterator[str]:
    """Joins the mesh that is running on a home, or starts one and stops it at the end of the block.

    Args:
        home: Folder of the mesh; created if it does not exist.
        use: Purpose of the mesh, which decides whether it starts pods and whether a running mesh can be joined.
        store: URI of the checkpoint store of a new home; empty: a folder in the home.
        debug: Whether the services write debug logs.
        notify: Receives lines for the user, for instance that the previous mesh is still stopping.
        hurried: Called at the end of the block; returns whether to kill the services instead of waiting for them.

    Yields:
        The address of the orchestrator.

    Raises:
        PodraceError: There is a mesh that cannot be joined, or the services do not start.
    """
    folders = Folders.of(home)
    folders.make_home()
    async with claim(folders, use, deadline_seconds=CLAIM_SECONDS) as owned, contextlib.AsyncExitStack() as stack:
        if owned:
            start_pods, mesh_id = use is not Use.QUERY, uuid.uuid4().hex[:8]
            chosen = await asyncio.to_thread(choose_store, folders, store, writes=start_pods)
            commands = embedded.service_commands(
                folders, store=chosen, mesh_id=mesh_id, start_pods=start_pods, debug=debug
            )
            await stack.enter_async_context(embedded.running(folders, commands, notify=notify, hurried=hurried))
        yield f"unix:{folders.orchestrator_socket}"
