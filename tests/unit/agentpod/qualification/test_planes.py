import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentpod.qualification import planes
from agentpod.qualification.bench import Bench
from agentpod.qualification.planes import (
    CASES,
    LaunchedTrial,
    PlaneTrial,
    judge,
    judge_launched,
    logged_device,
    measure_launched,
    pod_folder,
    spec_of,
)
from agentpod.qualification.trial_pod import specification
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.orchestrator.v1 import orchestrator_pb2 as orchestrator_pb
from podrace.qualification.findings import Grade
from podrace.specification.catalog import PLANES
from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_FAILED, Tournament, TournamentSpec

GOOD = PlaneTrial("cuda", "cuda", "cuda", "cuda:0", "cuda", 1e5, "", 2.0, True, 1.0, True)


def test_a_pod_on_its_plane_that_survives_its_worker_and_ends_with_its_leader_passes() -> None:
    findings = list(judge(GOOD))
    assert {finding.grade for finding in findings} == {Grade.PASS}
    assert len(findings) == 4


@pytest.mark.parametrize(
    ("changes", "name", "mend"),
    [
        ({"scheme": "shared"}, "cuda", "CuPy"),
        ({"device": "cpu"}, "cuda, worker's device", "simulator steps"),
        ({"device": ""}, "cuda, worker's device", "simulator steps"),
        ({"continued_seconds": None}, "cuda, worker killed", "--debug"),
        ({"exited_seconds": None}, "cuda, leader killed", "--debug"),
    ],
)
def test_each_defect_is_the_only_failure(changes: dict[str, object], name: str, mend: str) -> None:
    (found,) = (one for one in judge(replace(GOOD, **changes)) if one.grade == Grade.FAIL)  # type: ignore[arg-type]
    assert found.name == name
    assert mend in found.mend


def test_a_pod_that_does_not_train_is_one_failure_with_its_message() -> None:
    (found,) = judge(replace(GOOD, scheme="", message="no plane connects the roles of this pod"))
    assert (found.grade, found.measured) == (Grade.FAIL, "no plane connects the roles of this pod")


def test_what_was_not_tried_is_not_graded() -> None:
    findings = judge(replace(GOOD, worker_killed=False, leader_killed=False))
    assert [finding.name for finding in findings] == ["cuda", "cuda, worker's device"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_every_specification_is_valid_and_requests_no_more_gpus_than_the_case_needs(case, gpus: int) -> None:  # type: ignore[no-untyped-def]
    if not gpus and not case.scheme_without:
        return
    spec = specification(**spec_of(case, gpus))
    assert spec.pod.gpus == min(gpus, case.gpus)


def test_every_plane_has_a_case() -> None:
    assert {case.plane for case in CASES} == set(PLANES)


@pytest.mark.parametrize(
    ("found", "grade", "measured"),
    [
        (LaunchedTrial("group", "group", "group", 900.0), Grade.PASS, "group, 900 steps/s"),
        (LaunchedTrial("cuda", "shared", "cuda", 900.0), Grade.FAIL, "shared"),
        (LaunchedTrial("cuda", "", "cuda", message="no plane connects the roles"), Grade.FAIL, "no plane connects"),
        (LaunchedTrial("cuda", "", "cuda", refused="pod.gpus = 2: a node has 1"), Grade.ABSENT, "a node has 1"),
    ],
)
def test_a_pod_that_a_launcher_started_must_be_on_its_plane(found: LaunchedTrial, grade: Grade, measured: str) -> None:
    finding = next(judge_launched(found))
    assert finding.grade == grade
    assert measured in finding.measured


HERE = LaunchedTrial(
    *("cuda", "cuda", "cuda", 900.0),
    **{"here": True, "device": "cuda:0", "expected_device": "cuda", "separate": True},
    **{"continued_seconds": 2.0, "replaced_seconds": 9.0},
)


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({}, []),
        ({"device": "cpu"}, ["worker's device"]),
        ({"device": ""}, ["worker's device"]),
        ({"continued_seconds": None}, ["worker killed"]),
        ({"replaced_seconds": None}, ["leader killed"]),
    ],
)
def test_each_defect_of_a_launched_pod_is_the_only_failure(changes: dict[str, object], failed: list[str]) -> None:
    findings = list(judge_launched(replace(HERE, **changes)))  # type: ignore[arg-type]
    assert len(findings) == 4
    assert [one.name.partition(": ")[2] for one in findings if one.grade == Grade.FAIL] == failed


