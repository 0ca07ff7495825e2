"""Implements `podrace logs`: the log of a pod or a service of an embedded mesh."""

import time
from collections.abc import Callable
from pathlib import Path

import click

from podrace.cli.pods.log_files import find_log
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import show, show_json
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound
from podrace.mesh.home import Folders
from podrace.processes.log_reading import GrowingLines, last_lines, seek_last_lines

POLL_SECONDS = 0.25
DEFAULT_LINES = 50


@click.command()
@click.argument("pod")
@click.option("--follow", "-f", is_flag=True, help="Show new lines as they are written, until Ctrl-C.")
@click.option(
    "--lines", default=DEFAULT_LINES, show_default=True, type=click.IntRange(min=0), help="Show this many last lines."
)
@mesh_options
def logs(settings: Settings, pod: str, follow: bool, lines: int) -> int:
    """Show the log of a pod, or of a service.

    POD is the id of a pod, a prefix of one, or `orchestrator`, `leaderboard` or `forkserver`. All roles of a pod
    write to the same log. The logs of a standing mesh are where its containers run: `docker logs` or `kubectl logs`.
    """
    if settings.orchestrator:
        raise FailedPrecondition(
            f"--orchestrator {settings.orchestrator}: logs reads the files of an embedded mesh; use `docker logs` or"
            " `kubectl logs` where that mesh runs"
        )
    if follow and settings.as_json:
        raise InvalidArgument("--follow --json: one JSON value cannot follow a log; leave one of them out")
    path = find_log(Folders.of(settings.home).logs, pod)
    try:
        if settings.as_json:
            show_json({"log": path.stem, "file": str(path), "lines": last_lines(path, lines)})
        elif follow:
            _follow(path, lines)
        else:
            for line in last_lines(path, lines):
                show(line)
    except FileNotFoundError:
        raise NotFound(f"{path}: was deleted meanwhile") from None
    return 0


def _follow(path: Path, lines: int, wait: Callable[[float], None] = time.sleep) -> None:
    with path.open("rb") as file:
        seek_last_lines(file, lines)
        reader = GrowingLines(file, path)
        while True:
            for line in reader.read():
                show(line)
            wait(POLL_SECONDS)
