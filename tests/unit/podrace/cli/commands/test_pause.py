from typing import Any

from podrace.orchestrator.v1 import orchestrator_pb2 as pb


def test_a_pause_carries_its_reason_and_says_that_the_tournament_is_paused(type_: Any, mesh: Any) -> None:
    answer = type_("pause", "latest", "--reason", "the node is needed", "--orchestrator", mesh.address)
    assert (answer.code, answer.out) == (0, "cartpole-abc123 is paused by alice: the node is needed\n")
    (request,) = mesh.known.asked(pb.PauseTournamentRequest)
    assert request.reason == "the node is needed"


def test_a_resumed_tournament_is_running(type_: Any, mesh: Any) -> None:
    type_("pause", "latest", "--orchestrator", mesh.address)
    answer = type_("resume", "latest", "--orchestrator", mesh.address)
    assert (answer.code, answer.out) == (0, "cartpole-abc123 is running\n")


def test_a_pause_has_a_form_for_programs(type_: Any, mesh: Any) -> None:
    answer = type_("pause", "latest", "--json", "--orchestrator", mesh.address)
    assert answer.json["pause_reason"].startswith("paused by alice")
    assert type_("resume", "latest", "--json", "--orchestrator", mesh.address).json["pause_reason"] is None