def test_nothing_is_said_of_processes_on_another_host() -> None:
    findings = list(judge_launched(replace(HERE, here=False)))
    assert [finding.grade for finding in findings] == [Grade.PASS, Grade.ABSENT]
    assert "launcher process" in findings[1].mend


@pytest.mark.parametrize(
    "line",
    [
        '{"device": "cuda:0", "event": "environments open"}',
        "2026-11-24T00:55:11Z [info     ] environments open              device=cuda:0 lanes=4 pod_id=p1",
    ],
)
def test_the_device_of_a_launched_pod_is_read_from_its_log(tmp_path: Path, line: str) -> None:
    folder, log = tmp_path / "podrace-1" / "pods" / "p1", tmp_path / "p1.log"
    folder.mkdir(parents=True)
    log.write_text(f'first line\n{line}\n{{"event": "other", "device": "cpu"}}\n')
    (folder / "pod.json").write_text(json.dumps({"log_path": str(log)}))
    assert pod_folder("p1", tmp_path) == folder
    assert pod_folder("p2", tmp_path) is None
    assert logged_device(folder) == "cuda:0"


def test_without_an_orchestrator_no_launcher_was_examined() -> None:
    (finding,) = planes.launched(Bench(Path("unused")))
    assert (finding.grade, finding.name) == (Grade.ABSENT, "through the launcher in use")
    assert "--orchestrator" in finding.mend


class Mesh:
    """Plays the client of an orchestrator whose pod trains on a plane, or whose tournament fails."""

    def __init__(self, plane: str = "", *, refusal: str = "") -> None:
        self.plane, self.refusal = plane, refusal
        self.calls, self.specs = list[str](), list[TournamentSpec]()

    async def __aenter__(self) -> "Mesh":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def create_tournament(self, spec: TournamentSpec) -> Tournament:
        self.specs.append(spec)
        if self.refusal:
            raise InvalidArgument(self.refusal)
        return Tournament(tournament_id="t1")

    async def list_pods(self, tournament_id: str) -> list[orchestrator_pb.Pod]:
        if not self.plane:
            return []
        return [orchestrator_pb.Pod(progress=orchestrator_pb.Progress(plane=self.plane, steps_per_second=7.0))]

    async def get_tournament(self, tournament_id: str) -> Tournament:
        return Tournament(state=TOURNAMENT_STATE_FAILED)

    async def list_events(self, tournament_id: str) -> list[orchestrator_pb.Event]:
        return [orchestrator_pb.Event(message="started"), orchestrator_pb.Event(message="no plane connects the roles")]

    async def cancel_tournament(self, tournament_id: str, reason: str) -> None:
        self.calls.append("cancel")
        if not self.plane:
            raise FailedPrecondition("it has ended")

    async def delete_tournament(self, tournament_id: str) -> None:
        self.calls.append("delete")


@pytest.mark.parametrize(
    ("mesh", "expected", "calls"),
    [
        (Mesh("shared"), LaunchedTrial("shared", "shared", "shared", 7.0), ["cancel", "delete"]),
        (Mesh(), LaunchedTrial("shared", "", "shared", message="no plane connects the roles"), ["cancel", "delete"]),
        (Mesh(refusal="not here"), LaunchedTrial("shared", "", "shared", refused="not here"), []),
    ],
)
async def test_the_tournament_of_a_launcher_is_deleted_afterwards(
    monkeypatch: pytest.MonkeyPatch, mesh: Mesh, expected: LaunchedTrial, calls: list[str]
) -> None:
    monkeypatch.setattr(planes, "Client", lambda address: mesh)
    (case,) = (case for case in CASES if case.name == "shared")
    assert await measure_launched(case, 0, "orchestrator:1") == expected
    assert mesh.calls == calls
    (spec,) = mesh.specs
    assert (spec.pod.plane, spec.pool.maximum_pods) == ("shared", 1)
    assert spec.objective.wall_clock_duration.seconds == 2 * planes.LAUNCH_SECONDS + planes.RESTART_SECONDS
