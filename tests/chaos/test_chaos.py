"""Faults one after the other lose no candidate, fail no agent, damage no checkpoint, and leave nothing behind."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import engine_target
import grpc
import pytest
from chaos import ChaosOptions, chaos, opened
from chaos_faults import CLASSES, FUSED_CLASSES, SECONDS, Fault, plan
from chaos_measures import (
    Cost,
    Happened,
    Interval,
    costs,
    goodput,
    held_share,
    missing_candidates,
    not_injected,
    restarts,
)
from embedded_target import EmbeddedTarget
from engine_target import FOLDERS, EngineTarget

from podrace.checkpoint_store.folder import FolderStore

LOST, RETURNED = "after the loss of a pod", "after a pod returned it"
PERIOD_SECONDS, LASTING_SECONDS = 7.0, 3.0


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_every_class_of_faults_within_two_minutes_loses_nothing(tmp_path: Path) -> None:
    classes = {f"{kind} {target}" for kind, target in CLASSES["embedded"]}
    options = ChaosOptions(
        seconds=len(classes) * PERIOD_SECONDS,
        period_seconds=PERIOD_SECONDS,
        lasting_seconds=LASTING_SECONDS,
        rate_seconds=10.0,
    )
    with opened("embedded", tmp_path, options) as (target, faults):
        found = chaos(target, options, faults)
    assert set(found["must_be_zero"].values()) == {0}, found
    assert found["pod_seconds_lost"].keys() | found["not_injected"].keys() == classes
    # A busy machine delays replacements, but pods hold agents most of the time (0.78 of it with a load of 11 on two
    # cores), and most of what they train meanwhile is not lost (0.77 of it).
    assert found["held"] > 0.5, found
    assert found["goodput"] > 0.5 * found["held"], found


def test_unfinished_writes_and_temporary_files_count_as_left_behind(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    target = EmbeddedTarget(tmp_path, temporary, None, learners=1)
    store = target.home.path / "store"
    FolderStore(store)
    assert target.left_behind(str(store)) == set()
    (store / "incoming/torn").touch()
    (temporary / "podrace-plugins-0").mkdir()
    assert target.left_behind(str(store)) == {f"{store}/incoming/torn", f"{temporary}/podrace-plugins-0"}


class CountedTarget(EngineTarget):
    """A mesh in containers that has one container and three unfinished uploads left."""

    name = "compose"

    def channel(self, service: str) -> grpc.Channel:
        raise NotImplementedError

    def labels(self, role: str) -> Sequence[str]:
        raise NotImplementedError

    def inject_own(self, fault: Fault) -> None:
        raise NotImplementedError

    def container(self, role: str) -> str:
        return role

    def objects(self) -> int:
        return 1

    def verify(self) -> Mapping[str, Any]:
        return {"unfinished_writes": 3, "damage": []}


def test_containers_uploads_and_folders_of_both_services_count_as_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        engine_target, "output", lambda *command: {"orchestrator": "2\n", "leaderboard": "5\n"}[command[2]]
    )
    assert CountedTarget().left_behind() == 1 + 3 + 2 + 5


def test_the_program_that_counts_folders_in_a_container_runs() -> None:
    answer = subprocess.run([sys.executable, "-c", FOLDERS], capture_output=True, text=True, check=True)
    assert int(answer.stdout) >= 0


def test_every_class_of_faults_has_a_duration() -> None:
    assert {kind for classes in (*CLASSES.values(), FUSED_CLASSES) for kind, _ in classes} == set(SECONDS)


@pytest.mark.parametrize("mesh", CLASSES)
def test_a_plan_depends_on_its_seed_alone_and_meets_every_class_of_faults(mesh: str) -> None:
    first = plan(1, 1800.0, 29.0, CLASSES[mesh])
    assert first == plan(1, 1800.0, 29.0, CLASSES[mesh]) != plan(2, 1800.0, 29.0, CLASSES[mesh])
    assert len(first) == 62
    classes = {f"{kind} {target}" for kind, target in CLASSES[mesh]}
    assert {fault.name for fault in first[: len(classes)]} == classes
    assert all(SECONDS[fault.kind][0] <= fault.seconds <= SECONDS[fault.kind][1] for fault in first)


def test_faults_that_have_a_duration_can_all_last_as_long_as_asked() -> None:
    drawn, lasting = (plan(1, 600.0, 29.0, CLASSES["embedded"], seconds) for seconds in (None, 300.0))
    assert [fault.name for fault in lasting] == [fault.name for fault in drawn]
    assert all(fault.seconds == (300.0 if SECONDS[fault.kind][1] else 0.0) for fault in lasting)


KILL, STOP = Fault(0.0, "kill", "learner", 0.0), Fault(10.0, "stop", "learner", 5.0)


def test_goodput_is_the_share_of_steps_that_were_not_lost() -> None:
    intervals = [Interval(KILL, 10.0, 800), Interval(STOP, 10.0, 600)]
    assert goodput(intervals, 100.0) == 0.7
    assert {name: cost.mean for name, cost in costs(intervals, 100.0, pods=2).items()} == {
        "kill learner": 4.0,
        "stop learner": 8.0,
    }


def test_faults_that_did_not_happen_are_counted_and_cost_nothing() -> None:
    intervals = [Interval(KILL, 10.0, 800), Interval(KILL, 10.0, 1000, injected=False)]
    assert goodput(intervals, 100.0) == 0.8
    assert {name: (cost.count, cost.mean) for name, cost in costs(intervals, 100.0, pods=1).items()} == {
        "kill learner": (1, 2.0)
    }
    assert not_injected(intervals) == {"kill learner": 1}
    assert goodput(intervals[1:], 100.0) is None


def test_a_cost_has_its_spread() -> None:
    intervals = [Interval(KILL, 10.0, steps) for steps in (900, 800, 700)]
    cost = costs(intervals, 100.0, pods=1)["kill learner"]
    assert cost == Cost(3, 2.0, pytest.approx(1 / 3**0.5), 1.0, 3.0)
    assert cost.rounded() == {"count": 3, "mean": 2.0, "standard_error": 0.6, "least": 1.0, "most": 3.0}
    assert costs(intervals[:1], 100.0, pods=1)["kill learner"].standard_error is None


def test_only_candidates_that_were_accepted_after_the_newest_backup_may_be_missing_when_a_database_was_lost() -> None:
    accepted = {"kept": 1.0, "before": 9.0, "between": 11.0, "after": 13.0}
    assert missing_candidates(accepted, {"kept"}, [(10.0, 12.0)]) == ({"before", "after"}, {"between"})
    assert missing_candidates(accepted, accepted, [(10.0, 12.0)]) == (set(), set())


def test_an_agent_is_held_from_its_assignment_to_the_end_of_the_assignment_or_of_its_pod() -> None:
    events = [
        Happened(0.0, "agent_assigned", "p0", "a0"),
        Happened(5.0, "agent_assigned", "p1", "a1"),
        Happened(8.0, "pod_died", "p0"),
        Happened(9.0, "agent_drained", "p1", "a1"),
        Happened(10.0, "agent_assigned", "p1", "a1"),
        Happened(12.0, "agent_assigned", "p2", "a0"),
    ]
    assert held_share(events, 0.0, 15.0, pods=2) == (8 + 4 + 5 + 3) / 30
    assert held_share(events, 8.0, 10.0, pods=2) == 1 / 4
    assert restarts(events) == {LOST: 1, RETURNED: 1}
    assert restarts(events, begin=11.0) == {LOST: 1, RETURNED: 0}
