"""`podrace continuous`: a dataset is watched; each new version is trained on, and the champion replaced if beaten."""

import functools
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from google.protobuf.timestamp_pb2 import Timestamp

from podrace.cli import EXIT_INTERRUPTED, session
from podrace.cli.continuous import process, state, tables
from podrace.cli.continuous.dataset import ENDPOINTS, INCOMING, S3, LocalSource, Source, discard, open_source
from podrace.cli.continuous.run import Keeper, Plan
from podrace.cli.continuous.spec import check_reference
from podrace.cli.continuous.state import Diary, Memory
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import show, show_json, tell
from podrace.cli.views.plain_lines import PlainLines
from podrace.config import unknown
from podrace.errors import InvalidArgument, NotFound, PodraceError
from podrace.mesh.home import Folders
from podrace.specification.files import load
from podrace.specification.messages import parse_duration

SHORTEST_POLL_SECONDS = 0.1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
"""Leaves room for what follows it in the names of tournaments."""


HELP = """Train on every new version of a dataset; the champion is replaced only by one that is better on it.

\b
podrace continuous start stocks.toml --watch prices.npz    environment.options.path = "prices.npz"
podrace continuous status
podrace continuous stop

Each command takes --json.
"""


@click.group(help=HELP)
def continuous() -> None:
    """The commands `podrace continuous ...`."""


@continuous.command(short_help="Train on each new version of a dataset, in the background.")
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--watch", "reference", required=True, metavar="REF", help="File, folder, or s3://BUCKET/KEY-OR-PREFIX.")
@click.option("--name", default="", help="Of this training.  [default: the specification's]")
@click.option("--set", "overrides", multiple=True, metavar="A.B=C", help="Override a key of SPEC; repeatable.")
@click.option("--poll", default="30s", show_default=True, metavar="DURATION", help="Time between two looks.")
@click.option("--foreground", is_flag=True, help="Stay in the terminal; Ctrl-C stops.")
@mesh_options
def start(
    settings: Settings,
    spec: Path,
    reference: str,
    name: str,
    overrides: Sequence[str],
    poll: str,
    foreground: bool,
) -> int:
    """Watch a dataset and train on each new version of it, in the background.

    The options of SPEC name REF, or files below it, and in each tournament stand for a copy of one version that
    nobody changes. The first version's tournament is an ordinary one; each later one starts from the champion. At its
    end champion and challenger are evaluated on the new validation slice, on the same fresh seeds: the challenger
    replaces the champion if it is ahead by more than the standard error of the difference. A version that arrives
    meanwhile waits for the tournament's objective; of several that wait the newest is taken. A folder may hold
    options.toml, laid over environment.options, to say where the splits of that version lie.

    With --orchestrator, its pods must see the home under the same path: the copies lie there.
    """
    plan = _plan(settings, spec, reference, name, overrides, poll)
    name = name or plan.spec.name
    session.check_remote(settings)
    Folders.of(settings.home).make_home()
    plan.versions.mkdir(parents=True, exist_ok=True)
    process.check_free(plan.folder, name)
    if foreground:
        return session.run(functools.partial(_keep, settings, plan, name, str(spec)))
    _check_diary(plan, name)
    arguments = _arguments(settings, spec, plan, name, overrides, poll)
    detached = process.detach(arguments, plan.folder, name)
    log = plan.folder / process.LOG
    if settings.as_json:
        show_json({"name": name, "pid": detached.pid, "folder": str(plan.folder), "log": str(log)})
    else:
        show(f"continuous {name} watches {plan.reference} (pid {detached.pid}); its log is {log}")
    return 0


def _plan(settings: Settings, spec: Path, reference: str, name: str, overrides: Sequence[str], poll: str) -> Plan:
    """What is asked for, checked as far as it can be here.

    Raises:
        InvalidArgument: The specification, a name or a duration is wrong.
        NotFound: There is no such data.
        PodraceError: The data cannot be looked at.
    """
    specification = load(spec, overrides)
    name = name or specification.name
    if not NAME.fullmatch(name):
        raise InvalidArgument(f"--name {name}: expected up to 40 letters, digits, '-' and '_'")
    seconds = parse_duration(poll)
    if seconds is None:
        # A number alone is one of seconds.
        seconds = float(poll) if poll.replace(".", "", 1).isdigit() else None
    if seconds is None or seconds < SHORTEST_POLL_SECONDS:
        raise InvalidArgument(f"--poll {poll}: expected a duration of at least {SHORTEST_POLL_SECONDS:g}s, such as 30s")
    source = open_source(reference, os.environ, patient=False)
    check_reference(specification, reference, source=str(spec))
    _check_data(source, reference)
    folder = Folders.of(settings.home).home / state.FOLDER / name
    return Plan(specification, reference, seconds, folder)


def _check_data(source: Source, reference: str) -> None:
    """Refuses data that is not there, or cannot be looked at; raises as _plan."""
    if isinstance(source, LocalSource):
        if not source.path.exists():
            raise NotFound(f"--watch {reference}: there is no such file or folder")
        return
    try:
        seen = source.look()
    except PodraceError as error:
        raise type(error)(f"--watch {reference}{_server(reference)}: {error.message}") from None
    if not seen:
        raise NotFound(f"--watch {reference}: there is no such object, and none below it")


def _server(reference: str) -> str:
    """Who says where `s3://` is; of other references nothing."""
    if not reference.startswith(S3):
        return ""
    variable = next((name for name in ENDPOINTS if os.environ.get(name)), "")
    return f" (on the server of {variable})" if variable else f" ({ENDPOINTS[-1]} is not set)"


