"""Text of services cannot write control characters to a terminal, a log line or a page."""

from io import StringIO
from typing import Any

import pytest
from rich.text import Text

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.cli.results.backtest_html import backtest_page
from podrace.cli.terminal import output
from podrace.cli.views import family_svg
from podrace.cli.views.family import FamilyMember, lay_out
from podrace.cli.views.tables import plain_table
from podrace.printable import printable

EVIL = "p1\x1b[2J\nforged line\r\x9b31m\u202e"
SHOWN = "p1\\x1b[2J\\nforged line\\r\\x9b31m\\u202e"


def test_control_characters_are_shown_as_escape_sequences() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("Zürich ± 2.5 → a7") == "Zürich ± 2.5 → a7"


@pytest.fixture
def hostile(mesh: Any) -> Any:
    """A mesh whose texts contain terminal escape sequences and line feeds."""
    known = mesh.known
    known.tournaments[0].reason = EVIL
    known.tournaments[0].spec.environment.id = EVIL
    known.pods[0].pod_id, known.pods[0].progress.plane = EVIL, EVIL
    known.events[0].kind, known.events[0].message = EVIL, EVIL
    known.statistics[0].algorithm = known.statistics[0].left_draw_reason = EVIL
    for candidate in known.board:
        candidate.algorithm = EVIL
    known.differences = [EVIL]
    known.lineage = []
    return mesh


@pytest.mark.parametrize(
    "command",
    [
        ["ls"],
        ["show", "latest"],
        ["events", "latest"],
        ["standings", "latest"],
        ["lineage", "latest"],
        ["lineage", "latest", "--replay"],
        ["stop", "latest"],
    ],
)
def test_no_command_prints_control_characters_of_a_service(type_: Any, hostile: Any, command: list[str]) -> None:
    answer = type_(*command, "--orchestrator", hostile.address)
    for text in (answer.out, answer.err):
        assert not set(text) & set("\x1b\r\x9b\u202e")
        assert not any(line.startswith("forged line") for line in text.splitlines())


def test_names_of_tournaments_are_escaped_too(type_: Any, mesh: Any) -> None:
    mesh.known.tournaments[0].tournament_id = EVIL
    answer = type_("ls", "--orchestrator", mesh.address)
    assert SHOWN in answer.out
    listed = type_("ls", "--orchestrator", mesh.address, "--json").json
    assert listed[0]["tournament_id"] == EVIL


def test_errors_are_escaped(type_: Any, mesh: Any) -> None:
    mesh.known.evaluation_error = EVIL
    answer = type_("evaluate", "latest", "--orchestrator", mesh.address)
    assert answer.err == f"error: evaluation cartpole-abc123-e1 failed: {SHOWN}\n"


def test_progress_lines_are_escaped(type_: Any, mesh: Any, tmp_path: Any) -> None:
    (tmp_path / "spec.toml").write_text(
        '[environment]\nid = "CartPole-v1"\n[algorithms.ppo]\n[objective]\ntarget_return = 475\n'
    )
    mesh.known.end_state = "FAILED"
    mesh.known.on_watch = lambda: setattr(mesh.known.tournaments[0], "reason", EVIL)
    answer = type_("train", "spec.toml", "--orchestrator", mesh.address)
    assert answer.err.splitlines()[-1] == f"error: tournament cartpole-v1-abc123 failed: {SHOWN}"


def test_json_output_keeps_the_text_and_escapes_it_as_json(type_: Any, hostile: Any) -> None:
    answer = type_("events", "latest", "--orchestrator", hostile.address, "--json")
    assert answer.json[0]["message"] == EVIL
    assert "\x1b" not in answer.out


def test_the_console_escapes_text_that_a_renderable_has_not_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    output.show(Text("first\x1b[2J\nsecond"))
    assert stream.getvalue() == "first\\x1b[2J\nsecond\n"


def test_tables_escape_their_cells_and_titles(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    table = plain_table("pod", title=EVIL)
    table.add_row(EVIL)
    output.show(table)
    assert stream.getvalue().count(SHOWN) == 2


def test_drawings_and_pages_escape_their_text() -> None:
    member = FamilyMember(EVIL, EVIL, EVIL, reason=EVIL)
    members = {EVIL: member}
    evaluation = Evaluation(episodes=1)
    evaluation.traces["account_value"].values.extend([1.0, 2.0])
    evaluation.traces["attribution:" + EVIL].values.extend([1.0])
    for text in (family_svg.draw(members, lay_out(members, []), [], title=EVIL), backtest_page(EVIL, evaluation)):
        assert SHOWN in text
        assert not set(text) & set("\x1b\r\x9b\u202e")
