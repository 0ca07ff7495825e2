"""The pods of running tournaments, from a fake mesh."""

from typing import Any

import pytest

from podrace.cli.pods.top import Running, as_json, render
from podrace.cli.terminal.output import console
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


def test_only_running_tournaments_are_listed(type_: Any, mesh: Any, known: Any, canned: Any) -> None:
    assert type_("top", "--orchestrator", mesh.address).out == "no tournament is running\n"
    known.tournaments = [canned.tournament("cartpole-abc123", "RUNNING"), canned.tournament("old-1")]
    known.pods[0].progress.steps_per_second = 1500.0
    known.pods[0].progress.policy_lag = 1.5
    known.pods[0].progress.plane = "shared"
    answer = type_("top", "--orchestrator", mesh.address)
    assert answer.code == 0
    assert "cartpole-abc123  RUNNING  40.0k steps/s  1 pod" in answer.out
    assert "old-1" not in answer.out
    (row,) = [line.split() for line in answer.out.splitlines() if line.strip().startswith("p1")]
    assert row == ["p1", "training", "a2", "123k", "1.5k", "1.50", "shared"]


def test_json_has_the_same_with_the_reason_why_a_pod_waits(type_: Any, mesh: Any, known: Any, canned: Any) -> None:
    known.tournaments = [canned.tournament("cartpole-abc123", "RUNNING")]
    known.pods[0].progress.storage_fault = "the store is full"
    known.pods[0].progress.gpus.add(uuid="GPU-a", utilization_percent=63)
    (found,) = type_("top", "latest", "--json", "--orchestrator", mesh.address).json
    assert (found["tournament_id"], found["state"]) == ("cartpole-abc123", "RUNNING")
    assert found["pods"][0]["storage_fault"] == "the store is full"
    assert found["pods"][0]["environment_steps"] == 123_456


def test_a_pod_that_waits_and_a_paused_tournament_say_why(capsys: pytest.CaptureFixture[str], canned: Any) -> None:
    tournament = canned.tournament("t", "RUNNING")
    tournament.pause_reason = "the disk is full"
    pod = pb.Pod(pod_id="t-p3")
    pod.progress.storage_fault = "no answer\x1b"
    console().print(render([Running(tournament, [pod])]))
    out = capsys.readouterr().out
    assert "paused: the disk is full" in out
    assert "p3 waits: no answer\\x1b" in out
    assert as_json(Running(tournament, []))["pause_reason"] == "the disk is full"


def test_the_use_of_each_gpu_is_shown(capsys: pytest.CaptureFixture[str], canned: Any) -> None:
    pod = pb.Pod(pod_id="t-p3")
    pod.progress.gpus.add(uuid="GPU-a", utilization_percent=63, memory_used_bytes=41 << 30, memory_total_bytes=80 << 30)
    pod.progress.gpus.add(uuid="MIG-b")
    running = Running(canned.tournament("t", "RUNNING"), [pod])
    console().print(render([running]))
    out = capsys.readouterr().out
    assert "p3 GPU-a: 63 %, 41.0 of 80.0 GiB" in out
    assert "p3 MIG-b: use not reported" in out
    first, second = as_json(running)["pods"][0]["gpus"]
    assert (first["uuid"], first["utilization_percent"], first["memory_used_bytes"]) == ("GPU-a", 63, 41 << 30)
    assert (second["utilization_percent"], second["memory_total_bytes"]) == (None, None)


def test_shared_experience_is_shown_with_its_age(capsys: pytest.CaptureFixture[str], canned: Any) -> None:
    pod = pb.Pod(pod_id="t-p3")
    received = pod.progress.shared_experience
    received.environment_steps, received.agents, received.left_out = 12_300, 3, "no pieces"
    running = Running(canned.tournament("t", "RUNNING"), [pod])
    console().print(render([running]))
    assert "p3 also learns from 12.3k steps of 3 other agents; left out: no pieces" in capsys.readouterr().out
    assert as_json(running)["pods"][0]["foreign_age_seconds"] is None
    received.memory_steps, received.age_seconds, received.left_out = 9_000, 3_725.0, ""
    console().print(render([running]))
    expected = "p3 also learns from 12.3k steps of 3 other agents; keeps 9.0k, on average 1:02:05 old"
    assert expected in capsys.readouterr().out
    found = as_json(running)["pods"][0]
    names = ("foreign_steps", "foreign_memory_steps", "foreign_age_seconds", "left_out")
    assert [found[name] for name in names] == [12_300, 9_000, 3_725.0, None]
