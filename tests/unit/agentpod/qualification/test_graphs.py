from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from agentpod.qualification import graphs
from agentpod.qualification.graphs import UNKNOWN_NODES, Captured, judge, measure, waits_of
from podrace.qualification.findings import Grade

GOOD = Captured("cartpole", "cuda:1", True, 120, "", 1e-3, 1e-4)


def test_a_captured_simulator_that_equals_the_eager_one_passes() -> None:
    assert {finding.grade for finding in judge(GOOD)} == {Grade.PASS}


@pytest.mark.parametrize(
    ("changes", "name", "grade"),
    [
        ({"equal": False}, "cartpole, cuda:1", Grade.FAIL),
        ({"nodes": 0}, "cartpole, cuda:1, nodes", Grade.FAIL),
        ({"nodes": UNKNOWN_NODES}, "cartpole, cuda:1, nodes", Grade.ABSENT),
        ({"synchronizes": "called a synchronizing CUDA operation"}, "cartpole, cuda:1, waits", Grade.FAIL),
        ({"captured_seconds": 9e-4}, "cartpole, cuda:1, speed", Grade.SLOW),
    ],
)
def test_each_defect_is_the_only_line_that_does_not_pass(changes: dict[str, object], name: str, grade: Grade) -> None:
    (found,) = (one for one in judge(replace(GOOD, **changes)) if one.grade != Grade.PASS)  # type: ignore[arg-type]
    assert (found.name, found.grade) == (name, grade)
    assert found.remedy


def test_both_simulators_step_equally_on_the_processor() -> None:
    found = measure("cartpole", "cpu")
    assert (found.equal, found.synchronizes) == (True, "")
    assert min(found.eager_seconds, found.captured_seconds) > 0


@pytest.mark.long
@pytest.mark.parametrize(("measure", "name"), [(graphs.measure_rollout, "cartpole"), (graphs.measure_update, "ppo")])
def test_captured_rollouts_and_updates_equal_eager_ones_on_the_processor(
    measure: Callable[[str, str], Captured], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measure(name, "cpu")
    assert (found.equal, found.synchronizes) == (True, None)
    assert min(found.eager_seconds, found.captured_seconds) > 0
    monkeypatch.setattr(graphs, "record_operations", lambda function, generators, device: (lambda: None, function()))
    assert not measure(name, "cpu").equal


def test_what_was_never_captured_has_no_nodes() -> None:
    assert graphs.CountingGraph().nodes() == 0


def test_a_simulator_that_replays_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(function, generators, device):  # type: ignore[no-untyped-def]
        return lambda: None, function()

    monkeypatch.setattr(graphs, "replayed_by_calling", empty)
    assert not measure("cartpole", "cpu").equal


def test_a_wait_is_reported_and_the_mode_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[object] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def waits() -> None:
        raise RuntimeError("called a synchronizing CUDA operation\nmore")

    assert waits_of(waits, "cuda:0") == "called a synchronizing CUDA operation"
    assert modes == [0, "error", 0]
    assert waits_of(lambda: None, "cuda:0") == ""
