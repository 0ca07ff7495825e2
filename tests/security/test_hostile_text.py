r"""Text of other processes reaches no terminal, log, table or file with its control characters.

A pod's message with `\x1b]0;...` could once rename the window of the reader, and one with a line feed could forge
a line of a log or a row of a table.
"""

import csv
import io
import json
import tomllib

import pytest

from orchestrator.launchers.kubernetes.event_recorder import event_of
from podrace.cli.curve.output import COLUMNS, csv_text
from podrace.cli.terminal import output
from podrace.errors import FieldViolation
from podrace.field_bounds import violations
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.printable import printable, quoted
from podrace.specification.files import to_toml, toml_literal
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

HOSTILE = "\x1b]0;renamed\x07\x9b2J\x00\u202egnp.exe\u2028forged\r\nline\x7f"
CONTROL = set(HOSTILE) - set(printable(HOSTILE))


def clean(text: str, kept: str = "\n") -> bool:
    """Whether a text has none of the hostile characters."""
    return not (set(text) - set(kept)) & CONTROL


def test_the_printer_escapes_all_of_it():
    assert clean(printable(HOSTILE), kept="")
    assert printable("déjà vu 🏁") == "déjà vu 🏁"


def test_toml_escapes_it_and_reads_back_the_same():
    text = f"key = {toml_literal(HOSTILE)}\nrace = {toml_literal('🏁 é')}\n"
    assert clean(text)
    assert tomllib.loads(text) == {"key": HOSTILE, "race": "🏁 é"}


def test_a_specification_with_it_is_written_without_it():
    spec = TournamentSpec()
    spec.environment.id = HOSTILE
    spec.environment.options[HOSTILE] = HOSTILE
    text = to_toml(spec)
    assert clean(text)
    assert tomllib.loads(text)["environment"]["options"] == {HOSTILE: HOSTILE}


def test_quotes_are_those_of_json():
    assert json.loads(quoted(HOSTILE)) == HOSTILE


class Point:
    """A row of a learning curve."""

    def values(self) -> dict[str, object]:
        return dict.fromkeys(COLUMNS, 1.0) | {COLUMNS[0]: HOSTILE}


def test_a_cell_of_a_csv_file_stays_one_line():
    text = csv_text([Point()])  # type: ignore[list-item]
    assert clean(text)
    assert len(text.splitlines()) == 2
    assert next(csv.DictReader(io.StringIO(text)))[COLUMNS[0]] == printable(HOSTILE)


def test_an_event_of_kubernetes_is_reported_in_one_line():
    owner = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "n", "uid": "u"}}
    assert clean(event_of("pod_started", HOSTILE, owner, "default")["message"], kept="")


def test_a_refusal_repeats_it_escaped():
    request = pb.GetTournamentRequest(tournament_id=HOSTILE)
    assert clean(" ".join(map(str, violations(request))), kept="")
    assert clean(str(FieldViolation("a", printable(HOSTILE))), kept="")


@pytest.mark.parametrize("write", [output.show, output.notify])
def test_the_command_writes_it_escaped_on_one_line(write, capsys: pytest.CaptureFixture[str]):
    write(HOSTILE)
    printed = capsys.readouterr()
    assert clean(printed.out + printed.err)
    assert (printed.out + printed.err).count("\n") == 1


def test_json_for_programs_escapes_it(capsys: pytest.CaptureFixture[str]):
    output.show_json({"reason": HOSTILE})
    printed = capsys.readouterr().out
    assert clean(printed)
    assert json.loads(printed) == {"reason": HOSTILE}
