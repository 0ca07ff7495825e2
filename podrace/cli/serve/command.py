"""Implements `podrace serve`: starts a policy server for a tournament, a candidate or an exported folder."""

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from podrace.cli import session
from podrace.cli.continuous.champion_files import CHAMPION
from podrace.cli.continuous.journal import FOLDER as CONTINUOUS
from podrace.cli.continuous.journal import NAME as CONTINUOUS_NAME
from podrace.cli.continuous.journal import read_journal
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import EPISODE_RANGE, Settings, mesh_options
from podrace.cli.terminal.output import show, show_json
from podrace.client.named_checkpoints import find_checkpoints, names_tournament
from podrace.errors import InvalidArgument, NotFound, Unimplemented
from podrace.mesh.home import Folders
from podrace.mesh.home_lock import Use
from podrace.processes import lifeline
from podrace.tasks import first_finished

PACKAGES = ("aiohttp", "numpy", "onnxruntime")
"""What the server needs besides podrace."""
STOP_SECONDS = 15.0
"""Time that the server has to answer accepted requests when it stops."""


@click.command()
@click.argument("subject", metavar="TOURNAMENT|CANDIDATE|TRAINING|FOLDER")
@click.option("--listen", default="127.0.0.1:8001", show_default=True, metavar="ADDRESS", help="Address for gRPC.")
@click.option("--rest", default="127.0.0.1:8000", show_default=True, metavar="ADDRESS", help="Address for HTTP.")
@click.option(
    "--metrics",
    default="127.0.0.1:8002",
    show_default=True,
    metavar="ADDRESS",
    help="Address of the Prometheus metrics.",
)
@click.option(
    "--gate-episodes",
    default=0,
    type=click.IntRange(0, EPISODE_RANGE.max),
    metavar="N",
    help="Let pods evaluate a new champion and the one that serves on N fresh episodes, and refuse a worse one.",
)
@click.option("--agent", default="", metavar="NAME", help="Agent to serve, if agents have separate parameters.")
@click.option("--anonymous", is_flag=True, help="Accept callers without credentials, as viewers.")
@click.option("--insecure", is_flag=True, help="Allow an address that other machines reach without TLS.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Other keys of the server, as in its configuration."
)
@mesh_options
def serve(
    settings: Settings,
    subject: str,
    listen: str,
    rest: str,
    metrics: str,
    gate_episodes: int,
    agent: str,
    anonymous: bool,
    insecure: bool,
    overrides: Sequence[str],
) -> int:
    """Serve a champion, a candidate or an exported policy.

    Clients use PolicyService or the Open Inference Protocol, like the clients of Triton and KServe. With TOURNAMENT, a
    better champion replaces the current one, and no request fails. CANDIDATE is served until the command ends. TRAINING
    is the name of a continuous training: its champion is served, and replaced when a challenger passes the comparison.
    FOLDER is a folder that `podrace export` wrote. Runs until Ctrl-C. TOURNAMENT and CANDIDATE are those of
    `podrace evaluate`.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise Unimplemented(f"serving needs {', '.join(missing)}: pip install 'podrace[serve]'")
    keys: dict[str, Any] = {"server.listen": listen, "rest_listen": rest, "telemetry.metrics_listen": metrics}
    keys |= {"gate.episodes": gate_episodes} if gate_episodes else {}
    keys |= {"agent": json.dumps(agent)} if agent else {}
    keys |= {"anonymous": "true"} if anonymous else {}
    keys |= {"telemetry.log_level": "debug"} if settings.debug else {}
    given = [*overrides, *(["server.insecure=true"] if insecure else [])]

    async def command(interrupts: Interrupts) -> int:
        async with contextlib.AsyncExitStack() as stack:
            found = await _source_keys(settings, subject, interrupts, stack)
            arguments = [f"{key}={value}" for key, value in (keys | found).items()]
            return await _run(settings, [*arguments, *given], interrupts, stack)

    return session.run(command)


async def _source_keys(
    settings: Settings, subject: str, interrupts: Interrupts, stack: contextlib.AsyncExitStack
) -> dict[str, str]:
    """Returns the keys of the server that name what it serves. The mesh stays open as long as the stack."""
    if subject and Path(subject).exists():
        return {"folder": json.dumps(str(Path(subject).absolute()))}
    training = Folders.of(settings.home).home / CONTINUOUS / subject
    if CONTINUOUS_NAME.fullmatch(subject) and read_journal(training):
        # Its champion is replaced by the next one that passes the comparison; there may be none yet.
        return {"folder": json.dumps(str((training / CHAMPION).absolute())), "folder_awaited": "true"}
    if not session.has_tournaments(settings):
        raise NotFound(f"{subject}: there is no such file, and {settings.where} has no tournaments")
    client = await stack.enter_async_context(session.open_client(settings, Use.QUERY, interrupts))
    tournament, checkpoints = await find_checkpoints(client, subject, where=settings.where)
    found = {"orchestrator": client.address, "tournament": tournament.tournament_id}
    if names_tournament(subject, tournament):
        return found
    if len(checkpoints) > 1:
        raise InvalidArgument(f"{subject}: an ensemble cannot be pinned; export it, and serve the folder")
    return found | {"version": checkpoints[0].manifest_digest}


async def _run(settings: Settings, keys: Sequence[str], interrupts: Interrupts, mesh: contextlib.AsyncExitStack) -> int:
    """Runs the server until it exits or the user stops it, and returns its exit code."""
    async with _started(keys) as process:
        with interrupts.polite() as stop:
            await first_finished(_report(settings, process, mesh), process.wait(), stop.wait())
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
        return 0 if stop.is_set() else process.returncode or 0


@contextlib.asynccontextmanager
async def _started(keys: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Starts the server, which does not outlive this process."""
    with tempfile.TemporaryDirectory(prefix="podrace-serve-") as folder:
        holder = Path(folder, "lifeline")
        with lifeline.hold(holder):
            overrides = [argument for key in [*keys, f"lifeline={holder}"] for argument in ("--set", key)]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "podrace.serving", *overrides),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                yield process
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


async def _report(settings: Settings, process: asyncio.subprocess.Process, mesh: contextlib.AsyncExitStack) -> None:
    """Shows where the server listens, and leaves the mesh, so that this command does not lock an embedded one.

    The server continues with the policy that it has loaded, and follows the tournament again whenever a command runs
    its mesh.
    """
    assert process.stdout
    line = await process.stdout.readline()
    if line:
        facts = json.loads(line)
        if settings.as_json:
            show_json(facts)
        else:
            serves = f"version {facts['version'][:12]}" if facts["version"] else "no version yet"
            show(f"serves {facts['source']}: {serves}")
            show(f"gRPC {facts['grpc']}, HTTP {facts['rest'] or 'none'}, metrics {facts['metrics']}")
        await mesh.aclose()
    await asyncio.Event().wait()
