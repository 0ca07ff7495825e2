"""Implements `podrace prune`."""

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from podrace.cli import EXIT_FAILED, session
from podrace.cli.pruning.decisions import Criteria, PruningDecision, judge, leftover_logs, leftover_results
from podrace.cli.results.origin import read_origin
from podrace.cli.terminal import formats
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import notify, show, show_json
from podrace.cli.views.tables import plain_table
from podrace.client import Client
from podrace.errors import InvalidArgument, PodraceError
from podrace.mesh.home import Folders

STATES = ("COMPLETED", "CANCELLED", "FAILED")
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
UNRECORDED = "does not record the mesh it is from, like results of earlier versions; delete it yourself"
_AGE = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")


@dataclass(frozen=True)
class Plan:
    """What is deleted."""

    verdicts: Sequence[PruningDecision]
    """All tournaments, newest first."""
    files: Sequence[Path] = ()
    """Folders of results and logs in the home."""
    kept_files: Mapping[Path, str] = field(default_factory=dict)
    """Why folders of results are kept that belong to no tournament."""

    @property
    def doomed(self) -> list[str]:
        """Ids of the tournaments that are deleted."""
        return [each.tournament.tournament_id for each in self.verdicts if each.delete]


@dataclass
class Outcome:
    """What was deleted."""

    deleted: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """Why a tournament or a file was not deleted, by its id or path."""


