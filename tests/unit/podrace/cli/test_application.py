import subprocess
import sys
from typing import Any

import pytest

from podrace.cli.application import COMMANDS
from podrace.specification.catalog import ALGORITHMS, SIMULATORS, STRATEGIES

HEAVY = ("torch", "numpy", "matplotlib", "orchestrator", "leaderboard", "agentpod", "simulators")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(type_: Any, command: str) -> None:
    answer = type_(command, "--help")
    assert answer.code == 0
    assert answer.out.startswith(f"Usage: podrace {command}")
    # The line in the list of commands agrees with the help of the command.
    line = COMMANDS[command][1].split(";")[0].split(":")[0].rstrip(".")
    assert line.split(",")[0] in " ".join(answer.out.split())
    assert "--json" in answer.out
    # A marker of click that reaches the reader: it has no effect in a raw string.
    assert "\\b" not in answer.out


def test_help_lists_every_command(type_: Any) -> None:
    answer = type_("--help")
    assert answer.code == 0
    listed = [line.split()[0] for line in answer.out.partition("Commands:")[2].splitlines() if line.strip()]
    assert [word for word in listed if word in COMMANDS] == list(COMMANDS)


@pytest.mark.parametrize("group", ["continuous", "data", "store"])
def test_no_line_of_help_is_truncated(type_: Any, group: str) -> None:
    lines = type_(group, "--help").out.partition("Commands:")[2].splitlines()
    assert [line for line in lines if line.rstrip().endswith("...")] == []


def test_help_imports_no_slow_module() -> None:
    script = (
        "import sys; from podrace.cli import main; main(['--help']); "
        "print([name for name in ('grpc', 'rich', 'google.protobuf', 'asyncio') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


@pytest.mark.long
def test_the_command_imports_neither_torch_nor_a_service() -> None:
    modules = {module for module, _ in COMMANDS.values()} | {"podrace.cli.session", "podrace.mesh.embedded"}
    script = f"import sys, importlib; [importlib.import_module(name) for name in {sorted(modules)}]; " + (
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_python_m_runs_the_same_command() -> None:
    ran = subprocess.run([sys.executable, "-m", "podrace.cli", "version"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("podrace ")


def test_algorithms_come_with_hyperparameters_defaults_and_ranges(type_: Any) -> None:
    listed = type_("algorithms", "--json").json
    assert [entry["name"] for entry in listed] == list(ALGORITHMS)
    ppo = {
        entry["name"]: entry for entry in next(entry for entry in listed if entry["name"] == "ppo")["hyperparameters"]
    }
    assert ppo["learning_rate"]["default"] == ALGORITHMS["ppo"].hyperparameters["learning_rate"].default
    assert ppo["learning_rate"]["scale"] == "log"
    assert ppo["learning_rate"]["search"][0] < ppo["learning_rate"]["search"][1]
    assert ppo["hidden_sizes"]["default"] == [64, 64]
    assert ppo["activation"]["choices"] == ["tanh", "relu", "elu"]


def test_hyperparameters_of_one_algorithm_are_shown(type_: Any) -> None:
    assert "learning_rate" in type_("algorithms", "ppo").out
    assert type_("algorithms", "ppoo").err == "error: algorithms: unknown algorithm 'ppoo'; did you mean 'ppo'?\n"


def test_simulators_and_strategies_are_those_of_the_catalog(type_: Any) -> None:
    assert [entry["id"] for entry in type_("simulators", "--json").json] == list(SIMULATORS)
    assert [entry["name"] for entry in type_("strategies", "--json").json] == list(STRATEGIES)
    for name in SIMULATORS:
        assert name in type_("simulators").out
    for name in STRATEGIES:
        assert name in type_("strategies").out


def test_settings_of_one_strategy_are_shown(type_: Any) -> None:
    assert "rung_factor" in type_("strategies", "asha").out
    settings = {each["name"]: each for each in type_("strategies", "asha", "--json").json[0]["settings"]}
    assert settings["rung_factor"] == {
        "name": "rung_factor",
        "default": 3.0,
        "low": 1.5,
        "high": 100.0,
        "choices": None,
    }
    assert type_("strategies", "ash").err == "error: strategies: unknown strategy 'ash'; did you mean 'asha'?\n"


@pytest.mark.parametrize("command", ["algorithms", "simulators", "strategies", "version"])
def test_a_list_of_a_server_that_does_not_answer_is_an_error(type_: Any, command: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("podrace.client.discovery.ANSWER_SECONDS", 0.2)
    answer = type_(command, "--orchestrator", "unix:/nowhere/o.sock")
    assert answer.code == 1
    assert answer.err.startswith("error: unix:/nowhere/o.sock does not answer")
    assert len(answer.err.splitlines()) == 1


def test_version_is_shown(type_: Any) -> None:
    from podrace import __version__

    assert type_("version", "--json").json["podrace"] == __version__
    assert __version__ in type_("version").out


def test_print_config_prints_without_starting_a_mesh(type_: Any, tmp_path: Any) -> None:
    (tmp_path / "spec.toml").write_text(
        '[environment]\nid = "CartPole-v1"\n[algorithms.ppo]\n[objective]\ntarget_return = 475\n'
    )
    answer = type_("train", "spec.toml", "--print-config", "--set", "seed=3")
    assert answer.code == 0
    assert "seed = 3" in answer.out.splitlines()
    assert type_("train", "spec.toml", "--print-config", "--json").json["objective"] == {"target_return": 475.0}
    assert not (tmp_path / "podrace-home").exists()


def test_a_closed_pipe_is_not_an_error() -> None:
    command = f"{sys.executable} -m podrace.cli algorithms ppo | head -1"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
