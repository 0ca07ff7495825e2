"""Continuous training as a user runs it: in the background, killed, resumed, stopped."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from homes import Home, wait_for

from podrace.cli.continuous import process
from podrace.cli.continuous.journal import read_journal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SPEC = """
name = "tiny"
seed = 1
[environment]
id = "stocks"
count = 8
[environment.options]
path = "PRICES"
split = "train"
train_end = "2020-01-31"
validation_end = "2020-02-10"
episode_days = 4
[algorithms.ppo.hyperparameters]
horizon = 32
minibatch_size = 128
hidden_sizes = [16]
[objective]
environment_steps = 4000
[pool]
maximum_pods = 1
[assignment]
environment_steps = 2048
[evaluation]
episodes = 8
every_environment_steps = 2048
share = 1.0
[evaluation.options]
split = "validation"
[evolution]
initial_agents = 2
[champion]
reevaluate_episodes = 8
"""


@pytest.fixture
def folder(home: Home) -> Iterator[Path]:
    """Folder of the training. A process that a failed test left running is killed."""
    path = home.path / "continuous" / "tiny"
    yield path
    left = process.running(path)
    if left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(left.pid, signal.SIGKILL)


def synthesize(home: Home, prices: Path, seed: int) -> None:
    """Replaces the prices atomically."""
    incoming = prices.with_name("incoming.npz")
    arguments = "--symbols", "3", "--days", "30", "--bar-minutes", "65", "--seed", str(seed)
    synthesis = home.start("data", "synthesize", "--output", str(incoming), *arguments, with_home=False)
    assert synthesis.wait(60) == 0
    incoming.replace(prices)


def test_each_version_is_trained_on_once_from_the_champion_despite_kills_and_stops(home: Home, folder: Path) -> None:
    prices = home.path.parent / "prices.npz"
    spec = home.path.parent / "tiny.toml"
    spec.write_text(SPEC.replace("PRICES", str(prices)))
    start = "continuous", "start", str(spec), "--watch", str(prices), "--poll", "0.2s"

    def decided(count: int) -> bool:
        state = read_journal(folder)
        return state is not None and len(state.history) == count

    synthesize(home, prices, seed=1)
    begun = home.published(*start)
    assert (begun["name"], Path(begun["folder"])) == ("tiny", folder)
    code, _, err = home.run(*start)
    assert code == 1
    assert f"continuous tiny is running (pid {begun['pid']})" in err
    wait_for(lambda: decided(1), 120, what="the first champion")
    wait_for(lambda: not home.left_behind(), what="the end of the mesh between versions")

    synthesize(home, prices, seed=2)
    wait_for(home.roles, what="pods of the second version")
    os.kill(begun["pid"], signal.SIGKILL)
    wait_for(lambda: process.running(folder) is None)
    cut = home.json("continuous", "status", "tiny")
    assert (cut["state"], cut["pid"]) == ("not running", None)
    again = home.json(*start)
    assert again["pid"] != begun["pid"]
    wait_for(home.roles, what="pods of the resumed tournament")
    stopped = home.json("continuous", "stop")
    assert stopped["work"]["tournament_id"] == cut["work"]["tournament_id"]
    assert not home.left_behind()
    home.json(*start)
    wait_for(lambda: decided(2), 120, what="the verdict on the second version")

    status = home.json("continuous", "status", "tiny")
    first, second = status["history"]
    assert second["tournament_id"] == cut["work"]["tournament_id"]
    assert [first["verdict"], first["challenger"]["agent_id"]] == ["first", second["incumbent"]["agent_id"]]
    assert second["verdict"] in ("replaced", "kept")
    assert (second["verdict"] == "replaced") == (second["difference"] > second["standard_error"])
    winner = second["challenger" if second["verdict"] == "replaced" else "incumbent"]
    assert status["champion"] == winner
    assert status["champion_version"] == second["digest"]
    tournaments = {row["tournament_id"] for row in home.json("ls")}
    assert tournaments == {first["tournament_id"], second["tournament_id"]}, "neither was started twice"
    lineage = home.json("lineage", f"{second['tournament_id']}-a0")
    assert [agent["agent_id"] for agent in lineage][:2] == [
        f"{second['tournament_id']}-a0",
        first["challenger"]["agent_id"],
    ]
    code, out, err = home.run("lineage", second["tournament_id"], "--replay")
    assert code == 0, out + err

    assert home.run("continuous", "stop")[1] == "continuous tiny is stopped\n"
    assert process.running(folder) is None
    assert not home.left_behind()
