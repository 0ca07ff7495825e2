import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from podrace.cli.grid import run
from podrace.cli.grid.axes import make_cells, parse_axes
from podrace.cli.grid.run import pauses_of
from podrace.config import read_toml
from podrace.errors import Unavailable
from podrace.leaderboard.v1.leaderboard_pb2 import ListCandidatesRequest
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

RESULTS = {ListCandidatesRequest, pb.ListEventsRequest}
"""What is read of a tournament that has ended."""

SPEC = """
name = "race"
[environment]
id = "CartPole-v1"
[algorithms.ppo]
[objective]
target_return = 475
"""
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "race.toml"
    path.write_text(SPEC)
    return str(path)


@pytest.fixture(autouse=True)
def quick(known: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mesh without tournaments and pods. Reports are replaced by a small file."""
    known.tournaments, known.pods = [], []

    async def report(client: Any, tournament: Any, folder: Path, *, orchestrator: str, notify: Any) -> None:
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(json.dumps({"reports": {"again": {"of": tournament.tournament_id}}}))

    monkeypatch.setattr(run, "make_report", report)


def names(spec: str, *axes: str) -> list[str]:
    return [cell.spec.name for cell in make_cells(read_toml(Path(spec)), parse_axes(axes), source=spec)]


@pytest.mark.long
def test_every_cell_becomes_a_tournament_and_the_result_compares_them(type_: Any, mesh: Any, spec: str) -> None:
    scores = iter([400.0, 480.0, 100.0, 100.0])

    def score() -> None:
        mesh.known.tournaments[0].best_score = next(scores)

    mesh.known.on_watch = score
    axes = "algorithm=ppo,a2c", "seed=0..1"
    answer = type_("grid", spec, "--axes", *axes, "--orchestrator", mesh.address, "--json")
    assert answer.code == 0, answer.err
    requests = mesh.known.asked(pb.CreateTournamentRequest)
    assert [request.spec.name for request in requests] == names(spec, *axes)
    assert [(list(request.spec.algorithms), request.spec.seed) for request in requests] == [
        (["ppo"], 0), (["ppo"], 1), (["a2c"], 0), (["a2c"], 1),
    ]  # fmt: skip
    assert answer.json["state"] == "COMPLETED"
    ppo, a2c = answer.json["combinations"]
    assert ppo["coordinates"] == {"algorithm": "ppo"}
    assert (ppo["mean_score"], ppo["interval_low"], ppo["interval_high"]) == (440.0, 400.0, 480.0)
    assert (a2c["mean_score"], a2c["cells"], a2c["scored_cells"]) == (100.0, 2, 2)
    assert [cell["score"] for cell in answer.json["cells"]] == [400.0, 480.0, 100.0, 100.0]
    assert answer.json["cells"][3]["coordinates"] == {"algorithm": "a2c", "seed": 1}
    assert answer.json["cells"][0]["curve"]["best_score"] == [120.0, 300.0, 480.0, 480.0]


@pytest.mark.long
def test_results_are_in_the_reported_folder(type_: Any, mesh: Any, spec: str, tmp_path: Path) -> None:
    arguments = "grid", spec, "strategy=pb2,softmax", "seed=0..1", "--orchestrator", mesh.address
    answer = type_(*arguments, "--output", "out", "--json")
    assert json.loads((tmp_path / "out/results.json").read_text()) == answer.json
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["grid.png", "results.json", "table.csv"]
    assert (tmp_path / "out/grid.png").read_bytes().startswith(PNG)
    rows = list(csv.DictReader((tmp_path / "out/table.csv").open()))
    assert [(row["strategy"], row["mean_score"], row["states"]) for row in rows] == [
        ("pb2", "480.0", "2 COMPLETED"),
        ("softmax", "480.0", "2 COMPLETED"),
    ]
    answer = type_(*arguments)
    (folder,) = (tmp_path / "podrace-home/grids").iterdir()
    assert f"results in {folder}" in answer.out
    assert "480.0   480.0 to 480.0" in answer.out


@pytest.mark.long
def test_the_same_command_again_runs_no_tournament_and_has_the_same_result(type_: Any, mesh: Any, spec: str) -> None:
    arguments = "grid", spec, "seed=0..2", "--orchestrator", mesh.address, "--json"
    first = type_(*arguments)
    mesh.known.requests.clear()
    assert type_(*arguments).json == first.json
    assert {type(request) for request in mesh.known.requests} == RESULTS


def test_a_grown_grid_runs_only_its_new_cells(type_: Any, mesh: Any, spec: str) -> None:
    type_("grid", spec, "seed=0..1", "--orchestrator", mesh.address)
    mesh.known.requests.clear()
    assert type_("grid", spec, "seed=0..3", "--orchestrator", mesh.address).code == 0
    assert [request.spec.seed for request in mesh.known.asked(pb.CreateTournamentRequest)] == [2, 3]


@pytest.mark.long
@pytest.mark.parametrize("state", ["CANCELLED", "FAILED"])
def test_a_cell_that_was_stopped_or_failed_is_resumed(
    type_: Any, mesh: Any, canned: Any, spec: str, state: str
) -> None:
    (name,) = names(spec, "seed=4")
    before = canned.tournament(f"{name}-abc123", state)
    before.spec.name = name
    mesh.known.tournaments = [before]
    answer = type_("grid", spec, "seed=4", "--orchestrator", mesh.address, "--json")
    assert answer.code == 0, answer.err
    (request,) = mesh.known.asked(pb.ResumeTournamentRequest)
    assert request.tournament_id == before.tournament_id
    assert mesh.known.asked(pb.CreateTournamentRequest) == []
    assert f"seed=4: resuming {name}-abc123, which was {state.lower()}: target return" in answer.err


def test_the_newest_of_several_tournaments_of_a_cell_is_used(type_: Any, mesh: Any, canned: Any, spec: str) -> None:
    (name,) = names(spec, "seed=4")
    newest, oldest = (canned.tournament(f"{name}-{suffix}", "COMPLETED") for suffix in ("newest", "oldest"))
    newest.spec.name = oldest.spec.name = name
    mesh.known.tournaments = [newest, oldest]
    answer = type_("grid", spec, "seed=4", "--orchestrator", mesh.address, "--json")
    assert answer.json["cells"][0]["tournament_id"] == f"{name}-newest"


def test_a_cell_that_still_runs_on_a_remote_mesh_is_followed(type_: Any, mesh: Any, canned: Any, spec: str) -> None:
    (name,) = names(spec, "seed=4")
    running = canned.tournament(f"{name}-abc123", "RUNNING")
    running.spec.name = name
    mesh.known.tournaments = [running]
    answer = type_("grid", spec, "seed=4", "--orchestrator", mesh.address, "--json")
    assert answer.json["cells"][0]["tournament_id"] == running.tournament_id
    assert {type(request) for request in mesh.known.requests} == {pb.WatchTournamentRequest} | RESULTS


def test_a_failed_cell_is_reported_with_its_reason_and_the_others_continue(type_: Any, mesh: Any, spec: str) -> None:
    states = iter(["COMPLETED", "FAILED", "COMPLETED"])

    def end() -> None:
        mesh.known.end_state = next(states)

    mesh.known.on_watch = end
    answer = type_("grid", spec, "strategy=pb2", "seed=0..2", "--orchestrator", mesh.address)
    assert answer.code == 1
    row = next(line.split() for line in answer.out.splitlines() if line.startswith("pb2"))
    assert " ".join(row) == "pb2 480.0 480.0 to 480.0 2 of 3 1.2M 0:00 2 COMPLETED, 1 FAILED"
    assert "strategy=pb2 seed=1: FAILED: target return: the best candidate scores 480" in answer.out
    assert "2 of 3 cells are done; run the same command to continue" in answer.err


def test_an_error_in_one_cell_is_its_reason_and_the_others_continue(
    type_: Any, mesh: Any, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def report(client: Any, tournament: Any, folder: Path, *, orchestrator: str, notify: Any) -> None:
        if tournament.spec.seed == 1:
            raise Unavailable("the leaderboard does not answer")

    monkeypatch.setattr(run, "make_report", report)
    answer = type_("grid", spec, "seed=0..2", "--orchestrator", mesh.address, "--json")
    assert answer.code == 1
    assert [cell["state"] for cell in answer.json["cells"]] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert answer.json["cells"][1]["reason"] == "the leaderboard does not answer"
    assert answer.json["state"] == "INCOMPLETE"


def test_a_tournament_without_a_score_is_not_part_of_the_means(type_: Any, mesh: Any, spec: str) -> None:
    def lose() -> None:
        mesh.known.tournaments[0].ClearField("best_score")

    mesh.known.on_watch = lose
    answer = type_("grid", spec, "seed=0", "--orchestrator", mesh.address, "--json")
    assert answer.code == 1
    assert answer.json["cells"][0]["reason"] == "no agent was scored before the end"
    assert answer.json["combinations"][0]["mean_score"] is None


def test_ctrl_c_cancels_running_cells_starts_no_more_and_shows_how_to_continue(
    type_: Any, mesh: Any, spec: str
) -> None:
    mesh.known.ends_by_itself = False
    mesh.known.on_watch = lambda: os.kill(os.getpid(), signal.SIGINT)
    answer = type_("grid", spec, "seed=0..2", "--orchestrator", mesh.address, "--json")
    assert answer.code == 130
    assert [cell["state"] for cell in answer.json["cells"]] == ["CANCELLED", "NOT_STARTED", "NOT_STARTED"]
    assert len(mesh.known.asked(pb.CreateTournamentRequest)) == 1
    assert "0 of 3 cells are done; run the same command to continue" in answer.err


def test_at_most_parallel_cells_run_at_once(type_: Any, mesh: Any, spec: str) -> None:
    running: list[int] = []

    def count() -> None:
        states = [run.formats.state(entry) for entry in mesh.known.tournaments]
        running.append(states.count("RUNNING"))

    mesh.known.on_watch = count
    answer = type_("grid", spec, "seed=0..5", "--parallel", "2", "--orchestrator", mesh.address, "--json")
    assert answer.code == 0, answer.err
    assert len(running) == 6
    assert max(running) == 2
    assert [cell["coordinates"]["seed"] for cell in answer.json["cells"]] == list(range(6))


def test_no_cell_is_started_if_one_of_them_is_invalid(type_: Any, mesh: Any, spec: str) -> None:
    answer = type_("grid", spec, "pod.cores=1,2,0", "--orchestrator", mesh.address)
    assert answer.code == 2
    assert answer.err == f"error: {spec}: cell pod.cores=0: pod.cores = 0: expected 0.1 to 1024\n"
    assert mesh.known.requests == []


def test_a_folder_that_cannot_be_written_is_refused_before_a_cell_is_started(
    type_: Any, mesh: Any, spec: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    answer = type_("grid", spec, "seed=0", "--output", "file/out", "--orchestrator", mesh.address)
    assert answer.code == 1
    assert answer.err.startswith(f"error: results cannot be written to {tmp_path}/file/out: Not a directory")
    assert mesh.known.requests == []


def event(kind: str, second: float) -> pb.Event:
    return pb.Event(kind=kind, time=Timestamp(seconds=1000 + int(second), nanos=int(second % 1 * 1e9)))


def test_a_pause_lasts_from_a_stop_or_the_creation_to_the_next_agent() -> None:
    events = [
        event("tournament_created", 0),
        event("agent_assigned", 4.5),
        event("agent_assigned", 6),
        event("tournament_cancelled", 10),
        event("tournament_resumed", 50),
        event("agent_assigned", 52),
        event("tournament_failed", 60),
        event("tournament_cancelled", 61),
        event("tournament_resumed", 70),
        event("agent_assigned", 71),
        event("tournament_paused", 72),
        event("tournament_resumed", 74),
        event("agent_assigned", 75),
        event("tournament_completed", 80),
    ]
    assert pauses_of(events, Timestamp(seconds=1000)) == [(0.0, 4.5), (10.0, 52.0), (60.0, 71.0), (72.0, 75.0)]
    assert pauses_of([*events, event("tournament_cancelled", 90)], Timestamp(seconds=1000))[-1] == (72.0, 75.0)
