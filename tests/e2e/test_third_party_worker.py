"""A pod whose worker is a program of a third party, which knows the protos alone, trains CartPole to 475.

A worker that refuses ends the tournament with its reason.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
REPOSITORY = Path(__file__).parents[2]
CARTPOLE = REPOSITORY / "examples" / "cartpole.toml"


@pytest.fixture
def worker(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], str]]:
    program = getattr(request, "param", "examples/custom/worker_service.py")
    command = [sys.executable, str(REPOSITORY / program), "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        assert process.stdout
        yield process, f"grpc://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


def test_our_learner_and_evaluator_train_with_a_worker_of_a_third_party(home, worker):
    process, address = worker
    conform = [sys.executable, "-m", "podrace.cli", "conform", address.removeprefix("grpc://"), "--as", "worker"]
    examined = subprocess.run([*conform, "--environment", "cartpole"], capture_output=True, text=True, check=False)
    assert examined.returncode == 0, examined.stdout
    settings = [f'pod.worker="{address}"', "pool.maximum_pods=1", "name=mixed", 'objective.wall_clock_duration="10m"']
    trained = home.json("train", str(CARTPOLE), *(part for one in settings for part in ("--set", one)))
    assert trained["state"] == "COMPLETED", trained
    shown = home.json("show", trained["tournament_id"])
    assert shown["best_score"] >= 475.0
    assert shown["reason"].startswith("target return")
    assert process.poll() is None
    assert not home.left_behind()


@pytest.mark.parametrize("worker", ["tests/e2e/refusing_worker.py"], indirect=True)
def test_a_worker_that_refuses_fails_its_agents_after_three_attempts_and_then_the_tournament(home, worker):
    _, address = worker
    settings = [f'pod.worker="{address}"', "pool.maximum_pods=1", "name=refused"]
    code, _, err = home.run("train", str(CARTPOLE), *(part for one in settings for part in ("--set", one)))
    shown = home.json("show", "latest")
    said = f"pod.worker = '{address}': the disk is full (FAILED_PRECONDITION) (given back 3 times without a new step)"
    assert (code, shown["state"]) == (1, "FAILED"), err
    assert said in err
    assert shown["reason"] == f"3 agents failed in a row, the last one with: {said}"
    assert not home.left_behind()


def test_the_worker_class_of_a_user_trains_in_separate_pods(home):
    settings = ['pod.worker="python:own_workers:Counting"', "pod.layout=separate", "pool.maximum_pods=1"]
    spec = home.spec("environment_steps = 8192")
    trained = home.json("train", str(spec), *(part for one in settings for part in ("--set", one)))
    assert trained["state"] == "COMPLETED", trained
