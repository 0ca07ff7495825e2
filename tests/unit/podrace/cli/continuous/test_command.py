"""The commands `podrace continuous start`, `status` and `stop`."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from continuous_rig import Rig, champion_of, decided

from podrace.cli import session
from podrace.cli.continuous import process


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "REMOTE_SECONDS", 0.2)


def test_status_shows_the_state_and_json_contains_everything(rig: Rig, type_: Any) -> None:
    assert "there is no continuous training" in type_("continuous", "status", "--home", "home").out
    state = rig.keep(decided(1))
    text = type_("continuous", "status", "--home", "home").out
    for word in ("not running", str(rig.data), champion_of(state), "1.0 ± 1.0", "first", state.champion_version[:12]):
        assert word in text
    (listed,) = type_("continuous", "status", "--home", "home", "--json").json
    one = type_("continuous", "status", "race", "--home", "home", "--json").json
    assert one == listed
    assert (one["state"], one["pid"], one["champion"]["agent_id"]) == ("not running", None, champion_of(state))
    assert one["history"][0]["challenger"]["score"] == {"mean_return": 1.0, "standard_error": 1.0, "episodes": 64}
    arrived = datetime.fromisoformat(one["history"][0]["arrive_time"])
    assert arrived.timestamp() == pytest.approx(state.history[0].arrive_time, abs=0.001)


def test_stopping_a_training_that_is_not_running_succeeds(rig: Rig, type_: Any) -> None:
    assert type_("continuous", "stop", "--home", "home").code == 2
    rig.keep(decided(1))
    answer = type_("continuous", "stop", "--home", "home")
    assert (answer.code, answer.out) == (0, "continuous race is not running\n")
    assert type_("continuous", "stop", "--home", "home", "--json").json["name"] == "race"
    assert (
        "unknown continuous training 'rice'; did you mean 'race'?"
        in type_("continuous", "stop", "rice", "--home", "home").err
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["gone.toml", "--watch", "data"], "gone.toml: cannot be read"),
        (["race.toml", "--watch", "other"], "no option of environment"),
        (["race.toml", "--watch", "data", "--set", "environment.optoins.a=1"], "unknown key 'optoins'"),
        (["race.toml", "--watch", "data", "--poll", "soon"], "--poll soon: expected a duration"),
        (["race.toml", "--watch", "data", "--poll", "0s"], "--poll 0s: expected a duration"),
        (["race.toml", "--watch", "data", "--name", "a/b"], "--name a/b: expected"),
        (["race.toml", "--watch", "nowhere", "--set", 'environment.options.path="nowhere"'], "there is no such file"),
        (["race.toml", "--watch", "data", "--orchestrator", "unix:/nowhere"], "--orchestrator unix:/nowhere"),
    ],
)
@pytest.mark.parametrize("foreground", [True, False])
@pytest.mark.usefixtures("impatient")
def test_a_start_with_wrong_arguments_fails_immediately_with_one_line(
    rig: Rig, type_: Any, arguments: list[str], line: str, foreground: bool
) -> None:
    answer = type_("continuous", "start", *arguments, "--home", "home", *["--foreground"] * foreground)
    assert answer.code in (1, 2)
    assert line in answer.err
    assert len(answer.err.splitlines()) == 1
    assert not list(rig.folder.glob("home/continuous/*/*.json"))


@pytest.mark.long
def test_a_start_prints_its_process_which_stop_ends(rig: Rig, type_: Any) -> None:
    there = ("--home", "home", "--orchestrator", rig.mesh.address, "--json")
    answer = type_("continuous", "start", "race.toml", "--watch", "data", *there)
    assert answer.code == 0, answer.err
    begun = answer.json
    assert (begun["name"], process.running(Path(begun["folder"])).pid) == ("race", begun["pid"])  # type: ignore[union-attr]
    assert type_("continuous", "stop", "--home", "home").code == 0
    assert process.running(Path(begun["folder"])) is None


def test_a_start_on_other_data_fails_in_the_foreground(rig: Rig, type_: Any) -> None:
    rig.keep(decided(1))
    (rig.folder / "other").mkdir()
    answer = type_(
        "continuous",
        "start",
        "race.toml",
        "--watch",
        "other",
        "--set",
        "environment.options.path=other",
        "--home",
        "home",
    )
    assert answer.code == 1
    assert "choose another --name" in answer.err
    assert json.loads((rig.folder / "home/continuous/race/state.json").read_text())["reference"] == str(rig.data)
