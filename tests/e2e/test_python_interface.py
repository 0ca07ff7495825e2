"""The Python interface on an embedded mesh: training, reading, stopping, acting, and what is left behind."""

import os
import signal
import subprocess
import sys

import gymnasium
import pytest
from homes import REPOSITORY, wait_for

import podrace
from podrace.errors import DeadlineExceeded, NotFound

pytestmark = pytest.mark.e2e

OBJECTIVE = "environment_steps = 12000"
FOREVER = "environment_steps = 1000000000"


def episode_returns(policy, episodes: int) -> list[float]:
    environment = gymnasium.make("CartPole-v1")
    returns = []
    for seed in range(episodes):
        observation, _ = environment.reset(seed=seed)
        policy.reset()
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = environment.step(policy.act(observation))
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


@pytest.mark.timeout(400)
def test_cartpole_is_trained_to_475_and_its_champion_acts(home):
    overrides = {"evaluation.snapshot_period": "2s"}
    example = REPOSITORY / "examples/cartpole.toml"
    tournament = podrace.train(example, overrides, home=home.path, progress=False)
    assert tournament.status().state == "completed"
    champion = tournament.champion()
    assert champion.score >= 475
    board = tournament.candidates()
    assert [one.rank for one in board] == list(range(1, len(board) + 1))
    assert champion.candidate_id in {one.candidate_id for one in tournament.candidates(all_submissions=True)}
    assert champion.members[0].hyperparameters["horizon"] == 32
    assert {one.agent_id for one in board} <= {one.agent_id for one in tournament.agents()}
    assert "pod_started" in {one.kind for one in tournament.events()}

    curve = tournament.curve(episodes=4)
    assert {one.curve for one in curve} == {"champion"}
    assert [one.seconds for one in curve] == sorted(one.seconds for one in curve)
    assert curve == tournament.curve(episodes=4), "results are kept"
    pytest.importorskip("pandas")
    assert curve.to_frame()["mean"].tolist() == [one.mean for one in curve]

    policy = tournament.load_policy()
    returns = episode_returns(policy, 8)
    assert sum(returns) / len(returns) >= 475
    other = tournament.load_policy(board[-1].candidate_id[:16])
    assert other.members[0].manifest_digest == board[-1].candidate_id
    with podrace.open_home(home.path) as again:
        assert again.address == tournament.mesh.address
    assert tournament.status().state == "completed", "its mesh still runs"
    tournament.mesh.close()
    assert not home.left_behind()


@pytest.mark.timeout(300)
async def test_a_tournament_is_stopped_and_resumed_with_asyncio(home):
    async with podrace.aio.open_home(home.path) as mesh:
        tournament = await mesh.train(home.spec(FOREVER, pool="maximum_pods = 1"))
        with pytest.raises(DeadlineExceeded, match="is still running"):
            await tournament.wait(0.5)
        with pytest.raises(NotFound, match="snapshot_period"):
            await tournament.curve()
        stopped = await tournament.stop("enough")
        assert (stopped.state, stopped.reason) == ("cancelled", "enough")
        assert (await tournament.wait()).state == "cancelled"
        assert (await tournament.resume()).state == "running"
        await tournament.stop()
        assert [one.state for one in await mesh.tournaments()] == ["cancelled"]
    assert not home.left_behind()


@pytest.mark.timeout(300)
async def test_a_tournament_can_be_trained_in_one_block(home):
    async with podrace.aio.train(home.spec(OBJECTIVE), {"pool.maximum_pods": 1}, home=home.path) as tournament:
        assert (await tournament.wait()).state == "completed"
        assert (await tournament.champion()).agent_id in {one.agent_id for one in await tournament.agents()}
    assert not home.left_behind()


SCRIPT = """
import signal, sys, podrace
# A shell starts background jobs with interrupts ignored, and Python keeps that.
signal.signal(signal.SIGINT, signal.default_int_handler)
tournament = podrace.train(sys.argv[1], home=sys.argv[2], wait=sys.argv[3] == "wait", progress=True)
print("returned", tournament.status().state)
"""


def script(home, objective: str, wait: str) -> subprocess.Popen:
    spec = home.spec(objective, pool="maximum_pods = 1")
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(spec), str(home.path), wait],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    home.started.append(process)
    return process


@pytest.mark.timeout(300)
def test_an_interrupt_stops_the_tournament_and_everything_of_the_mesh(home):
    process = script(home, FOREVER, "wait")
    name = wait_for(home.tournament_id, 60, what="a pod")
    wait_for(home.roles, 60, what="the roles of a pod")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode in (1, -signal.SIGINT)
    assert "KeyboardInterrupt" in err
    assert "returned" not in out
    assert not home.left_behind()
    (listed,) = home.json("ls")
    assert (listed["tournament_id"], listed["state"]) == (name, "CANCELLED")
    assert listed["reason"] == podrace.aio.STOP_REASON


@pytest.mark.timeout(300)
def test_a_script_that_does_not_wait_leaves_nothing_behind(home):
    process = script(home, FOREVER, "do not wait")
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "returned running\n"), err
    assert not home.left_behind()
