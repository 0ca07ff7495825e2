import json
import os
from pathlib import Path

import pytest

from agentpod.qualification import tournament
from agentpod.qualification.bench import Bench
from agentpod.qualification.tournament import GpusByPod, Raced, judge, read_pods, run, shared_gpus, specification_text
from podrace.gpus import Gpu
from podrace.qualification.findings import Grade

APART = {"p1": ("GPU-1",), "p2": ("GPU-2",)}


def grades(*polls: GpusByPod, wanted: int = 2, code: int | None = 0) -> list[Grade]:
    return [finding.grade for finding in judge(Raced(("GPU-1", "GPU-2"), wanted, polls, code))]


def test_a_pod_on_each_gpu_passes_also_when_pods_follow_each_other() -> None:
    assert grades({}, APART, {"p2": ("GPU-2",)}, {"p2": ("GPU-2",), "p3": ("GPU-1",)}) == [Grade.PASS, Grade.PASS]


def test_two_pods_on_one_gpu_at_the_same_time_fail() -> None:
    poll = {"p1": ("GPU-1",), "p2": ("GPU-1",)}
    assert grades(poll) == [Grade.PASS, Grade.FAIL]
    assert shared_gpus([APART, poll]) == {"GPU-1": ["p1", "p2"]}


@pytest.mark.parametrize("gpus", [("GPU-9",), ()])
def test_a_pod_on_another_gpu_or_on_none_fails(gpus: tuple[str, ...]) -> None:
    assert grades({"p1": ("GPU-1",), "p2": gpus}) == [Grade.PASS, Grade.FAIL]


def test_too_few_pods_and_a_command_that_fails_are_failures() -> None:
    assert grades({"p1": ("GPU-1",)})[0] == Grade.FAIL
    assert grades(APART, code=1)[0] == Grade.FAIL
    assert grades(APART, code=None)[0] == Grade.FAIL


def test_more_pods_than_gpus_are_requested() -> None:
    gpus = tuple(Gpu(f"GPU-{number}", "H100", number, 80, 79) for number in range(2))
    assert "maximum_pods = 3" in specification_text(Bench(Path("/f"), gpus=gpus))
    assert "maximum_pods = 2" in specification_text(Bench(Path("/f")))


def test_pods_whose_leader_runs_are_read(tmp_path: Path) -> None:
    for name, pid in (("here", os.getpid()), ("gone", 2**22 + 1)):
        (tmp_path / name).mkdir()
        content = {"pod_id": name, "gpus": ["GPU-1"], "roles": {"learner": {"pid": pid}}}
        (tmp_path / name / "pod.json").write_text(json.dumps(content))
    (tmp_path / "half").mkdir()
    (tmp_path / "half/pod.json").write_text("{")
    assert read_pods(tmp_path) == {"here": ("GPU-1",)}


def test_an_image_without_the_services_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tournament.importlib.util, "find_spec", lambda name: None)
    (found,) = run(Bench(tmp_path))
    assert (found.grade, found.measured) == (Grade.ABSENT, "no orchestrator and no leaderboard here")
