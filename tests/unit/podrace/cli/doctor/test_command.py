"""The command `podrace doctor`, on this machine."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from podrace.cli.doctor import gpu, survey
from podrace.cli.doctor.readings import PortReading, ServerReading
from podrace.gpus import Reading


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test is about the command; GPUs and ports of this machine are read in test_survey.py."""

    async def examine(*, debug: bool, read: Reading | None = None) -> list[Any]:
        return []

    monkeypatch.setattr(gpu, "examine", examine)
    monkeypatch.setattr(survey, "read_port", lambda service, port: PortReading(service, port, free=True))


def test_the_report_has_one_line_for_each_check_and_a_summary(type_: Any) -> None:
    answer = type_("doctor")
    assert answer.code == 0
    assert "ok       machine    cores" in answer.out
    assert "home       folder" in answer.out
    assert not Path("podrace-home").exists()


def test_json_is_one_value(type_: Any) -> None:
    report = type_("doctor", "--json").json
    assert report["healthy"] is True
    assert {each["area"] for each in report["diagnoses"]} >= {"machine", "packages", "home", "store", "ports"}


def test_an_error_has_a_remedy_and_exits_with_1(type_: Any) -> None:
    answer = type_("doctor", "--store", "s3://bucket")
    assert answer.code == 1
    line = next(index for index, line in enumerate(answer.out.splitlines()) if line.startswith("error    store"))
    assert "podrace store check" in answer.out.splitlines()[line + 1]
    assert "1 error" in answer.out.splitlines()[-1]


def test_a_named_orchestrator_is_asked_and_pods_are_expected_there(type_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_server(address: str) -> ServerReading:
        return ServerReading(address, "", "0.0.1", 0.0, "kubernetes")

    monkeypatch.setattr(survey, "read_server", read_server)
    report = type_("doctor", "--orchestrator", "h:1", "--json").json
    assert [each["severity"] for each in report["diagnoses"] if each["area"] == "server"] == ["ok", "warning", "ok"]
    assert not [each for each in report["diagnoses"] if each["area"] == "store"]


@pytest.mark.long
def test_the_process_of_the_command_imports_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from podrace.cli import main; main(['doctor', '--json']); "
        "print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ran.stdout.splitlines()[-1] == "[]"
