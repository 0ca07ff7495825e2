"""The command `podrace delete` on a fake mesh."""

import signal
from typing import Any

import click
import pytest

from podrace.orchestrator.v1 import orchestrator_pb2 as pb

NAME = "cartpole-abc123"


def asked(known: Any) -> list[str]:
    return [request.tournament_id for request in known.asked(pb.DeleteTournamentRequest)]


def test_the_named_tournament_is_deleted(type_: Any, mesh: Any, known: Any) -> None:
    answer = type_("delete", "cartpole", "--yes", "--orchestrator", mesh.address)
    assert (answer.code, answer.out) == (0, f"deleted {NAME}\n")
    assert asked(known) == [NAME]
    assert type_("ls", "--orchestrator", mesh.address, "--json").json == []


def test_json_is_one_value_and_asks_nothing(type_: Any, mesh: Any, known: Any) -> None:
    answer = type_("delete", "latest", "--json", "--orchestrator", mesh.address)
    assert (answer.code, asked(known)) == (2, [])
    assert "add --yes" in answer.err
    answer = type_("delete", "latest", "--json", "--yes", "--orchestrator", mesh.address)
    assert answer.json == {"tournament_id": NAME, "deleted": True}


@pytest.mark.parametrize(("consent", "code"), [(True, 0), (False, 130)])
def test_it_is_deleted_only_with_consent(
    type_: Any, mesh: Any, known: Any, monkeypatch: pytest.MonkeyPatch, consent: bool, code: int
) -> None:
    questions: list[str] = []

    def confirm(question: str, *, abort: bool, err: bool) -> None:
        questions.append(question)
        if not consent:
            raise click.Abort

    monkeypatch.setattr(click, "confirm", confirm)
    assert type_("delete", "latest", "--orchestrator", mesh.address).code == code
    assert questions == [f"Delete {NAME} with the checkpoints of 3 agents?"]
    assert asked(known) == ([NAME] if consent else [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("arguments", [("delete", "latest"), ("prune", "--all")])
def test_a_signal_at_the_prompt_ends_the_command_and_nothing_is_deleted(
    type_: Any,
    mesh: Any,
    known: Any,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    arguments: tuple[str, ...],
) -> None:
    def interrupted(prompt: str) -> str:
        signal.raise_signal(number)
        return "y"

    monkeypatch.setattr(click.termui, "visible_prompt_func", interrupted)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert type_(*arguments, "--orchestrator", mesh.address).code == 130
    assert asked(known) == []
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


def test_the_refusal_of_the_orchestrator_is_reported_in_one_line(type_: Any, mesh: Any, known: Any) -> None:
    known.undeletable = {NAME}
    answer = type_("delete", "latest", "--yes", "--orchestrator", mesh.address)
    assert (answer.code, answer.err) == (1, f"error: {NAME} has not ended\n")


def test_an_unknown_tournament_is_a_wrong_request(type_: Any, mesh: Any, known: Any) -> None:
    answer = type_("delete", "nosuch", "--yes", "--orchestrator", mesh.address)
    assert (answer.code, asked(known)) == (2, [])
