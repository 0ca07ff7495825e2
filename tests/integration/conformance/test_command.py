"""`podrace conform` says in one line what is wrong, and answers with its exit code."""

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import foreign_plugins
import json_schemas
import pytest
from third_party import served

from podrace.cli import main
from podrace.cli.conform.command import show_report
from podrace.conformance.examine import judge_of, run_parts
from podrace.errors import Unauthenticated
from podrace.evolution.v1.evolution_pb2_grpc import add_EvolutionServiceServicer_to_server as add


def test_a_sound_plugin_ends_with_0_and_prints_nothing_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with served(add, foreign_plugins.Plugin()) as address:
        assert main(["conform", address, "--as", "evolution"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{address} conforms to the contract of a generator or updater: 15 met, 1 untested; ")


def test_each_violated_requirement_is_reported_in_one_line_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with served(add, foreign_plugins.OutsideRange()) as address:
        assert main(["conform", address, "--as", "evolution"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("VIOLATED within-range: fresh.hyperparameters.learning_rate: value 0.004 ")
    assert '"A searched one must lie in the range or among the choices of the specification, ' in line
    assert line.endswith("; limit each value to `low` and `high`, or to `choices`, of the specification in the request")


def test_json_has_the_published_shape(capsys: pytest.CaptureFixture[str]) -> None:
    with served(add, foreign_plugins.UnknownName()) as address:
        assert main(["conform", address, "--as", "evolution", "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    json_schemas.check(["conform"], value)
    assert value["counts"]["VIOLATED"] == 1
    assert not value["conforms"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "ADDRESS = 'nowhere': expected host:port or unix:/path"),
        (["127.0.0.1:1", "--token-file", "missing"], "--token-file missing: No such file or directory"),
        (["127.0.0.1:1", "--token-file", "empty"], "--token-file empty: expected one token on one line"),
        (["127.0.0.1:1", "--observations", "3"], "--observations and --actions: state both or none"),
        (["127.0.0.1:1", "--spec", "missing.toml"], "missing.toml"),
    ],
)
def test_a_wrong_option_is_reported_in_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("\n")
    assert main(["conform", *arguments, "--as", "evaluator"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_an_address_where_nothing_listens_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("podrace.conformance.calls.CONNECT_SECONDS", 0.2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    assert main(["conform", address, "--as", "simulator"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {address}: no connection within 0.2 s; start the service first")
    assert main(["conform", address, "--as", "simulator", "--deadline", "0.1", "--seconds", "1"]) == 1
    assert f"{address}: no connection within 0.1 s" in capsys.readouterr().err


class Slow(foreign_plugins.Plugin):
    """Answers nothing until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def ProposeAgent(self, request: Any, context: Any) -> Any:
        self.released.wait(60.0)
        return super().ProposeAgent(request, context)


def test_an_examination_that_takes_too_long_ends_without_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    plugin = Slow()
    with served(add, plugin) as address:
        try:
            assert main(["conform", address, "--as", "evolution", "--seconds", "1", "--json"]) == 1
        finally:
            plugin.released.set()
    value = json.loads(capsys.readouterr().out)
    json_schemas.check(["conform"], value)
    late = "the 1 s of the examination were over; --seconds gives it more"
    assert value["unfinished"] == late
    assert not value["conforms"]
    # A service that is slow keeps its deadline until that has passed.
    assert value["counts"]["VIOLATED"] == 0
    assert late in {finding["problem"] for finding in value["findings"]}


async def test_what_was_found_before_the_time_was_over_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    judge = judge_of("worker")

    async def finds() -> None:
        judge.require("probe", False, "probe_sum is 1 instead of 2")

    async def waits() -> None:
        judge.expect("opens", True, "")
        await asyncio.Event().wait()

    report = await run_parts("worker", "host:1", judge, [finds, waits, finds], most_seconds=0.05)
    grades = {finding.requirement.name: finding.grade for finding in report.findings}
    assert (grades["probe"], grades["opens"], grades["deadline"]) == ("VIOLATED", "MET", "UNTESTED")
    assert not report.conforms
    show_report(report, everything=False)
    out, err = capsys.readouterr()
    assert out.startswith("VIOLATED probe: ")
    assert err.startswith("host:1 does not conform to the contract of a worker: 1 met, 1 violated, ")
    assert err.endswith(" s; the 0.05 s of the examination were over; --seconds gives it more\n")
    unbroken = await run_parts("worker", "host:1", judge_of("worker"), [waits], most_seconds=0.05)
    show_report(unbroken, everything=False)
    message = "host:1 was not examined completely, so it is not known to conform to the contract of a worker: "
    assert capsys.readouterr().err.startswith(message)


async def test_an_error_in_one_part_does_not_hide_what_the_others_find(capsys: pytest.CaptureFixture[str]) -> None:
    judge = judge_of("worker")

    async def fails() -> None:
        judge.expect("opens", True, "")
        raise KeyError("a field that nothing checks")

    async def finds() -> None:
        judge.require("probe", False, "probe_sum is 1 instead of 2")

    report = await run_parts("worker", "host:1", judge, [fails, finds, fails], most_seconds=5.0)
    grades = {finding.requirement.name: finding.grade for finding in report.findings}
    assert (grades["opens"], grades["probe"], grades["deadline"]) == ("MET", "VIOLATED", "UNTESTED")
    show_report(report, everything=False)
    assert "with KeyError: 'a field that nothing checks'" in capsys.readouterr().err
    unbroken = await run_parts("worker", "host:1", judge_of("worker"), [fails], most_seconds=5.0)
    assert not unbroken.conforms


async def test_a_service_that_does_not_accept_the_caller_is_not_examined() -> None:
    async def fails() -> None:
        raise Unauthenticated("the service answers UNAUTHENTICATED")

    with pytest.raises(Unauthenticated):
        await run_parts("worker", "host:1", judge_of("worker"), [fails], most_seconds=5.0)
