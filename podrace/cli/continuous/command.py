"""Implements `podrace continuous start`, `status` and `stop`."""

import functools
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from google.protobuf.timestamp_pb2 import Timestamp

from podrace.cli import EXIT_INTERRUPTED, session
from podrace.cli.continuous import process, tables
from podrace.cli.continuous.controller import Controller, TrainingPlan
from podrace.cli.continuous.dataset import INCOMING, discard, open_source
from podrace.cli.continuous.journal import FOLDER, NAME, Journal, JournalState, list_names, read_journal
from podrace.cli.continuous.source import ENDPOINTS, S3, LocalSource, Source
from podrace.cli.continuous.spec import check_reference
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import FiniteRange, Settings, mesh_options
from podrace.cli.terminal.output import notify, show, show_json
from podrace.cli.views.plain_lines import PlainLines
from podrace.config import unknown
from podrace.errors import InvalidArgument, NotFound, PodraceError
from podrace.mesh.home import Folders
from podrace.specification.files import load
from podrace.specification.messages import parse_duration

SHORTEST_POLL_SECONDS = 0.1

HELP = """Train on each new version of a dataset, and keep the best champion.

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
@click.option("--name", default="", help="Name of this training.  [default: the name in SPEC]")
@click.option("--set", "overrides", multiple=True, metavar="A.B=C", help="Override a key of SPEC; repeatable.")
@click.option("--poll", default="30s", show_default=True, metavar="DURATION", help="Time between two polls.")
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

    Options of SPEC that name REF, or files below it, are replaced by the path of a read-only copy of the version. The
    tournament of the first version is an ordinary one; each later tournament starts from the champion. When a
    tournament ends, its best agent (the challenger) and the champion are evaluated on the new validation slice with
    the same fresh seeds. The challenger replaces the champion if it is ahead by more than the standard error of the
    difference. `podrace serve NAME` serves the champion. A version that arrives during a tournament waits until the
    tournament has ended; if several versions wait, only the newest is used. A watched folder may contain options.toml,
    which overrides environment.options, for instance to set the splits of that version.

    With --orchestrator, the pods must see the home under the same path, because the copies are stored there.
    """
    plan = _plan(settings, spec, reference, name, overrides, poll)
    name = name or plan.spec.name
    session.check_remote(settings)
    Folders.of(settings.home).make_home()
    plan.versions.mkdir(parents=True, exist_ok=True)
    process.check_free(plan.folder, name)
    if foreground:
        return session.run(functools.partial(_train, settings, plan, name, str(spec)))
    _check_journal(plan, name)
    arguments = _arguments(settings, spec, plan, name, overrides, poll)
    detached = process.detach(arguments, plan.folder, name)
    log = plan.folder / process.LOG
    if settings.as_json:
        show_json({"name": name, "pid": detached.pid, "folder": str(plan.folder), "log": str(log)})
    else:
        show(f"continuous {name} watches {plan.reference} (pid {detached.pid}); its log is {log}")
    return 0


def _plan(
    settings: Settings, spec: Path, reference: str, name: str, overrides: Sequence[str], poll: str
) -> TrainingPlan:
    """Builds the plan from the arguments of the command and checks it.

    Raises:
        InvalidArgument: The specification, the name or a duration is wrong.
        NotFound: The data does not exist.
        PodraceError: The data cannot be listed.
    """
    specification = load(spec, overrides)
    name = name or specification.name
    if not NAME.fullmatch(name):
        raise InvalidArgument(f"--name {name}: expected up to 40 letters, digits, '-' and '_'")
    seconds = parse_duration(poll)
    if seconds is None:
        # A number without a unit is in seconds.
        seconds = float(poll) if poll.replace(".", "", 1).isdigit() else None
    if seconds is None or seconds < SHORTEST_POLL_SECONDS:
        raise InvalidArgument(f"--poll {poll}: expected a duration of at least {SHORTEST_POLL_SECONDS:g}s, such as 30s")
    source = open_source(reference, os.environ, retry=False)
    check_reference(specification, reference, source=str(spec))
    _check_data(source, reference)
    folder = Folders.of(settings.home).home / FOLDER / name
    return TrainingPlan(specification, reference, seconds, folder)


def _check_data(source: Source, reference: str) -> None:
    """Checks that the data exists and can be listed; raises the errors of `_plan`."""
    if isinstance(source, LocalSource):
        if not source.path.exists():
            raise NotFound(f"--watch {reference}: there is no such file or folder")
        return
    try:
        signature = source.signature()
    except PodraceError as error:
        raise type(error)(f"--watch {reference}{_server(reference)}: {error.message}") from None
    if not signature:
        raise NotFound(f"--watch {reference}: there is no such object, and none below it")


def _server(reference: str) -> str:
    """Returns which variable names the server of an `s3://` reference, for an error message; else an empty text."""
    if not reference.startswith(S3):
        return ""
    variable = next((name for name in ENDPOINTS if os.environ.get(name)), "")
    return f" (on the server of {variable})" if variable else f" ({ENDPOINTS[-1]} is not set)"


