from typing import Any

import pytest

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part
from podrace.cli.commands import retrain
from podrace.cli.commands.retrain import FileComparison, compare, reservations
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def manifest(steps: int, **digests: str) -> Manifest:
    parts = [Part(name=name, digest=digest) for name, digest in digests.items()]
    return Manifest(environment_steps=steps, parts=parts)


def test_each_recorded_file_is_compared_with_the_file_of_the_same_step() -> None:
    recorded = [manifest(200, policy="p2", learner="l2"), manifest(100, policy="p1")]
    again = [manifest(100, policy="p1"), manifest(150, policy="p2"), manifest(200, policy="p2", learner="other")]
    found = compare(recorded, again)
    assert found == [
        FileComparison(100, "policy", "p1", "p1"),
        FileComparison(200, "policy", "p2", "p2"),
        FileComparison(200, "learner", "l2", "other"),
    ]
    assert [entry.same for entry in found] == [True, True, False]


def test_a_file_that_was_not_published_again_differs() -> None:
    (entry,) = compare([manifest(100, policy="p1")], [manifest(200, policy="p1")])
    assert (entry.again, entry.same) == ("", False)


def test_reasons_for_differences_are_listed_and_none_for_a_reproducible_training() -> None:
    spec = TournamentSpec(synchronous=True)
    target = Manifest(lease_epoch=1, versions={"torch": "2.11.0", "python": "3.11.7"})
    assert list(reservations(target, {"torch": "2.11.0", "python": "3.11.7"}, spec)) == []
    target.lease_epoch = 3
    spec.synchronous = False
    spec.pod.learners = 2
    spec.assignment.duration.FromSeconds(60)
    assert list(reservations(target, {"torch": "2.12.0", "numpy": "2.1.0", "python": "3.11.7"}, spec)) == [
        "the agent was assigned 3 times: each time new episodes started",
        "numpy: the version was none and is now 2.1.0",
        "torch: the version was 2.11.0 and is now 2.12.0",
        "assignment.duration: the number of steps of an agent depends on the speed of its pod",
        "pod.learners: which learners take part in a fusion round depends on their speed",
        "synchronous = false: identical files are guaranteed only for synchronous tournaments",
    ]


@pytest.mark.parametrize("others", [["--replay"], ["--agent", "a1"], ["--svg", "tree.svg"]])
def test_retraining_takes_only_one_agent(type_: Any, mesh: Any, others: list[str]) -> None:
    answer = type_("lineage", "latest-a0", "--retrain", *others, "--orchestrator", mesh.address)
    assert answer.code != 0
    assert "--retrain takes only AGENT" in answer.err


def test_retraining_a_whole_tournament_is_refused(type_: Any, mesh: Any) -> None:
    answer = type_("lineage", "latest", "--retrain", "--orchestrator", mesh.address)
    assert answer.code != 0
    assert "name an agent, for instance latest-a0" in answer.err


def test_retraining_with_a_remote_mesh_needs_its_store(type_: Any, mesh: Any) -> None:
    answer = type_("lineage", "latest-a0", "--retrain", "--orchestrator", mesh.address)
    assert answer.code != 0
    assert "name the store of its mesh with --store" in answer.err


def test_an_agent_without_checkpoints_is_an_error(type_: Any, mesh: Any, tmp_path: Any) -> None:
    (tmp_path / "store").mkdir()
    store = str(tmp_path / "store")
    answer = type_("lineage", "latest-a0", "--retrain", "--orchestrator", mesh.address, "--store", store)
    assert answer.code != 0
    assert "there is no checkpoint to compare with: all of its 1 scored checkpoints were deleted" in answer.err
    unscored = type_("lineage", "latest-a9", "--retrain", "--orchestrator", mesh.address, "--store", store)
    assert "a9: there is no checkpoint to compare with: it was never scored" in unscored.err


@pytest.mark.parametrize(("digest", "code", "word"), [("p1", 0, "1 file, identical"), ("other", 1, "0 of 1 identical")])
def test_the_exit_code_is_0_if_all_files_are_identical(
    type_: Any, mesh: Any, tmp_path: Any, monkeypatch: Any, digest: str, code: int, word: str
) -> None:
    recorded = manifest(100, policy="p1")
    recorded.lease_epoch = 2
    monkeypatch.setattr(retrain, "_read_manifests", lambda uri, digests: {"d": recorded})

    async def run(uri: str, target: str, *, own: bool, debug: bool) -> dict[str, Any]:
        assert not own
        files = [{"environment_steps": "100", "parts": [{"name": "policy", "digest": digest}]}]
        return {"outcome": "finished", "message": "", "versions": {}, "manifests": files}

    monkeypatch.setattr(retrain, "_run", run)
    command = ("lineage", "latest-a0", "--retrain", "--orchestrator", mesh.address, "--store", str(tmp_path))
    answer = type_(*command)
    assert answer.code == code
    assert word in answer.out
    assert ("the agent was assigned 2 times" in answer.out) == bool(code)
    shown = type_(*command, "--json").json
    assert (shown["same"], shown["files"][0]["again"]) == (not code, digest)
