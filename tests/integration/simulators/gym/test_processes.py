import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import psutil
import pytest
import torch

from podrace.errors import DeadlineExceeded, Internal, InvalidArgument, Unavailable
from simulators import Simulator, make
from simulators.gym import processes as gym_processes

REPOSITORY = Path(__file__).parents[4]

OWN_ENVIRONMENTS = """
import os, signal, sys, time
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Own(CartPoleEnv):
    def __init__(self, mode="sound"):
        super().__init__()
        self.mode, self.steps = mode, 0

    def step(self, action):
        self.steps += 1
        if self.mode == "raises" and self.steps == 4 and int(action):
            raise ZeroDivisionError("of all things")
        if self.mode == "dies" and self.steps == 4 and int(action):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mode == "hangs":
            time.sleep(600)
        return super().step(action)

    def close(self):
        print("closed", flush=True)

def imports_torch():
    if "torch" in sys.modules:
        raise ValueError("torch is imported")
    return CartPoleEnv()

gymnasium.register("Own-v0", Own, max_episode_steps=50)
gymnasium.register("Lean-v0", imports_torch)
"""

PARENT = """
import sys, torch, simulators
simulator = simulators.make("own_processes:Own-v0", 4, {"processes": 2, "mode": "hangs"}, seed=0)
print(*[child.process.pid for child in simulator._lanes._children], flush=True)
simulator.step(torch.zeros(4, dtype=torch.int64))
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "own_processes.py").write_text(OWN_ENVIRONMENTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_processes"
    for id in ("Own-v0", "Lean-v0"):
        gymnasium.registry.pop(id, None)
    sys.modules.pop("own_processes", None)


def pids(simulator: Simulator) -> list[int]:
    return [child.process.pid for child in simulator._lanes._children]  # type: ignore[attr-defined]


def zeros(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int64)


def step_times(steps: int, simulator: Simulator, action: torch.Tensor) -> None:
    for _ in range(steps):
        simulator.step(action)


@pytest.mark.parametrize("id", ["CartPole-v1", "gym:Pendulum-v1", "FrozenLake-v1", "Blackjack-v1", "Taxi-v4"])
def test_several_processes_give_the_same_numbers_as_one(id: str) -> None:
    masked = {"info_action_mask": True} if id == "Taxi-v4" else {}
    count, generator = 5, torch.Generator().manual_seed(0)
    alone = make(id, count, {"max_episode_steps": 15, **masked})
    divided = make(id, count, {"max_episode_steps": 15, "processes": 2, **masked})
    assert bool(alone.observation_space.entries) == (id in ("Blackjack-v1", "Taxi-v4"))
    assert divided.observation_space == alone.observation_space
    assert divided.action_space == alone.action_space
    ends = 0
    for seed in (3, 4):
        assert torch.equal(alone.reset(seed), divided.reset(seed))
        for _ in range(40):
            action = torch.rand((count, 1), generator=generator) * 2
            if alone.action_space.kind == "discrete":
                action = torch.randint(alone.action_space.n, (count,), generator=generator)
            one, other = alone.step(action), divided.step(action)
            for name in ("observation", "reward", "terminated", "truncated"):
                assert torch.equal(getattr(one, name), getattr(other, name)), name
            ended = one.terminated | one.truncated
            assert torch.equal(one.final_observation[ended], other.final_observation[ended])
            ends += int(ended.sum())
    assert ends >= count
    divided.close()


def test_a_process_without_a_lane_is_not_started() -> None:
    simulator = make("CartPole-v1", 2, {"processes": 5})
    assert len(pids(simulator)) == 2
    simulator.close()


@pytest.mark.parametrize("processes", [-1, 1.5, "2", True])
def test_an_invalid_number_of_processes_is_refused(processes: object) -> None:
    with pytest.raises(InvalidArgument, match="option 'processes' must be a whole number of at least 0, not"):
        make("CartPole-v1", 2, {"processes": processes})


def test_a_refused_option_has_the_same_message_as_in_one_process() -> None:
    lines = set()
    for options in ({}, {"processes": 2}):
        with pytest.raises(InvalidArgument) as caught:
            make("FrozenLake-v1", 2, {**options, "map_name": "a"})
        lines.add(caught.value.message)
    assert lines == {"FrozenLake-v1 refuses its options {'map_name': 'a'}: 'a'"}


def test_an_environment_of_a_module_is_found_by_the_processes(own_module: str) -> None:
    simulator = make(f"gym:{own_module}:Own-v0", 2, {"processes": 2})
    assert simulator.reset(0).shape == (2, 4)
    simulator.close()


def test_an_environment_registered_in_the_parent_is_found_by_the_processes(own_module: str) -> None:
    gymnasium.register("ByHand-v0", f"{own_module}:Own", max_episode_steps=2)
    simulator = make("ByHand-v0", 2, {"processes": 1}, seed=0)
    steps = [simulator.step(zeros(2)).truncated.tolist() for _ in range(2)]
    assert steps == [[False, False], [True, True]]
    simulator.close()
    del gymnasium.registry["ByHand-v0"]


def test_an_environment_that_cannot_be_sent_is_refused_with_a_remedy() -> None:
    gymnasium.register("Local-v0", lambda: gymnasium.make("CartPole-v1"))
    with pytest.raises(InvalidArgument, match=r"Local-v0: .*cannot be sent to another process.*: use processes = 0"):
        make("Local-v0", 2, {"processes": 1})
    del gymnasium.registry["Local-v0"]


def test_a_process_does_not_import_torch(own_module: str) -> None:
    make(f"{own_module}:Lean-v0", 1, {"processes": 1}).close()


def test_an_exception_names_the_lane_among_all_and_the_next_reset_works(own_module: str) -> None:
    simulator = make(f"{own_module}:Own-v0", 4, {"processes": 2, "mode": "raises"}, seed=0)
    action = torch.tensor([0, 0, 0, 1])
    with pytest.raises(Internal, match=r"Own-v0: lane 3 raised ZeroDivisionError: of all things \(own_.*at step 4"):
        step_times(4, simulator, action)
    first = simulator.reset(5).clone()
    simulator.step(zeros(4))
    assert torch.equal(simulator.reset(5), first)
    simulator.close()


def test_a_process_that_is_killed_is_named_and_the_others_are_reaped(own_module: str) -> None:
    simulator = make(f"{own_module}:Own-v0", 4, {"processes": 2, "mode": "dies"}, seed=0)
    children = pids(simulator)
    with pytest.raises(Unavailable, match=r"Own-v0: the process of lanes 2 to 3 ended by signal 9 .*; make a new sim"):
        step_times(4, simulator, torch.tensor([0, 0, 1, 0]))
    with pytest.raises(Unavailable, match="the process of lanes 2 to 3 ended"):
        simulator.step(zeros(4))
    simulator.close()
    assert not any(psutil.pid_exists(pid) for pid in children)


def test_processes_leave_a_keyboard_interrupt_to_the_parent() -> None:
    simulator = make("CartPole-v1", 2, {"processes": 1}, seed=0)
    [child] = pids(simulator)
    os.kill(child, signal.SIGINT)
    assert simulator.step(zeros(2)).reward.tolist() == [1.0, 1.0]
    simulator.close()


def test_a_step_that_never_ends_has_a_deadline_and_its_process_is_killed(
    own_module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator = make(f"{own_module}:Own-v0", 2, {"processes": 1, "mode": "hangs"}, seed=0)
    for child in simulator._lanes._children:  # type: ignore[attr-defined]
        child.set_deadline(0.1)
    monkeypatch.setattr(gym_processes, "CLOSE_DEADLINE_SECONDS", 0.1)
    [pid] = pids(simulator)
    with pytest.raises(DeadlineExceeded, match=r"Own-v0: the process of lanes 0 to 1 did not answer within 0.1 s"):
        simulator.step(zeros(2))
    simulator.close()
    assert not psutil.pid_exists(pid)


def test_close_closes_the_environments_and_leaves_no_process(
    own_module: str, capfd: pytest.CaptureFixture[str]
) -> None:
    simulator = make(f"{own_module}:Own-v0", 3, {"processes": 2}, seed=0)
    children = pids(simulator)
    simulator.close()
    simulator.close()
    # Two processes write at once: one line may appear inside another.
    assert capfd.readouterr().out.count("closed") == 3
    assert not any(psutil.pid_exists(pid) for pid in children)


def test_a_parent_that_is_killed_leaves_no_process_even_in_a_step_that_never_ends(
    own_module: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout
    children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(children) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=10)
    for child in alive:
        child.kill()
    assert not alive