def _check_journal(plan: TrainingPlan, name: str) -> None:
    """Reports errors of the journal here instead of in the background process."""
    Journal.open(plan.folder, name=name, reference=_absolute(plan.reference))


def _absolute(reference: str) -> str:
    return reference if "://" in reference else str(Path(reference).expanduser().absolute())


def _arguments(
    settings: Settings, spec: Path, plan: TrainingPlan, name: str, overrides: Sequence[str], poll: str
) -> list[str]:
    """Returns the command line of the background process, which inherits working directory and environment."""
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


async def _train(settings: Settings, plan: TrainingPlan, name: str, spec: str, interrupts: Interrupts) -> int:
    """Trains until it is interrupted."""
    terminal = sys.stderr.isatty()
    write = notify if terminal else tables.timed(notify)

    def say(line: str) -> None:
        process.rotate_log(plan.folder)
        write(line)

    with interrupts.polite() as stop, process.hold(plan.folder, name) as lock:
        journal = Journal.open(plan.folder, name=name, reference=_absolute(plan.reference))
        journal.change(spec=str(Path(spec).absolute()), trouble="")
        discard(plan.versions / INCOMING)
        source = open_source(plan.reference, os.environ)
        draw = PlainLines(say).draw if terminal else _silent
        controller = Controller(settings, plan, source, journal, interrupts, stop, notify=say, draw=draw)
        say(f"watching {plan.reference}")
        lock.ready()
        await controller.run()
        say("stopped; run the same command to continue")
    return EXIT_INTERRUPTED


def _silent(_: object) -> None:
    """Draws nothing."""


@continuous.command()
@click.argument("name", required=False, default="")
@mesh_options
def status(settings: Settings, name: str) -> int:
    """Show the champion and the verdict on each version.

    Without NAME, show all continuous trainings of the home. Reads only files and starts no mesh.
    """
    found = [_find(settings, one) for one in ([name] if name else _names(settings))]
    if settings.as_json:
        values = [_values(state, folder) for state, folder in found]
        show_json(values[0] if name else values)
        return 0
    if not found:
        show(
            f"{settings.home}: there is no continuous training; start one with"
            " `podrace continuous start SPEC --watch REF`"
        )
    for state, folder in found:
        show(tables.overview(state, process.running(folder)))
    return 0


@continuous.command()
@click.argument("name", required=False, default="")
@click.option(
    "--deadline",
    "deadline_seconds",
    default=90.0,
    show_default=True,
    type=FiniteRange(min=0.0),
    metavar="SECONDS",
    help="Time limit for its pods to publish and exit.",
)
@mesh_options
def stop(settings: Settings, name: str, deadline_seconds: float) -> int:
    """Stop a continuous training and keep all results.

    The running tournament is cancelled, and the next start resumes it. NAME may be omitted if only one training runs.
    """
    state, folder = _find(settings, name or _only_running(settings))
    running = process.running(folder)
    how = process.stop(running, deadline_seconds=deadline_seconds) if running else ""
    state = read_journal(folder) or state
    if settings.as_json:
        show_json(_values(state, folder))
    else:
        ended = f"is stopped{f'; {how}' if how else ''}" if running else "is not running"
        show(f"continuous {state.name} {ended}")
    return 0


def _names(settings: Settings) -> list[str]:
    return list_names(Folders.of(settings.home).home)


def _folder(settings: Settings, name: str) -> Path:
    return Folders.of(settings.home).home / FOLDER / name


def _find(settings: Settings, name: str) -> tuple[JournalState, Path]:
    """Returns the recorded state and the folder of a training; raises NotFound if there is none."""
    state = read_journal(_folder(settings, name)) if NAME.fullmatch(name) else None
    if state is None:
        raise NotFound(unknown(str(settings.home), "continuous training", name, _names(settings)))
    return state, _folder(settings, name)


def _only_running(settings: Settings) -> str:
    """Returns the name of the only running training, or of the only training.

    Raises:
        NotFound: There is no training.
        InvalidArgument: There are several.
    """
    names = _names(settings)
    live = [name for name in names if process.running(_folder(settings, name))] or names
    if not live:
        raise NotFound(f"{settings.home}: there is no continuous training")
    if len(live) > 1:
        raise InvalidArgument(f"{settings.home}: there are {', '.join(live)}; name one of them")
    return live[0]


def _values(state: JournalState, folder: Path) -> dict[str, Any]:
    """Returns what `--json` prints."""
    running = process.running(folder)
    values: dict[str, Any] = _with_readable_times(asdict(state))
    del values["format"]
    return {"state": tables.activity(state, running), "pid": running.pid if running else None} | values


def _with_readable_times(value: Any) -> Any:
    """Converts times from seconds to the format of the other commands: 2026-11-21T11:04:09.5Z."""
    if isinstance(value, list | tuple):
        return [_with_readable_times(one) for one in value]
    if not isinstance(value, dict):
        return value
    readable = {key: _with_readable_times(one) for key, one in value.items()}
    return readable | {key: _moment(one) for key, one in value.items() if key.endswith("_time")}


def _moment(seconds: float) -> str:
    stamp = Timestamp()
    stamp.FromMilliseconds(round(seconds * 1000))
    return stamp.ToJsonString()
