"""The database of the orchestrator is lost while pods train: the tournament continues, and no agent is restarted."""

import os
import signal

import pytest
from homes import wait_for

pytestmark = pytest.mark.e2e


def kinds_of_events(home, tournament: str) -> set[str]:
    return {event["kind"] for event in home.json("events", tournament)}


def test_a_tournament_continues_from_a_backup_after_its_orchestrator_lost_its_database(home, monkeypatch):
    monkeypatch.setenv("PODRACE_ORCHESTRATOR__BACKUP__PERIOD_SECONDS", "0.5")
    spec = home.spec("environment_steps = 1000000000", sleeps=True, pool="maximum_pods = 1")
    training = home.start("train", str(spec), "--json")
    tournament = wait_for(home.tournament_id)
    wait_for(lambda: len(home.candidates(tournament)) >= 2)
    wait_for(lambda: home.json("backup", "--list"), what="a backup")
    before, pods = home.candidates(tournament), home.roles()

    service = home.service("orchestrator")
    os.kill(service, signal.SIGSTOP)
    for file in home.path.glob("orchestrator.sqlite*"):
        file.unlink()
    os.kill(service, signal.SIGKILL)
    wait_for(lambda: len(home.candidates(tournament)) >= len(before) + 3, what="further candidates")
    assert home.roles() == pods, "the pod still runs"
    # At its end the tournament may drain the agent.
    assert not {"pod_died", "pod_killed", "agent_drained", "pod_unknown"} & kinds_of_events(home, tournament)
    # Met at once.
    home.json("update", "latest", "--set", "objective.environment_steps=4096")

    _, err = training.communicate(timeout=100)
    assert training.returncode == 0, err
    assert home.json("show", tournament)["state"] == "COMPLETED"
    events = home.json("events", tournament)
    assigned = [event["agent_id"] for event in events if event["kind"] == "agent_assigned"]
    assert len(assigned) == len(set(assigned)), "no agent is started a second time"
    assert not home.left_behind()


def test_a_home_can_be_restored_from_its_backup(home):
    spec = home.spec("environment_steps = 8000", pool="maximum_pods = 1")
    trained = home.json("train", str(spec))
    tournament = trained["tournament_id"]
    assert {one["service"] for one in home.published("backup")} == {"orchestrator", "leaderboard"}
    standings = home.json("standings", tournament)
    for file in home.path.glob("*.sqlite*"):
        file.unlink()
    code, _, err = home.run("show", tournament)
    assert code != 0
    assert len(home.published("restore")) == 2
    assert home.json("standings", tournament) == standings
    code, _, err = home.run("restore")
    assert code != 0
    assert "--replace" in err
    assert len(home.json("restore", "--replace")) == 2
    assert home.json("show", tournament)["state"] == "COMPLETED"
    oldest = home.json("backup", "--list")[-1]
    (again,) = home.json("restore", "--replace", "--at", oldest["manifest_digest"])
    assert again["service"] == oldest["service"]


def test_a_running_mesh_is_backed_up_on_demand(home):
    spec = home.spec('wall_clock_duration = "100s"', sleeps=True, pool="maximum_pods = 1")
    training = home.start("train", str(spec), "--json")
    tournament = wait_for(home.tournament_id)
    wait_for(lambda: len(home.candidates(tournament)) >= 2)
    known = {candidate.candidate_id for candidate in home.candidates(tournament)}
    made = home.published("backup")
    assert [one["service"] for one in made] == ["orchestrator", "leaderboard"]
    assert {one["manifest_digest"] for one in made} == {one["manifest_digest"] for one in home.json("backup", "--list")}
    training.send_signal(signal.SIGINT)
    training.communicate(timeout=60)
    home.json("restore", "--replace")
    assert home.json("show", tournament)["state"] in ("RUNNING", "CANCELLED")
    standings = home.json("standings", tournament)
    assert standings
    assert {one["candidate_id"] for one in standings} & known


def test_a_tournament_continues_after_both_services_lost_their_databases_without_a_backup(home, monkeypatch):
    for service in ("ORCHESTRATOR", "LEADERBOARD"):
        monkeypatch.setenv(f"PODRACE_{service}__BACKUP__REBUILD", "true")
    spec = home.spec("environment_steps = 1000000000", sleeps=True, pool="maximum_pods = 1")
    training = home.start("train", str(spec), "--json")
    tournament = wait_for(home.tournament_id)
    wait_for(lambda: len(home.candidates(tournament)) >= 6)
    pods = home.roles()
    services = [home.service(name) for name in ("orchestrator", "leaderboard")]
    for service in services:
        os.kill(service, signal.SIGSTOP)
    for file in home.path.glob("*.sqlite*"):
        file.unlink()
    for service in services:
        os.kill(service, signal.SIGKILL)
    board = wait_for(lambda: home.candidates(tournament), what="a rebuilt board")
    wait_for(lambda: len(home.candidates(tournament)) >= len(board) + 3, what="further candidates")
    assert home.roles() == pods, "the pod still runs"
    # Met at once.
    home.json("update", "latest", "--set", "objective.environment_steps=4096")

    _, err = training.communicate(timeout=100)
    assert training.returncode == 0, err
    assert home.json("show", tournament)["state"] == "COMPLETED"
    kinds = kinds_of_events(home, tournament)
    assert {"tournament_rebuilt", "tournament_resumed", "pod_adopted"} <= kinds
    assert not {"pod_died", "pod_killed", "pod_unknown"} & kinds
    assert not home.left_behind()
