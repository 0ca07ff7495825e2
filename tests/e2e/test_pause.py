"""A paused tournament has no processes, survives a restart of the orchestrator, and continues when it is resumed."""

import os
import signal

import pytest
from homes import wait_for

pytestmark = pytest.mark.e2e


def test_a_paused_tournament_releases_its_pods_and_continues_after_a_restart(home):
    spec = home.spec("environment_steps = 16000", sleeps=True, pool="maximum_pods = 1")
    training = home.start("train", str(spec), "--json")
    tournament = wait_for(home.tournament_id)
    wait_for(lambda: home.candidates(tournament))
    paused = home.json("pause", tournament, "--reason", "the machine is needed")
    assert paused["pause_reason"].endswith(": the machine is needed")
    wait_for(lambda: not home.roles(), what="the exit of all pods")
    assert home.candidates(tournament)

    os.kill(home.service("orchestrator"), signal.SIGKILL)
    shown = wait_for(lambda: home.json("show", tournament), what="the next orchestrator")
    assert (shown["state"], shown["pause_reason"]) == ("RUNNING", paused["pause_reason"])
    assert not home.roles()

    assert home.json("resume", tournament)["pause_reason"] is None
    _, err = training.communicate(timeout=100)
    assert training.returncode == 0, err
    assert home.json("show", tournament)["state"] == "COMPLETED"
    kinds = [event["kind"] for event in home.json("events", tournament)]
    assert kinds.count("tournament_paused") == kinds.count("tournament_resumed") == 1
