"""Implements `podrace backup` and `podrace restore` for databases, and `podrace archive` for deleted tournaments."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import click
from click.core import ParameterSource

from podrace.backup.archives import Archive, Archives
from podrace.backup.copies import Backup, Backups, backup_of, described
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.store import BACKUP_PREFIX, PROBE_AGENT_ID, CheckpointStore
from podrace.cli import session
from podrace.cli.terminal import formats
from podrace.cli.terminal.options import DEFAULT_HOME, output_options
from podrace.cli.terminal.output import show as show_result
from podrace.cli.terminal.output import show_json
from podrace.cli.views.tables import plain_table
from podrace.client import Client
from podrace.client.resolve import resolve_name
from podrace.database.identity import copy_file, identity_of_file
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound
from podrace.mesh.home import Folders
from podrace.mesh.home_lock import Use, claim
from podrace.mesh.service_process import listens
from podrace.mesh.store_choice import DEADLINE_SECONDS, choose_store
from podrace.tasks import finish_in_thread

SERVICES = ("orchestrator", "leaderboard")
LOCK_SECONDS = 5.0
HOURS = 24
SHORT = 12

home_option = click.option(
    "--home",
    default=DEFAULT_HOME,
    envvar="PODRACE_HOME",
    show_default=True,
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="Folder with the databases.",
)
store_option = click.option(
    "--store",
    default="",
    envvar="PODRACE_STORE",
    show_envvar=True,
    metavar="URI",
    help="Store of the backups.  [default: the checkpoint store of the home]",
)
name_option = click.option(
    "--name",
    default="main",
    show_default=True,
    help="`backup.name` of the services, if meshes share the store.",
)


@click.command()
@home_option
@store_option
@name_option
@click.option("--list", "only_list", is_flag=True, help="List the backups instead.")
@click.option(
    "--orchestrator", default="", metavar="ADDRESS", help="Let the services of this mesh back up their databases."
)
@output_options
def backup(home: Path, store: str, name: str, only_list: bool, orchestrator: str, as_json: bool, debug: bool) -> int:
    """Back up the databases of a home or a running mesh, or list backups.

    The services of a running mesh write the backups to their own store, and continue to answer calls. They also make
    backups periodically if `backup.period_seconds` is set. Backups of this command are kept for 30 days.
    """
    folders = Folders.of(home)
    if orchestrator:
        _refuse_given("--orchestrator: its services", "only_list", "store", "name")

    async def work() -> int:
        running = orchestrator or (
            f"unix:{folders.orchestrator_socket}" if listens(folders.orchestrator_socket) else ""
        )
        if running and not only_list:
            _refuse_given(f"{running}: the services of this mesh", "store", "name")
            if orchestrator:
                await session.check_address(orchestrator)
            async with Client(running) as client:
                found = [backup_of(one) for one in await client.back_up()]
        elif only_list:
            opened = await asyncio.to_thread(_open_store, folders, store)
            found = [one for service in SERVICES for one in Backups(opened, name, service).list()]
        else:
            async with _locked(folders):
                opened = await finish_in_thread(_open_store, folders, store)
                found = [
                    await finish_in_thread(_back_up, Backups(opened, name, service), path)
                    for service, path in _databases(folders)
                ]
        _show(found, as_json=as_json, nothing="there are no backups")
        return 0

    return session.run(lambda interrupts: work())


@click.command()
@home_option
@store_option
@name_option
@click.option(
    "--at",
    default="",
    metavar="DIGEST",
    help="Name of the backup, from `podrace backup --list`; repeat the command for the backup of the other service.",
)
@click.option(
    "--replace", is_flag=True, help="Move existing databases aside, to names that end in .replaced-1 and so on."
)
@click.option(
    "--database",
    default=None,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Restore only the database of one service that has stopped, without a home: .../orchestrator.sqlite or"
    " .../leaderboard.sqlite. Needs --store.",
)
@output_options
def restore(
    home: Path, store: str, name: str, at: str, replace: bool, database: Path | None, as_json: bool, debug: bool
) -> int:
    """Restore the databases of a home from the newest backup, or from another one.

    Running pods keep their agents. A service that still runs with the old database can no longer make backups. A new
    home records the store of the backups as its checkpoint store if the checkpoints of agents are in it.
    """
    # A volume of a cluster is no home: root owns its folder, and nothing in it names the store.
    folders, service = Folders.of(home), _service_of(database, store) if database else ""

    async def work() -> int:
        if database:
            opened = await asyncio.to_thread(open_store, store, deadline_seconds=DEADLINE_SECONDS)
            wanted = {service: database}
            found = await asyncio.to_thread(_restore_all, opened, name, wanted, at, replace=replace)
        else:
            folders.make_home()
            async with _locked(folders):
                opened = await finish_in_thread(_open_store, folders, store)
                await finish_in_thread(_adopt_store, folders, opened)
                wanted = dict(_databases(folders))
                found = await finish_in_thread(_restore_all, opened, name, wanted, at, replace=replace)
        if not found:
            raise NotFound(f"checkpoint store {opened.uri}: has no backups with the name {name!r}")
        _show(found, as_json=as_json, nothing="")
        return 0

    return session.run(lambda interrupts: work())


def _refuse_given(services: str, *names: str) -> None:
    """Refuses options of the command line that have no effect on the backups of services.

    A store that PODRACE_STORE names is meant for the meshes of homes, and is ignored.
    """
    context = click.get_current_context()
    given = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        options = " and ".join("--list" if name == "only_list" else f"--{name}" for name in given)
        raise InvalidArgument(f"{services} use their own store and backup.name; leave out {options}")


def _service_of(database: Path, store: str) -> str:
    """Returns the service to which a database file belongs, by the name that the images give it."""
    if database.stem not in SERVICES or database.suffix != ".sqlite":
        names = " or ".join(f"{service}.sqlite" for service in SERVICES)
        raise InvalidArgument(f"--database = {str(database)!r}: name a file {names}")
    if not store:
        raise InvalidArgument("--database: also name the store of the backups by --store")
    return database.stem


def _databases(folders: Folders) -> Iterator[tuple[str, Path]]:
    yield "orchestrator", folders.orchestrator_database
    yield "leaderboard", folders.leaderboard_database


def _check_home(folders: Folders) -> None:
    if not folders.home.is_dir():
        raise NotFound(f"{folders.home}: there is no such home; name another one with --home")


@contextlib.asynccontextmanager
async def _locked(folders: Folders) -> AsyncIterator[None]:
    _check_home(folders)
    async with claim(folders, Use.TRAIN, deadline_seconds=LOCK_SECONDS):
        yield


def _open_store(folders: Folders, store: str) -> CheckpointStore:
    """Opens the store of the backups: the named one, or the checkpoint store of the home."""
    if not store:
        _check_home(folders)
        store = choose_store(folders, "", writes=False)
    return open_store(store, deadline_seconds=DEADLINE_SECONDS)


def _adopt_store(folders: Folders, opened: CheckpointStore) -> None:
    """Records the store of the backups as the checkpoint store of a new home, if the checkpoints are in it too."""
    if folders.store.exists():
        return
    if any(not pointer.agent_id.startswith((BACKUP_PREFIX, PROBE_AGENT_ID)) for pointer in opened.list_pointers()):
        choose_store(folders, opened.uri, writes=False)


def _back_up(backups: Backups, path: Path) -> Backup:
    copy = path.with_name(f"{path.name}.backup")
    copy.unlink(missing_ok=True)
    try:
        now = time.time()
        identity = identity_of_file(path)
        epoch = backups.next_epoch(path, identity, backups.newest())
        copy_file(path, copy, epoch)
        backups.claim(epoch)
        return backups.write(copy, epoch, identity.database_id, now, hours=HOURS, requested=True)
    finally:
        copy.unlink(missing_ok=True)


def _check_stopped(database: Path) -> None:
    """Refuses a database that its service has open. One that cannot be read for another reason may be replaced."""
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=LOCK_SECONDS, isolation_level=None)) as opened:
            opened.execute("BEGIN EXCLUSIVE")
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            raise FailedPrecondition(f"database {database}: its service has it open; stop it first") from None


def _restore_all(
    store: CheckpointStore, name: str, wanted: Mapping[str, Path], at: str, *, replace: bool
) -> list[Backup]:
    if at:
        every = {one.manifest_digest: one for service in wanted for one in Backups(store, name, service).list()}
        at = resolve_name(at, list(every), "backup", where="--at")
        wanted = {every[at].service: wanted[every[at].service]}
    present = [path for path in wanted.values() if path.exists()]
    if present and not replace:
        raise FailedPrecondition(f"database {present[0]}: exists; add --replace to move it aside")
    # A service that was started by hand, or is still stopping, does not hold the lock of its home.
    for path in present:
        _check_stopped(path)
    restored = (Backups(store, name, service).restore(path, at, replace=replace) for service, path in wanted.items())
    return [one for one in restored if one]


def _show(found: list[Backup], *, as_json: bool, nothing: str) -> None:
    if as_json:
        show_json([described(one) for one in found])
    elif not found:
        show_result(nothing)
    else:
        table = plain_table("service", "backup", "time", "size", right=("size",))
        for one in found:
            made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.time))
            table.add_row(one.service, one.manifest_digest[:SHORT], made, f"{formats.count(one.size_bytes)}B")
        show_result(table)


@click.command()
@click.argument("tournament", required=False, default="")
@click.option(
    "--folder",
    default=None,
    type=click.Path(path_type=Path),
    help="Folder for the files; created. [default: the id of the tournament]",
)
@click.option("--delete", is_flag=True, help="Delete the archive instead.")
@home_option
@store_option
@output_options
def archive(
    tournament: str, folder: Path | None, delete: bool, home: Path, store: str, as_json: bool, debug: bool
) -> int:
    """List the archives of deleted tournaments, or extract that of one tournament, given by its id.

    The files that end in .jsonl.gz have one record a line; `zcat` prints them. Every file is compared with its digest.
    """
    if delete and (not tournament or folder):
        raise InvalidArgument("--delete: name the tournament, and no --folder")

    async def work() -> int:
        def opened() -> Archives:
            chosen = store or choose_store(Folders.of(home), "", writes=False)
            return Archives(open_store(chosen, deadline_seconds=DEADLINE_SECONDS))

        archives = await asyncio.to_thread(opened)
        if delete:
            await asyncio.to_thread(archives.read, tournament)
            await asyncio.to_thread(archives.delete, tournament)
            _say(
                {"tournament_id": tournament, "deleted": True}, f"deleted the archive of {tournament}", as_json=as_json
            )
        elif tournament:
            target = folder or Path(tournament)
            files = await asyncio.to_thread(archives.read, tournament)
            names = await asyncio.to_thread(_write_files, files, target)
            shown = f"wrote {', '.join(names)} to {target}"
            _say({"tournament_id": tournament, "folder": str(target), "files": names}, shown, as_json=as_json)
        else:
            _show_archives(await asyncio.to_thread(archives.list), as_json=as_json)
        return 0

    return session.run(lambda interrupts: work())


def _write_files(files: dict[str, bytes], folder: Path) -> list[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            with (folder / Path(name).name).open("xb") as file:
                file.write(data)
    except OSError as error:
        raise FailedPrecondition(
            f"{error.filename}: cannot be written: {error.strerror}; choose another --folder"
        ) from None
    return sorted(files)


def _say(values: dict[str, object], text: str, *, as_json: bool) -> None:
    if as_json:
        show_json(values)
    else:
        show_result(text)


def _show_archives(found: list[Archive], *, as_json: bool) -> None:
    if as_json:
        show_json(
            [
                {
                    "tournament_id": each.tournament_id,
                    "manifest_digest": each.manifest_digest,
                    "time": each.time,
                    "size_bytes": each.size_bytes,
                    "files": dict(each.files),
                }
                for each in found
            ]
        )
    elif not found:
        show_result("there are no archives")
    else:
        table = plain_table("tournament", "archived", "files", "size", right=("size",))
        for each in found:
            made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.time))
            table.add_row(each.tournament_id, made, " ".join(sorted(each.files)), f"{formats.count(each.size_bytes)}B")
        show_result(table)