def _check_diary(plan: Plan, name: str) -> None:
    """Refuses here what would be refused in the background."""
    Diary.open(plan.folder, name=name, reference=_absolute(plan.reference))


def _absolute(reference: str) -> str:
    return reference if "://" in reference else str(Path(reference).expanduser().absolute())


def _arguments(settings: Settings, spec: Path, plan: Plan, name: str, overrides: Sequence[str], poll: str) -> list[str]:
    """The command line of the process in the background, which has the same working directory and environment."""
    options = {
        "--watch": [plan.reference],
        "--name": [name],
        "--set": overrides,
        "--poll": [poll],
        "--home": [str(settings.home)],
        "--orchestrator": [settings.orchestrator] if settings.orchestrator else [],
        "--store": [settings.store] if settings.store else [],
    }
    given = [text for option, values in options.items() for value in values for text in (option, value)]
    debug = ["--debug"] if settings.debug else []
    return [sys.executable, "-m", "podrace.cli", "continuous", "start", str(spec), *given, *debug, "--foreground"]


async def _keep(settings: Settings, plan: Plan, name: str, spec: str, interrupts: Interrupts) -> int:
    """Trains until it is interrupted."""
    terminal = sys.stderr.isatty()
    say = tell if terminal else tables.timed(tell)
    with interrupts.polite() as stop, process.hold(plan.folder, name) as lock:
        diary = Diary.open(plan.folder, name=name, reference=_absolute(plan.reference))
        diary.change(spec=str(Path(spec).absolute()), trouble="")
        discard(plan.versions / INCOMING)
        source = open_source(plan.reference, os.environ)
        draw = PlainLines(say).draw if terminal else _silent
        keeper = Keeper(settings, plan, source, diary, interrupts, stop, tell=say, draw=draw)
        say(f"watching {plan.reference}")
        lock.ready()
        await keeper.run()
        say("stopped; the same command goes on")
    return EXIT_INTERRUPTED


def _silent(_: object) -> None:
    """Draws nothing."""


@continuous.command()
@click.argument("name", required=False, default="")
@mesh_options
def status(settings: Settings, name: str) -> int:
    """Show who is champion and what came of each version.

    Without NAME, everything that is or was trained continuously in the home. It only reads files: no mesh is started.
    """
    found = [_find(settings, one) for one in ([name] if name else _names(settings))]
    if settings.as_json:
        values = [_values(memory, folder) for memory, folder in found]
        show_json(values[0] if name else values)
        return 0
    if not found:
        show(
            f"{settings.home}: nothing is trained continuously; begin with `podrace continuous start SPEC --watch REF`"
        )
    for memory, folder in found:
        show(tables.overview(memory, process.running(folder)))
    return 0


@continuous.command()
@click.argument("name", required=False, default="")
@click.option(
    "--deadline",
    "deadline_seconds",
    default=90.0,
    show_default=True,
    type=click.FloatRange(min=0.0),
    metavar="SECONDS",
    help="After this long it no longer waits for its pods.",
)
@mesh_options
def stop(settings: Settings, name: str, deadline_seconds: float) -> int:
    """End the watching; everything is kept.

    A tournament that runs is stopped, and the next start goes on with it. NAME may be left out where only one runs.
    """
    memory, folder = _find(settings, name or _only_running(settings))
    running = process.running(folder)
    how = process.stop(running, deadline_seconds=deadline_seconds) if running else ""
    memory = state.read(folder) or memory
    if settings.as_json:
        show_json(_values(memory, folder))
    else:
        ended = f"is stopped{f'; {how}' if how else ''}" if running else "is not running"
        show(f"continuous {memory.name} {ended}")
    return 0


def _names(settings: Settings) -> list[str]:
    return state.names(Folders.of(settings.home).home)


def _folder(settings: Settings, name: str) -> Path:
    return Folders.of(settings.home).home / state.FOLDER / name


def _find(settings: Settings, name: str) -> tuple[Memory, Path]:
    """What is remembered of a name; raises NotFound."""
    memory = state.read(_folder(settings, name)) if NAME.fullmatch(name) else None
    if memory is None:
        raise NotFound(unknown(str(settings.home), "continuous training", name, _names(settings)))
    return memory, _folder(settings, name)


def _only_running(settings: Settings) -> str:
    """The name of the only one that runs, or that there is.

    Raises:
        NotFound: There is none.
        InvalidArgument: There are several.
    """
    names = _names(settings)
    live = [name for name in names if process.running(_folder(settings, name))] or names
    if not live:
        raise NotFound(f"{settings.home}: nothing is trained continuously")
    if len(live) > 1:
        raise InvalidArgument(f"{settings.home}: there are {', '.join(live)}: name one")
    return live[0]


def _values(memory: Memory, folder: Path) -> dict[str, Any]:
    """What `--json` prints."""
    running = process.running(folder)
    values: dict[str, Any] = _with_readable_times(asdict(memory))
    del values["format"]
    return {"state": tables.state(memory, running), "pid": running.pid if running else None} | values


def _with_readable_times(value: Any) -> Any:
    """The same with each moment as the other commands tell it: 2026-11-21T11:04:09.5Z instead of seconds."""
    if isinstance(value, list | tuple):
        return [_with_readable_times(one) for one in value]
    if not isinstance(value, dict):
        return value
    told = {key: _with_readable_times(one) for key, one in value.items()}
    return told | {key: _moment(one) for key, one in value.items() if key.endswith("_time")}


def _moment(seconds: float) -> str:
    stamp = Timestamp()
    stamp.FromMilliseconds(round(seconds * 1000))
    return stamp.ToJsonString()
