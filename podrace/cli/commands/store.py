"""Implements `podrace store`: checks, lists, verifies and cleans a checkpoint store, without a mesh."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import click
from rich.table import Table

from podrace.checkpoint_store import create_store, open_store
from podrace.checkpoint_store.contents import AgentFiles, Garbage, delete_garbage, find_garbage, list_agents, verify
from podrace.checkpoint_store.folder import is_store
from podrace.checkpoint_store.store import PROBE_AGENT_ID, CheckpointStore, check_digest
from podrace.cli import EXIT_FAILED
from podrace.cli.terminal import formats
from podrace.cli.terminal.options import FiniteRange, output_options
from podrace.cli.terminal.output import notify, show, show_json
from podrace.cli.views.tables import NOTHING, plain_table
from podrace.client.hyperparameters import hyperparameters_of
from podrace.errors import NotFound
from podrace.mesh.store_choice import DEADLINE_SECONDS
from podrace.telemetry import TelemetryConfig, configure_logging

TRIAL_BYTES = 8 * 2**20
GRACE_SECONDS = 3600.0
"""Same as `collect_grace_seconds` of the leaderboard."""
SHORT = 12
"""Number of digits of a digest shown in tables."""


HELP = """Maintain a checkpoint store: check it, list it, verify it, find unreachable files.

\b
podrace store check URI                test that the store works, and its speed
podrace store ls URI                   list the agents with checkpoint files
podrace store verify URI               read all files and compare their digests
podrace store gc URI                   find unreachable files

