"""After a kill of any process at any time the tournament continues, and no accepted candidate is lost."""

import os
import signal
import subprocess

import pytest
from homes import wait_for

pytestmark = pytest.mark.e2e


def kill_and_wait(home, tournament: str, name: str) -> None:
    """Kills one process, then waits until there are new candidates."""
    before = wait_for(lambda: home.candidates(tournament))
    os.kill(pid_of(home, name), signal.SIGKILL)

    def continues() -> bool:
        now = home.candidates(tournament)
        lost = {candidate.candidate_id for candidate in before} - {candidate.candidate_id for candidate in now}
        return bool(now) and not lost and len(now) >= len(before) + 3

    wait_for(continues, what=f"further candidates after the {name} was killed")


def pid_of(home, name: str) -> int:
    if name in ("orchestrator", "leaderboard", "fork server"):
        return home.service(name)
    return wait_for(lambda: next((roles[name] for roles in home.roles().values() if name in roles), 0))


@pytest.mark.parametrize(
    ("layout", "cores", "learners", "victims"),
    [
        (
            "separate",
            2,
            1,
            ["worker-0", "evaluator", "learner", "orchestrator", "leaderboard", "fork server", "worker-0"],
        ),
        ("fused", 1, 1, ["learner", "orchestrator", "leaderboard", "fork server", "learner"]),
        ("fused", 2, 2, ["learner-1", "learner", "learner-1"]),
    ],
)
def test_killing_any_process_neither_stops_the_tournament_nor_loses_candidates(home, layout, cores, learners, victims):
    pod = f'layout = "{layout}"\ncores = {cores}\nlearners = {learners}'
    spec = home.spec('wall_clock_duration = "100s"', pod=pod, pool="maximum_pods = 1")
    training = home.start("train", str(spec), "--json")
    tournament = wait_for(home.tournament_id)
    wait_for(lambda: len(home.candidates(tournament)) >= 2)
    for victim in victims:
        kill_and_wait(home, tournament, victim)
        assert training.poll() is None
    acknowledged = {candidate.candidate_id for candidate in home.candidates(tournament)}
    training.send_signal(signal.SIGINT)
    _, err = training.communicate(timeout=60)
    assert training.returncode == 130, err
    assert "Traceback" not in err
    assert not home.left_behind()
    kept = home.json("show", tournament)
    assert kept["state"] == "CANCELLED"
    assert len(acknowledged) >= 2 + 3 * len(victims)


def test_ctrl_c_keeps_the_results_and_resume_continues(home):
    spec = home.spec("environment_steps = 50000")
    training = home.start("train", str(spec))
    tournament = wait_for(home.tournament_id)
    wait_for(lambda: len(home.candidates(tournament)) >= 3)
    training.send_signal(signal.SIGINT)
    _, err = training.communicate(timeout=60)
    assert training.returncode == 130
    assert f"podrace train --resume {tournament}" in err
    assert not home.left_behind()
    stopped = home.json("show", tournament)
    assert stopped["state"] == "CANCELLED"
    before = {agent["agent_id"] for agent in home.json("lineage", tournament)}
    resumed = home.json("train", "--resume", tournament)
    assert resumed["state"] == "COMPLETED"
    assert resumed["tournament_id"] == tournament
    assert resumed["total_environment_steps"] >= 50_000
    after = {agent["agent_id"] for agent in home.json("lineage", tournament)}
    assert before < after
    code, _, err = home.run("train", "--resume", tournament)
    assert code != 0
    assert "objective" in err or "complete" in err.lower()


def test_the_mesh_of_a_killed_command_stops_and_its_tournament_can_be_resumed(home):
    spec = home.spec("environment_steps = 20000")
    training = home.start("train", str(spec))
    tournament = wait_for(home.tournament_id)
    wait_for(lambda: len(home.candidates(tournament)) >= 2)
    training.kill()
    training.communicate()
    wait_for(lambda: not home.processes(), 60)
    assert home.json("train", "--resume", tournament)["state"] == "COMPLETED"
    assert not home.left_behind()


def test_a_second_training_on_the_same_home_is_refused_in_one_line(home):
    spec = home.spec('wall_clock_duration = "100s"', sleeps=True)
    training = home.start("train", str(spec))
    wait_for(home.tournament_id)
    code, _, err = home.run("train", str(spec))
    assert code != 0
    assert "--home" in err
    assert "Traceback" not in err
    # Queries join the running mesh.
    assert home.json("ls")[0]["state"] == "RUNNING"
    training.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        training.communicate(timeout=0.01)
    training.communicate(timeout=60)
    assert not home.left_behind()
