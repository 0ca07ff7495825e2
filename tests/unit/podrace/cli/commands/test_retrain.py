from typing import Any

import pytest

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part
from podrace.cli.commands import retrain
from podrace.cli.commands.retrain import Comparison, compare, reservations
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def manifest(steps: int, **digests: str) -> Manifest:
    parts = [Part(name=name, digest=digest) for name, digest in digests.items()]
    return Manifest(environment_steps=steps, parts=parts)


def test_each_recorded_file_is_held_against_the_one_of_the_same_step() -> None:
    recorded = [manifest(200, policy="p2", learner="l2"), manifest(100, policy="p1")]
    again = [manifest(100, policy="p1"), manifest(150, policy="p2"), manifest(200, policy="p2", learner="other")]
    found = compare(recorded, again)
    assert found == [
        Comparison(100, "policy", "p1", "p1"),
        Comparison(200, "policy", "p2", "p2"),
        Comparison(200, "learner", "l2", "other"),
    ]
    assert [entry.same for entry in found] == [True, True, False]


def test_a_file_that_was_not_published_again_is_not_the_same() -> None:
    (entry,) = compare([manifest(100, policy="p1")], [manifest(200, policy="p1")])
    assert (entry.again, entry.same) == ("", False)


def test_what_stands_against_equal_files_is_said_and_nothing_where_they_are_promised() -> None:
    spec = TournamentSpec(synchronous=True)
    target = Manifest(lease_epoch=1, versions={"torch": "2.11.0", "python": "3.11.7"})
    assert list(reservations(target, {"torch": "2.11.0", "python": "3.11.7"}, spec)) == []
    target.lease_epoch = 3
    spec.synchronous = False
    spec.pod.learners = 2
    spec.assignment.duration.FromSeconds(60)
    assert list(reservations(target, {"torch": "2.12.0", "numpy": "2.1.0", "python": "3.11.7"}, spec)) == [
        "it was handed out 3 times: after a pause new episodes begin",
        "numpy was not there and is 2.1.0",
        "torch was 2.11.0 and is 2.12.0",
        "assignment.duration: how far an agent comes depends on how fast its pod is",
        "pod.learners: who takes part in a fusion round depends on how fast each is",
        "synchronous = false: the same files are promised for synchronous tournaments only",
    ]


@pytest.mark.parametrize("others", [["--replay"], ["--agent", "a1"], ["--svg", "tree.svg"]])
def test_retraining_takes_one_agent_and_nothing_else(type_: Any, mesh: Any, others: list[str]) -> None:
    answer = type_("lineage", "latest-a0", "--retrain", *others, "--orchestrator", mesh.address)
    assert answer.code != 0
    assert "--retrain takes AGENT alone" in answer.err


def test_retraining_a_whole_tournament_is_refused(type_: Any, mesh: Any) -> None:
    answer = type_("lineage", "latest", "--retrain", "--orchestrator", mesh.address)
    assert answer.code != 0
    assert "name an agent, for instance latest-a0" in answer.err


def test_a_mesh_elsewhere_needs_its_store_named(type_: Any, mesh: Any) -> None:
    answer = type_("lineage", "latest-a0", "--retrain", "--orchestrator", mesh.address)
    assert answer.code != 0
    assert "name the store of its mesh with --store" in answer.err


def test_an_agent_whose_checkpoints_were_collected_is_said_so(type_: Any, mesh: Any, tmp_path: Any) -> None:
    (tmp_path / "store").mkdir()
    store = str(tmp_path / "store")
    answer = type_("lineage", "latest-a0", "--retrain", "--orchestrator", mesh.address, "--store", store)
    assert answer.code != 0
    assert "checkpoints is kept any more: there is nothing to compare with" in answer.err
    nobody = type_("lineage", "latest-a9", "--retrain", "--orchestrator", mesh.address, "--store", store)
    assert "a9: was never scored" in nobody.err


@pytest.mark.parametrize(("digest", "code", "word"), [("p1", 0, "1 file, the same"), ("other", 1, "0 of 1 the same")])
def test_the_exit_code_says_whether_all_files_are_the_same(
    type_: Any, mesh: Any, tmp_path: Any, monkeypatch: Any, digest: str, code: int, word: str
) -> None:
    recorded = manifest(100, policy="p1")
    recorded.lease_epoch = 2
    monkeypatch.setattr(retrain, "_read_manifests", lambda uri, digests: {"d": recorded})

    async def run(uri: str, target: str, *, debug: bool) -> dict[str, Any]:
        files = [{"environment_steps": "100", "parts": [{"name": "policy", "digest": digest}]}]
        return {"outcome": "finished", "message": "", "versions": {}, "manifests": files}

    monkeypatch.setattr(retrain, "_run", run)
    command = ("lineage", "latest-a0", "--retrain", "--orchestrator", mesh.address, "--store", str(tmp_path))
    answer = type_(*command)
    assert answer.code == code
    assert word in answer.out
    assert ("it was handed out 2 times" in answer.out) == bool(code)
    told = type_(*command, "--json").json
    assert (told["same"], told["files"][0]["again"]) == (not code, digest)
