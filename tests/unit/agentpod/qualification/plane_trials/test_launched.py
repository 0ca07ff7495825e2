from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agentpod.qualification.bench import Bench
from agentpod.qualification.plane_trials import launched
from agentpod.qualification.plane_trials.cases import CASES
from agentpod.qualification.plane_trials.launched import LaunchedTrial, judge, measure, run
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.orchestrator.v1 import orchestrator_pb2 as orchestrator_pb
from podrace.qualification.findings import Grade
from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_FAILED, Tournament, TournamentSpec


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
    finding = next(judge(found))
    assert finding.grade == grade
    assert measured in finding.measured


HERE = LaunchedTrial(
    *("cuda", "cuda", "cuda", 900.0),
    **{"launcher": "docker", "device": "cuda:0", "expected_device": "cuda", "separate": True},
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
    findings = list(judge(replace(HERE, **changes)))  # type: ignore[arg-type]
    assert len(findings) == 4
    assert [one.name.partition(": ")[2] for one in findings if one.grade == Grade.FAIL] == failed


def test_a_pod_that_cannot_be_reached_is_not_graded() -> None:
    findings = list(judge(replace(HERE, launcher="")))
    assert [finding.grade for finding in findings] == [Grade.PASS, Grade.ABSENT]
    assert "DOCKER_HOST or KUBECONFIG" in findings[1].remedy


def test_the_name_of_the_launcher_is_in_every_line() -> None:
    assert all("through the launcher docker" in one.name for one in judge(HERE))


@pytest.mark.parametrize(
    ("restarts", "what"), [(True, "training continued within 60 s"), (False, "another pod trained within 180 s")]
)
def test_what_must_follow_the_loss_of_a_worker_depends_on_the_launcher(restarts: bool, what: str) -> None:
    (found,) = (one for one in judge(replace(HERE, restarts_workers=restarts)) if "worker killed" in one.name)
    assert found.expected == what


def test_without_an_orchestrator_no_launcher_was_examined() -> None:
    (finding,) = run(Bench(Path("unused")))
    assert (finding.grade, finding.name) == (Grade.ABSENT, "through the launcher in use")
    assert "--orchestrator" in finding.remedy


class Mesh:
    """Plays the client of an orchestrator whose pod trains on a plane, or whose tournament fails."""

    def __init__(self, plane: str = "", *, refusal: str = "") -> None:
        self.plane, self.refusal = plane, refusal
        self.calls, self.specs = list[str](), list[TournamentSpec]()
        self.deaths = self.steps = 0

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
        self.steps += 1
        progress = orchestrator_pb.Progress(plane=self.plane, steps_per_second=7.0, environment_steps=self.steps)
        return [orchestrator_pb.Pod(pod_id=f"p{self.deaths}", tournament_id="t1", progress=progress)]

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
    monkeypatch.setattr(launched, "Client", lambda address: mesh)
    (case,) = (case for case in CASES if case.name == "shared")
    assert await measure(case, 0, "orchestrator:1") == expected
    assert mesh.calls == calls
    (spec,) = mesh.specs
    assert (spec.pod.plane, spec.pool.maximum_pods) == ("shared", 1)
    assert spec.objective.wall_clock_duration.seconds == 3 * launched.LAUNCH_SECONDS


@dataclass
class Reached:
    """A pod on a launcher."""

    mesh: Mesh
    restarts_workers: bool
    launcher: str = "docker"

    def log(self) -> str:
        return '{"event": "environments open", "device": "cpu"}'

    def leader(self) -> object:
        return self.mesh.calls.count("learner") + 1

    def worker(self) -> object:
        return len(self.mesh.calls)

    def kill(self, role: str) -> None:
        self.mesh.calls.append(role)
        if role == "learner" or not self.restarts_workers:
            self.mesh.deaths += 1


@pytest.mark.parametrize("restarts", [True, False])
async def test_both_sides_of_a_pod_that_is_reached_are_killed(monkeypatch: pytest.MonkeyPatch, restarts: bool) -> None:
    mesh = Mesh("shared")
    monkeypatch.setattr(launched, "Client", lambda address: mesh)
    monkeypatch.setattr(launched, "reached", lambda pod_id: Reached(mesh, restarts))
    (case,) = (case for case in CASES if case.name == "shared")
    found = await measure(case, 0, "orchestrator:1")
    assert mesh.calls == ["worker-0", "learner", "cancel", "delete"]
    assert (found.launcher, found.device, found.restarts_workers) == ("docker", "cpu", restarts)
    assert None not in (found.continued_seconds, found.replaced_seconds)
    assert {finding.grade for finding in judge(found)} == {Grade.PASS}


async def test_a_pod_of_the_same_id_replaces_one_whose_leader_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Job(Reached):
        def kill(self, role: str) -> None:
            self.mesh.calls.append(role)

    mesh = Mesh("shared")
    monkeypatch.setattr(launched, "Client", lambda address: mesh)
    monkeypatch.setattr(launched, "reached", lambda pod_id: Job(mesh, restarts_workers=True))
    (case,) = (case for case in CASES if case.name == "memory")
    found = await measure(case, 0, "orchestrator:1")
    assert mesh.calls == ["learner", "cancel", "delete"]
    assert found.replaced_seconds is not None