URI is a folder, folder:///absolute/path, minio://HOST/BUCKET/PREFIX, or without TLS
minio+http://HOST:PORT/BUCKET/PREFIX. Credentials come from the environment: PODRACE_STORE_ACCESS_KEY and
PODRACE_STORE_SECRET_KEY, or those names with _FILE and the name of a file. Each command takes --json.
"""


@click.group(help=HELP)
def store() -> None:
    """The commands `podrace store ...`."""


@store.command(short_help="Test that a store works, and its speed.")
@click.argument("uri")
@click.option("--create", is_flag=True, help="Create the bucket if it does not exist.")
@click.option(
    "--wait",
    "wait_seconds",
    default=DEADLINE_SECONDS,
    show_default=True,
    type=FiniteRange(min=0.0),
    metavar="SECONDS",
    help="Time to wait for a server that is starting.",
)
@output_options
def check(uri: str, create: bool, wait_seconds: float, as_json: bool, debug: bool) -> int:
    """Test that a store keeps objects and supports conditional writes, and measure its speed."""
    if create and create_store(uri, deadline_seconds=wait_seconds):
        notify(f"{uri}: created the bucket")
    opened = _open(uri, debug, deadline_seconds=wait_seconds)  # performs the test and raises if it fails
    trial = os.urandom(TRIAL_BYTES)
    write_seconds, name = _timed(lambda: opened.put_object(trial))
    read_seconds, _ = _timed(lambda: opened.get_object(name))
    opened.delete_object(name, -GRACE_SECONDS)  # random bytes of this test, so no grace period is needed
    pointer_seconds, _ = _timed(lambda: opened.read_pointer(PROBE_AGENT_ID))
    findings = {
        "uri": opened.uri,
        "keeps_objects": True,
        "honours_conditions": True,
        "write_megabytes_per_second": round(TRIAL_BYTES / write_seconds / 1e6, 1),
        "read_megabytes_per_second": round(TRIAL_BYTES / read_seconds / 1e6, 1),
        "round_trip_milliseconds": round(1e3 * pointer_seconds, 2),
        "clock_ahead_seconds": round(getattr(opened, "skew_seconds", 0.0)),
    }
    if as_json:
        show_json(findings)
        return 0
    table = plain_table("property", "value")
    for what, found in findings.items():
        table.add_row(what.replace("_", " "), "yes" if found is True else str(found))
    show(table)
    return 0


@store.command(short_help="List the agents with checkpoint files in a store.")
@click.argument("uri")
@output_options
def ls(uri: str, as_json: bool, debug: bool) -> int:
    """List the agents with checkpoint files in a store, with their newest checkpoint."""
    agents = list_agents(_open_existing(uri, debug, only_reading=True), time.time())
    if as_json:
        show_json([_listed(agent) for agent in agents])
    elif agents:
        show(_agents_table(agents))
    else:
        show(f"{uri}: there are no agents")
    return 0


@store.command(name="verify", short_help="Compare every manifest and part with its digest.")
@click.argument("uri")
@output_options
def verify_command(uri: str, as_json: bool, debug: bool) -> int:
    """Read every manifest and part and compare it with its digest. The exit code is 1 if anything is damaged."""
    found = verify(_open_existing(uri, debug, only_reading=True))
    if as_json:
        show_json(vars(found))
    else:
        for line in found.damage:
            show(line)
        read = f"{formats.things(found.objects, 'object')} with {formats.count(found.size_bytes)}B"
        checkpoints = f"{formats.things(found.manifests, 'checkpoint')} of {formats.things(found.agents, 'agent')}"
        unfinished = f"; unfinished writes: {found.unfinished_writes}" if found.unfinished_writes else ""
        show(f"{uri}: {read} are intact, {checkpoints}; damage: {len(found.damage)}{unfinished}")
    return EXIT_FAILED if found.damage else 0


@store.command()
@click.argument("uri")
@click.option("--delete", is_flag=True, help="Delete the files instead of only showing them.")
@click.option("--keep", multiple=True, metavar="DIGEST", help="Manifest to keep, with its parts; repeatable.")
@click.option(
    "--grace",
    "grace_seconds",
    default=GRACE_SECONDS,
    show_default=True,
    type=FiniteRange(min=0.0),
    metavar="SECONDS",
    help="Keep files younger than this, which may belong to an unfinished publication.",
)
@click.option("--boards-gone", is_flag=True, help="No leaderboard uses the store: also delete scored checkpoints.")
@output_options
def gc(
    uri: str,
    delete: bool,
    keep: tuple[str, ...],
    grace_seconds: float,
    boards_gone: bool,
    as_json: bool,
    debug: bool,
) -> int:
    """Show or delete unreachable files.

    A running leaderboard deletes unreachable files itself, and only the leaderboard knows its boards. This command uses
    the pointers of the agents, each of which keeps the newest checkpoint and the one before. A checkpoint with a score
    may be on a board, or an agent may start from it. So all scored checkpoints and all snapshots are kept, unless
    --boards-gone states that no leaderboard needs the store. Then only the pointers and --keep count.
    """
    for manifest_digest in keep:
        check_digest(manifest_digest)
    opened = _open_existing(uri, debug, only_reading=not delete)
    garbage = find_garbage(opened, keep, grace_seconds, boards_are_gone=boards_gone)
    if delete:
        garbage = Garbage(delete_garbage(opened, garbage, grace_seconds), garbage.scored)
    if as_json:
        digests = [stored.digest for stored in garbage.objects]
        show_json({"deleted": delete, "objects": digests, "size_bytes": garbage.size_bytes, "scored": garbage.scored})
    else:
        _show_garbage(uri, garbage, deleted=delete)
    return 0


def _show_garbage(uri: str, garbage: Garbage, *, deleted: bool) -> None:
    amount = f"{formats.things(len(garbage.objects), 'object')} with {formats.count(garbage.size_bytes)}B"
    show(f"{uri}: {amount} {'deleted' if deleted else 'can be deleted with --delete'}")
    if garbage.scored:
        notify(f"{formats.things(garbage.scored, 'scored checkpoint')} kept: a board may need them (see --boards-gone)")


def _open_existing(uri: str, debug: bool, *, only_reading: bool) -> CheckpointStore:
    scheme, separator, path = uri.rpartition("://")
    # Opening a folder would create a store in it.
    if (not separator or scheme == "folder") and not is_store(Path(path)):
        raise NotFound(f"checkpoint store {uri!r}: this folder does not exist or has no store")
    return _open(uri, debug, only_reading=only_reading)


def _open(
    uri: str, debug: bool, *, only_reading: bool = False, deadline_seconds: float = DEADLINE_SECONDS
) -> CheckpointStore:
    configure_logging(TelemetryConfig(log_level="debug" if debug else "warning", metrics_listen=""))
    return open_store(uri, deadline_seconds=deadline_seconds, only_reading=only_reading)


def _timed(action: Callable[[], object]) -> tuple[float, str]:
    begin = time.perf_counter()
    result = action()
    return time.perf_counter() - begin, str(result)


def _listed(agent: AgentFiles) -> dict[str, object]:
    return {
        "agent_id": agent.pointer.agent_id,
        "lease_epoch": agent.pointer.lease_epoch,
        "manifest_digest": agent.pointer.manifest_digest,
        "previous_manifest_digest": agent.pointer.previous_manifest_digest,
        "tournament_id": agent.manifest.tournament_id,
        "algorithm": agent.manifest.algorithm,
        "hyperparameters": hyperparameters_of(agent.manifest) or None,
        "environment_steps": agent.manifest.environment_steps,
        "size_bytes": agent.size_bytes,
        "age_seconds": agent.age_seconds,
        "damage": agent.damage,
    }


def _agents_table(agents: list[AgentFiles]) -> Table:
    numbers = "epoch", "steps", "size", "age"
    table = plain_table("agent", "epoch", "checkpoint", "algorithm", *numbers[1:], "damage", right=numbers)
    for agent in agents:
        table.add_row(
            agent.pointer.agent_id,
            str(agent.pointer.lease_epoch),
            agent.pointer.manifest_digest[:SHORT] or NOTHING,
            agent.manifest.algorithm or NOTHING,
            formats.count(agent.manifest.environment_steps),
            f"{formats.count(agent.size_bytes)}B",
            NOTHING if agent.age_seconds is None else formats.duration(agent.age_seconds),
            agent.damage or NOTHING,
        )
    return table
