"""The command `podrace prune` on a fake mesh, and on the files of a home."""

import contextlib
import json
from pathlib import Path
from typing import Any

import click
import pytest

from podrace.cli import session
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


@pytest.fixture
def several(known: Any, canned: Any) -> Any:
    known.tournaments = [
        canned.tournament("run-1", "RUNNING"),
        canned.tournament("done-1"),
        canned.tournament("failed-1", "FAILED"),
    ]
    for seconds, entry in enumerate(known.tournaments):
        entry.create_time.FromSeconds(1_000_000 - seconds)
    return known


def asked(known: Any) -> list[str]:
    return [request.tournament_id for request in known.asked(pb.DeleteTournamentRequest)]


def test_a_dry_run_deletes_nothing_and_shows_every_decision(type_: Any, mesh: Any, several: Any) -> None:
    answer = type_("prune", "--all", "--dry-run", "--orchestrator", mesh.address)
    assert answer.code == 0
    assert asked(several) == []
    decisions = {line.split()[0]: line.split()[2] for line in answer.out.splitlines() if "-1 " in line}
    assert decisions == {"run-1": "keep", "done-1": "delete", "failed-1": "delete"}
    assert answer.out.splitlines()[-1] == "would delete 2 tournaments and 0 files"


def test_what_meets_the_criteria_is_deleted(type_: Any, mesh: Any, several: Any) -> None:
    answer = type_(
        "prune", "--state", "failed", "--older-than", "7d", "--yes", "--json", "--orchestrator", mesh.address
    )
    assert answer.json["tournaments"] == ["failed-1"]
    assert answer.json["kept"] == {"run-1": "has not ended (RUNNING)", "done-1": "is COMPLETED"}
    assert asked(several) == ["failed-1"]


def test_without_consent_nothing_is_deleted(
    type_: Any, mesh: Any, several: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []

    def confirm(question: str, *, abort: bool, err: bool) -> None:
        questions.append(question)
        raise click.Abort

    monkeypatch.setattr(click, "confirm", confirm)
    assert type_("prune", "--all", "--orchestrator", mesh.address).code == 130
    assert questions == ["Delete 2 tournaments and 0 files?"]
    assert asked(several) == []


def test_a_tournament_that_cannot_be_deleted_does_not_stop_the_rest(type_: Any, mesh: Any, several: Any) -> None:
    several.undeletable = {"done-1"}
    answer = type_("prune", "--all", "--yes", "--orchestrator", mesh.address)
    assert answer.code == 1
    assert "not deleted: done-1: done-1 has not ended" in answer.err
    assert asked(several) == ["done-1", "failed-1"]


def test_results_of_deleted_tournaments_are_deleted_only_when_asked(type_: Any, mesh: Any, several: Any) -> None:
    folder = Path("podrace-home/tournaments")
    for name in ("run-1", "done-1", "failed-1", "elsewhere"):
        (folder / name).mkdir(parents=True)
    several.undeletable = {"done-1"}
    options = ("--yes", "--orchestrator", mesh.address)
    type_("prune", "--state", "FAILED", *options)
    assert len(list(folder.iterdir())) == 4
    several.tournaments.append(several.find("done-1"))
    type_("prune", "--all", "--results", *options)
    assert sorted(path.name for path in folder.iterdir()) == ["done-1", "elsewhere", "failed-1", "run-1"]
    several.undeletable = set()
    type_("prune", "--all", "--results", *options)
    assert sorted(path.name for path in folder.iterdir()) == ["elsewhere", "failed-1", "run-1"]


def make_results(name: str, orchestrator: str | None) -> None:
    """Makes a folder of results in the home; without a record of its mesh, if that is None."""
    folder = Path("podrace-home/tournaments") / name
    folder.mkdir(parents=True)
    if orchestrator is not None:
        (folder / "mesh.json").write_text(json.dumps({"orchestrator": orchestrator}))


@pytest.fixture
def own_mesh(mesh: Any, several: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The fake mesh is the one of the home."""
    monkeypatch.setattr(session, "require_tournaments", lambda settings: None)
    monkeypatch.setattr(session, "open_mesh", lambda *_, **__: contextlib.nullcontext(mesh.address))
    return several


def test_results_of_a_tournament_on_another_mesh_are_no_leftovers(type_: Any, own_mesh: Any) -> None:
    make_results("remote-1", "10.0.0.7:50051")
    make_results("gone-1", "")
    report = type_("prune", "--leftovers", "--yes", "--json").json
    assert [Path(path).name for path in report["files"]] == ["gone-1"]
    assert report["kept_files"] == {}
    assert [path.name for path in Path("podrace-home/tournaments").iterdir()] == ["remote-1"]


def test_results_that_record_no_mesh_are_kept_and_named(type_: Any, own_mesh: Any) -> None:
    for name in ("old-1", "done-1"):
        make_results(name, None)
    answer = type_("prune", "--leftovers", "--yes")
    folder = Path("podrace-home/tournaments").resolve()
    assert f"keep {folder / 'old-1'}: does not record the mesh it is from" in answer.out
    assert "done-1" not in answer.out
    report = type_("prune", "--leftovers", "--yes", "--json").json
    assert list(report["kept_files"]) == [str(folder / "old-1")]
    assert (folder / "old-1").is_dir()


def test_leftovers_of_a_home_are_deleted_and_logs_of_services_stay(type_: Any, own_mesh: Any) -> None:
    home = Path("podrace-home")
    for name in ("done-1", "gone-1"):
        make_results(name, "")
    (home / "logs").mkdir()
    for name in ("orchestrator.log", "done-1-p1.log", "gone-1-p2.log"):
        (home / "logs" / name).write_text("")
    report = type_("prune", "--leftovers", "--yes", "--json").json
    assert [Path(path).name for path in report["files"]] == ["gone-1", "gone-1-p2.log"]
    assert sorted(path.name for path in (home / "logs").iterdir()) == ["done-1-p1.log", "orchestrator.log"]
    assert [path.name for path in (home / "tournaments").iterdir()] == ["done-1"]
    assert asked(own_mesh) == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], "choose by --older-than"),
        (["--older-than", "soon"], "expected a number and m, h, d or w"),
        (["--all", "--json"], "add --yes or --dry-run"),
        (["--leftovers", "--yes"], "omit --orchestrator"),
        (["--state", "RUNNING"], "Invalid value for '--state'"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_asked(
    type_: Any, mesh: Any, several: Any, options: list[str], error: str
) -> None:
    answer = type_("prune", *options, "--orchestrator", mesh.address)
    assert answer.code == 2
    assert error in answer.err
    assert asked(several) == []
