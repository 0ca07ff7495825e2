"""`podrace conform` says in one line what is wrong, and answers with its exit code."""

import json
import socket
from pathlib import Path

import foreign_plugins
import json_schemas
import pytest
from third_party import served

from podrace.cli import main
from podrace.evolution.v1.evolution_pb2_grpc import add_EvolutionServiceServicer_to_server as add


def test_a_sound_plugin_ends_with_0_and_prints_nothing_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with served(add, foreign_plugins.Plugin()) as address:
        assert main(["conform", address, "--as", "evolution"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{address} conforms to the contract of a generator or updater: 15 kept; ")


def test_each_broken_promise_is_one_line_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with served(add, foreign_plugins.OutsideRange()) as address:
        assert main(["conform", address, "--as", "evolution"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("BROKEN within-range: fresh.hyperparameters.learning_rate: value 0.004 ")
    assert '"A searched one must lie in the range or among the choices of the specification, ' in line
    assert line.endswith("; limit each value to `low` and `high`, or to `choices`, of the specification in the request")


def test_json_has_the_published_shape(capsys: pytest.CaptureFixture[str]) -> None:
    with served(add, foreign_plugins.UnknownName()) as address:
        assert main(["conform", address, "--as", "evolution", "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    json_schemas.check(["conform"], value)
    assert value["counts"]["BROKEN"] == 1
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
def test_a_wrong_option_is_one_line(
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


def test_an_address_where_nothing_listens_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("podrace.conformance.calls.CONNECT_SECONDS", 0.2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    assert main(["conform", address, "--as", "simulator"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {address}: no connection within 0.2 s; start the service first")
