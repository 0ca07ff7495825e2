"""Implements `podrace dashboard`: serves a web page that shows tournaments and controls them."""

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path

import click

from podrace.cli import session
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import notify, show, show_json
from podrace.dashboard.settings import DEFAULT_LISTEN, DashboardSettings
from podrace.errors import InvalidArgument, Unimplemented
from podrace.mesh.home import Folders
from podrace.mesh.home_lock import Use
from podrace.mesh.service_process import listens
from podrace.mesh.session import open_mesh
from podrace.tasks import cancel_all, finish_unless_stopped

ABSENT_POLLS = 5
"""Polls without a mesh after which the dashboard joins or starts another one."""
POLL_SECONDS = 1.0
HELP = """Serve a web page that shows tournaments live and controls them.

Open the printed URL in a browser; it contains the token. Without --orchestrator the dashboard joins the mesh that
runs on the home, or runs one itself, with pods, until Ctrl-C. It acts with the rights of this command. With --sign-in
each user signs in with a token of the mesh instead, and has the rights of that token.

\b
podrace dashboard                                                   the home of this folder
podrace dashboard --orchestrator mesh.example.org:50051             a running mesh
podrace dashboard --orchestrator mesh.example.org:50051 --sign-in   for multiple users
"""
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(help=HELP)
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, metavar="HOST:PORT", help="Port 0: any free one.")
@click.option("--sign-in", is_flag=True, help="Each user signs in with a token of the mesh; needs --orchestrator.")
@click.option("--token-file", type=_FILE, help="File with the token.  [default: dashboard-token next to the token]")
@click.option("--hide-token", is_flag=True, help="Print the URL without the token, for logs that others read.")
@click.option("--tls-certificate", type=_FILE, help="Certificate of the dashboard, PEM.")
@click.option("--tls-key", type=_FILE, help="Private key of the certificate, PEM.")
@click.option("--name", "names", multiple=True, metavar="HOST", help="Further host name of the dashboard; repeatable.")
@click.option("--insecure", is_flag=True, help="Listen without TLS where other machines reach it.")
@mesh_options
def dashboard(
    settings: Settings,
    listen: str,
    sign_in: bool,
    token_file: Path | None,
    hide_token: bool,
    tls_certificate: Path | None,
    tls_key: Path | None,
    names: tuple[str, ...],
    insecure: bool,
) -> int:
    """Serves the dashboard until Ctrl-C."""
    _require_library()
    logs = None if settings.orchestrator else Folders.of(settings.home).logs
    chosen = DashboardSettings(listen, token_file, tls_certificate, tls_key, names, insecure, sign_in, logs)
    chosen.check()
    if sign_in and not settings.orchestrator:
        raise InvalidArgument("--sign-in: needs --orchestrator; the mesh of a home has one user, who needs no token")

    async def command(interrupts: Interrupts) -> int:
        from podrace.dashboard.gateway import serving

        async with _address(settings, interrupts) as address, serving(chosen, address) as url:
            shown = url.partition("?")[0] if hide_token else url
            if settings.as_json:
                show_json({"url": shown})
            else:
                show(shown)
                notify(f"the dashboard runs until Ctrl-C; {_advice(chosen, hidden=hide_token)}")
            await asyncio.Event().wait()
        return 0

    return session.run(command)


def _advice(chosen: DashboardSettings, *, hidden: bool) -> str:
    if chosen.sign_in:
        return "each user signs in with a token of the mesh; `podrace token NAME` makes one"
    if hidden:
        return f"open the URL with ?token= and the token of {chosen.token_path} at its end"
    return "do not give the URL to others, it contains the token"


def _require_library() -> None:
    if importlib.util.find_spec("aiohttp") is None:
        raise Unimplemented("the dashboard needs aiohttp; install podrace[dashboard]")


@contextlib.asynccontextmanager
async def _address(settings: Settings, interrupts: Interrupts) -> AsyncIterator[str]:
    """Yields the address of the mesh. Its home has a mesh during the block, also when the joined one stops."""
    if settings.orchestrator:
        yield settings.orchestrator
        return
    folders = Folders.of(settings.home)
    ready = asyncio.Event()
    keeping = asyncio.create_task(_keep_mesh(settings, interrupts, folders, ready))
    try:
        await finish_unless_stopped(asyncio.create_task(ready.wait()), keeping)
        if keeping.done():
            keeping.result()
        yield f"unix:{folders.orchestrator_socket}"
    finally:
        await cancel_all(keeping)


async def _keep_mesh(settings: Settings, interrupts: Interrupts, folders: Folders, ready: asyncio.Event) -> None:
    """Joins the mesh of the home or runs one, again and again when the joined one has stopped."""
    while True:
        mesh = open_mesh(
            settings.home,
            Use.DASHBOARD,
            store=settings.store,
            debug=settings.debug,
            notify=notify,
            hurried=interrupts.ordered,
        )
        async with mesh:
            ready.set()
            absent = 0
            while absent < ABSENT_POLLS:
                await asyncio.sleep(POLL_SECONDS)
                absent = 0 if await asyncio.to_thread(listens, folders.orchestrator_socket) else absent + 1
