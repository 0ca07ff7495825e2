"""The command `podrace init`: options, questions and the file."""

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from podrace.specification.files import load


def test_without_a_terminal_defaults_are_used_and_the_file_can_be_resolved(type_: Any) -> None:
    answer = type_("init")
    assert answer.code == 0
    assert "podrace train cartpole.toml --check" in answer.out
    spec = load(Path("cartpole.toml"))
    assert (spec.environment.id, list(spec.algorithms), spec.objective.target_return) == ("cartpole", ["ppo"], 475.0)


def test_a_specification_can_be_written_from_options_alone(type_: Any) -> None:
    options = ["--environment", "gym:Ant-v5", "--algorithm", "sac", "--algorithm", "td3", "--duration", "2h"]
    options += ["--target", "none", "--pods", "3", "--name", "ant", "--option", "max_episode_steps=500"]
    assert type_("init", "specs.toml", *options, "--json").json == {"file": "specs.toml", "name": "ant"}
    spec = load(Path("specs.toml"))
    assert (spec.name, spec.pool.maximum_pods, sorted(spec.algorithms)) == ("ant", 3, ["sac", "td3"])
    assert not spec.objective.HasField("target_return")
    assert spec.environment.options["max_episode_steps"] == 500


@pytest.mark.parametrize("key", ["a b", "é", "a#", "[a]", 'say"so', "a.b c"])
def test_every_key_of_an_option_is_written_as_toml(type_: Any, key: str) -> None:
    assert type_("init", "specs.toml", "--option", f"{key}=1").code == 0
    *parents, last = key.split(".")
    assert json_format.MessageToDict(load(Path("specs.toml")).environment.options) == (
        {parents[0]: {last: 1}} if parents else {last: 1}
    )


def test_an_algorithm_that_is_named_twice_is_written_once(type_: Any) -> None:
    assert type_("init", "specs.toml", "--algorithm", "ppo", "--algorithm", "ppo").code == 0
    assert list(load(Path("specs.toml")).algorithms) == ["ppo"]


def test_the_name_of_the_file_stays_within_its_comments(type_: Any) -> None:
    assert type_("init", "a\nseed = 7.toml").code == 0
    assert load(Path("a\nseed = 7.toml")).seed == 1


def test_an_existing_file_is_replaced_only_by_force(type_: Any) -> None:
    Path("cartpole.toml").write_text("mine")
    answer = type_("init")
    assert (answer.code, Path("cartpole.toml").read_text()) == (1, "mine")
    assert "--force" in answer.err
    assert type_("init", "--force").code == 0
    assert load(Path("cartpole.toml")).name == "cartpole"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--target", "much"], "--target much: expected a number, or `none`"),
        (["--environment", "mujoco:Ant-v5", "--algorithm", "dqn"], "choose one of"),
        (["--target", "none", "--duration", "none"], "would never end"),
        (["--pods", "0"], "0 is not in the range"),
    ],
)
def test_a_wrong_choice_writes_no_file(type_: Any, options: list[str], error: str) -> None:
    answer = type_("init", *options)
    assert answer.code == 2
    assert error in answer.err
    assert list(Path().glob("*.toml")) == []


@pytest.mark.long
def test_on_a_terminal_what_no_option_states_is_asked(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "podrace.cli", "init", "--duration", "1m"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as command:
        os.close(theirs)
        os.write(ours, b"pendulum\nsac\n\n3\n")
        out, asked = command.communicate(timeout=60)
    os.close(ours)
    assert command.returncode == 0, asked
    assert out.startswith("wrote pendulum.toml")
    assert "Train for at most" not in asked
    spec = load(tmp_path / "pendulum.toml")
    assert (list(spec.algorithms), spec.objective.target_return, spec.pool.maximum_pods) == (["sac"], -200.0, 3)