@click.command()
@click.option("--older-than", default="", metavar="AGE", help="Tournaments that ended this long ago: 90m, 12h, 7d, 4w.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only tournaments in this state; repeatable.",
)
@click.option("--keep", default=0, type=click.IntRange(min=0), metavar="N", help="Keep the newest N of them.")
@click.option("--all", "everything", is_flag=True, help="All tournaments that have ended.")
@click.option("--results", is_flag=True, help="Also the folders of results of the deleted tournaments.")
@click.option(
    "--leftovers",
    is_flag=True,
    help="Also results and pod logs of the home's own mesh whose tournaments no longer exist.",
)
@click.option("--archive", is_flag=True, help="Archive records and champions in the checkpoint store first.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@click.option("--yes", is_flag=True, help="Delete without asking.")
@mesh_options
def prune(
    settings: Settings,
    older_than: str,
    states: Sequence[str],
    keep: int,
    everything: bool,
    results: bool,
    leftovers: bool,
    archive: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Delete tournaments that have ended, with their checkpoints, events and logs.

    A tournament is deleted if it meets all criteria. One that runs, or is ending, is never deleted. Results stay unless
    --results is given. Nothing that is deleted can be restored; `podrace archive`
    reads what --archive has kept.
    """
    _check(settings, everything or bool(older_than or states or keep), leftovers, dry_run=dry_run, yes=yes)
    criteria = Criteria(_seconds(older_than), {state.upper() for state in states}, keep)
    selected = everything or bool(older_than or states or keep)

    async def query(client: Client, interrupts: Interrupts) -> int:
        plan = await _plan(settings, client, criteria if selected else None, results=results, leftovers=leftovers)
        if not settings.as_json:
            _show_plan(plan)
        outcome = Outcome()
        if not dry_run and (plan.doomed or plan.files):
            if not yes:
                things = (
                    f"{formats.things(len(plan.doomed), 'tournament')} and {formats.things(len(plan.files), 'file')}"
                )
                with interrupts.raised():
                    click.confirm(f"Delete {things}?", abort=True, err=True)
            outcome = await _carry_out(client, plan, archive=archive)
        _conclude(settings, plan, outcome, dry_run=dry_run)
        return EXIT_FAILED if outcome.failures else 0

    session.require_tournaments(settings)
    return session.run_asking_query(settings, query)


def _check(settings: Settings, selected: bool, leftovers: bool, *, dry_run: bool, yes: bool) -> None:
    if not selected and not leftovers:
        raise InvalidArgument("prune: choose by --older-than, --state or --keep; or give --all, or only --leftovers")
    if settings.as_json and not (yes or dry_run):
        raise InvalidArgument("--json: cannot ask for confirmation; add --yes or --dry-run")
    if leftovers and settings.orchestrator:
        raise InvalidArgument("--leftovers: only for the home on this machine; omit --orchestrator")


def _seconds(text: str) -> float | None:
    if not text:
        return None
    match = _AGE.fullmatch(text)
    if match is None:
        raise InvalidArgument(f"--older-than {text}: expected a number and m, h, d or w, for instance 7d")
    return float(match[1]) * _UNITS[match[2]]


async def _plan(
    settings: Settings, client: Client, criteria: Criteria | None, *, results: bool, leftovers: bool
) -> Plan:
    """Decides what to delete. Files are listed before the tournaments, so that those of a new one are safe."""
    folders = Folders.of(settings.home)
    folder = folders.home / "tournaments"
    origins = {path.name: read_origin(path) for path in folder.iterdir()} if folder.is_dir() else {}
    logs = [path.name for path in folders.logs.iterdir()] if folders.logs.is_dir() else []
    tournaments = await client.list_tournaments()
    verdicts = judge(tournaments, criteria, now=time.time()) if criteria else []
    doomed = {each.tournament.tournament_id for each in verdicts if each.delete}
    known = {each.tournament_id for each in tournaments}
    files = [folder / name for name in sorted(doomed & origins.keys())] if results else []
    if not leftovers:
        return Plan(verdicts, files)
    found = leftover_results(origins, known)
    files += [folder / name for name in found.delete]
    files += [folders.logs / name for name in leftover_logs(logs, known)]
    return Plan(verdicts, files, {folder / name: UNRECORDED for name in found.unrecorded})


async def _carry_out(client: Client, plan: Plan, *, archive: bool) -> Outcome:
    """Deletes everything in a plan; what cannot be deleted is reported and does not stop the rest."""
    outcome = Outcome()
    for name in plan.doomed:
        try:
            await client.delete_tournament(name, archive=archive)
        except PodraceError as error:
            outcome.failures[name] = error.message
        else:
            outcome.deleted.append(name)
    for path in plan.files:
        if path.name in outcome.failures:
            continue
        try:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        except OSError as error:
            outcome.failures[str(path)] = error.strerror or str(error)
        else:
            outcome.files.append(str(path))
    return outcome


def _show_plan(plan: Plan) -> None:
    table = plain_table("tournament", "state", "decision", "reason")
    for each in plan.verdicts:
        name, state = each.tournament.tournament_id, formats.state(each.tournament)
        table.add_row(name, state, "delete" if each.delete else "keep", each.reason)
    if plan.verdicts:
        show(table)
    for path in plan.files:
        show(f"delete {path}")
    for path, reason in plan.kept_files.items():
        show(f"keep {path}: {reason}")


def _conclude(settings: Settings, plan: Plan, outcome: Outcome, *, dry_run: bool) -> None:
    if settings.as_json:
        show_json(
            {
                "dry_run": dry_run,
                "tournaments": plan.doomed if dry_run else outcome.deleted,
                "kept": {each.tournament.tournament_id: each.reason for each in plan.verdicts if not each.delete},
                "files": [str(path) for path in plan.files] if dry_run else outcome.files,
                "kept_files": {str(path): reason for path, reason in plan.kept_files.items()},
                "failures": outcome.failures,
            }
        )
        return
    for name, problem in outcome.failures.items():
        notify(f"not deleted: {name}: {problem}")
    if dry_run:
        count = formats.things(len(plan.doomed), "tournament")
        show(f"would delete {count} and {formats.things(len(plan.files), 'file')}")
    else:
        count = formats.things(len(outcome.deleted), "tournament")
        show(f"deleted {count} and {formats.things(len(outcome.files), 'file')}")
