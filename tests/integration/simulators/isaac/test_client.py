"""Tests the client of NVIDIA's simulators against test doubles with the same interface (stand_in)."""

import importlib.util
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from podrace.errors import DeadlineExceeded, Internal, InvalidArgument, Unavailable, Unimplemented
from simulators import Simulator, make
from simulators.compilation import is_compiling
from simulators.isaac.client import IsaacServer, IsaacSimulator

FOLDER = Path(__file__).parent
STAND_IN = str(FOLDER / "stand_in" / "python")
WAIT_SECONDS = 20.0

_SPEC = importlib.util.spec_from_file_location("simulator_contract", FOLDER.parent / "test_contract.py")
assert _SPEC is not None
assert _SPEC.loader is not None
suite = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(suite)


@pytest.fixture(scope="module")
def environment() -> Iterator[pytest.MonkeyPatch]:
    """Sets the variables that name the interpreters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISAAC_STAND_IN_PYTHON", sys.executable)
        patch.setenv("PODRACE_ISAACGYM_PYTHON", STAND_IN)
        patch.setenv("PODRACE_ISAACLAB_PYTHON", STAND_IN)
        yield patch


def started(id: str, count: int, **options: object) -> IsaacSimulator:
    simulator = make(id, count, {"simulation_device": "cpu", **options})
    assert isinstance(simulator, IsaacSimulator)
    return simulator


# --- the contract ----------------------------------------------------------------------------------------------------

test_tensors = suite.test_tensors_have_the_shapes_and_types_that_the_spaces_state
test_the_same_seed_and_actions_give_the_same_steps = suite.test_the_same_seed_and_actions_give_the_same_steps
test_ends = suite.test_an_episode_ends_in_exactly_one_way_and_restarts_in_the_same_step
test_observations_are_finite = suite.test_observations_are_finite

CASES = {
    "Isaac Gym": ("isaacgym:Ant", ""),
    "Isaac Lab 3.0": ("isaaclab:Isaac-Ant-Direct", "3.0"),
    "Isaac Lab 2.3": ("isaaclab:Isaac-Ant-Direct-v0", "2.3"),
}


@pytest.fixture(scope="module", params=CASES)
def simulator(request: pytest.FixtureRequest, environment: pytest.MonkeyPatch) -> Iterator[Simulator]:
    id, version = CASES[request.param]
    environment.setenv("ISAAC_STAND_IN_LAB", version)
    simulator = started(id, suite.COUNT)
    yield simulator
    simulator.close()


def test_lanes_and_seeds_start_differently(simulator: Simulator) -> None:
    first, second = simulator.reset(1).clone(), simulator.reset(2).clone()
    assert len({tuple(lane) for lane in first.tolist()}) == suite.COUNT
    assert not torch.equal(first, second)


# --- when lanes reset ------------------------------------------------------------------------------------------------


def play(simulator: Simulator, forces: list[list[float]]) -> list[dict[str, Any]]:
    """Returns all results of some actions, with the rows of lanes that ended."""
    steps = []
    for force in forces:
        step = simulator.step(torch.tensor(force).view(-1, 1))
        ended = (step.terminated | step.truncated).nonzero().flatten()
        steps.append(
            {
                "observation": step.observation.tolist(),
                "reward": step.reward.tolist(),
                "terminated": step.terminated.tolist(),
                "truncated": step.truncated.tolist(),
                "final": dict(zip(ended.tolist(), step.final_observation[ended].tolist(), strict=True)),
            }
        )
    return steps


def rows(steps: list[dict[str, Any]], name: str, lane: int) -> list[Any]:
    return [step[name][lane] for step in steps]


@pytest.fixture
def start(environment: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[IsaacSimulator] = []

    def starting(id: str, count: int, **options: object) -> IsaacSimulator:
        made.append(started(id, count, **options))
        return made[-1]

    yield starting
    for simulator in made:
        simulator.close()


def test_a_task_of_isaac_gym_starts_its_next_episode_in_the_step_that_ends_one(start: Any) -> None:
    """Numbers are (episode, its steps); lane 1 terminates at its second step, lane 0 reaches the limit of four
    steps."""
    simulator = start("isaacgym:Counter", 2)
    e = simulator.reset(3)[0, 0].item()
    assert simulator.reset(3).tolist() == [[e + 1, 0, 1000]] * 2, "zeros, which the task's own reset returns"
    e += 1
    steps = play(simulator, [[0, 0], [0, 1], [0, 0], [0, 0], [0, 0]])
    assert all(row.pop() == 1000 for step in steps for row in step["observation"] + [*step["final"].values()]), (
        "clipped"
    )
    assert rows(steps, "observation", 0) == [[e, 1], [e, 2], [e, 3], [e + 1, 0], [e + 1, 1]]
    assert rows(steps, "observation", 1) == [[e, 1], [e + 1, 0], [e + 1, 1], [e + 1, 2], [e + 1, 3]]
    assert rows(steps, "reward", 0) == [100 * e + t for t in (1, 2, 3, 4)] + [100 * (e + 1) + 1]
    assert rows(steps, "reward", 1) == [100 * e + 1, 100 * e + 2] + [100 * (e + 1) + t for t in (1, 2, 3)]
    assert [step["final"] for step in steps] == [{}, {1: [e, 2]}, {}, {0: [e, 4]}, {}]
    assert rows(steps, "terminated", 1) == [False, True, False, False, False]
    assert rows(steps, "truncated", 0) == [False, False, False, True, False]
    # A termination in the step of the limit cannot be distinguished from a truncation.
    steps = play(simulator, [[0, 1]])
    assert (steps[0]["terminated"][1], steps[0]["truncated"][1]) == (False, True)


def test_a_task_that_resets_late_returns_its_void_step_without_reward(
    start: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator = start("isaacgym:LateCounter", 2)
    assert "the first step of every episode is void" in capsys.readouterr().out
    e = simulator.reset(3)[0, 0].item()
    steps = play(simulator, [[0, 0], [0, 1], [0, 1], [0, 0], [0, 0], [0, 0]])
    assert all(row.pop() == 1000 for step in steps for row in step["observation"] + [*step["final"].values()])
    assert rows(steps, "observation", 1) == [[e, 1], [e, 2], [e + 1, 0], [e + 1, 1], [e + 1, 2], [e + 1, 3]]
    assert rows(steps, "reward", 1) == [100 * e + 1, 100 * e + 2, 0, *(100 * (e + 1) + t for t in (1, 2, 3))]
    assert rows(steps, "terminated", 1) == [False, True, False, False, False, False]
    assert rows(steps, "observation", 0) == [[e, 1], [e, 2], [e, 3], [e, 4], [e + 1, 0], [e + 1, 1]]
    assert [step["final"] for step in steps] == [{}, {1: [e, 2]}, {}, {0: [e, 4]}, {}, {}]


def test_a_truncated_ant_ends_in_its_last_state_or_for_isaac_lab_2_3_one_step_before(
    simulator: Simulator, request: pytest.FixtureRequest
) -> None:
    before: Tensor = simulator.reset(4).clone()
    still = torch.zeros(suite.COUNT, 8)
    for _ in range(19):
        step = simulator.step(still)
        assert not step.truncated.any()
        before = step.observation.clone()
    step = simulator.step(still)
    assert step.truncated.all()
    is_the_one_before = (step.final_observation == before).flatten(1).all(1)
    assert is_the_one_before.tolist() == [request.node.callspec.params["simulator"] == "Isaac Lab 2.3"] * suite.COUNT
    # An ant at rest moves little in a step.
    assert (step.final_observation[:, :13] - before[:, :13]).abs().max() < 0.3
    assert (step.final_observation != step.observation).any(1).all()


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_missing_interpreter_is_requested_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PODRACE_ISAACGYM_PYTHON", raising=False)
    with pytest.raises(
        Unimplemented, match=r"isaacgym:Ant: set PODRACE_ISAACGYM_PYTHON .* to the Python that has Isaac"
    ):
        make("isaacgym:Ant", 1)
    monkeypatch.delenv("PODRACE_ISAACLAB_PYTHON", raising=False)
    with pytest.raises(Unimplemented, match="set PODRACE_ISAACLAB_PYTHON"):
        make("isaaclab:Isaac-Ant-Direct", 1)


@pytest.mark.parametrize(
    ("id", "options", "kind", "complaint"),
    [
        ("isaacgym:", {}, InvalidArgument, "a task is missing"),
        ("isaacgym:Ant", {"speed": 1}, InvalidArgument, "unknown option 'speed'"),
        ("isaacgym:Ant", {"interpreter": "/nowhere/python"}, InvalidArgument, "/nowhere/python cannot be started: No "),
        ("isaacgym:Ant", {"interpreter": sys.executable}, Unimplemented, "has no package 'isaacgym'"),
        ("isaaclab:Ant", {"interpreter": sys.executable}, Unimplemented, "has no package 'isaaclab'"),
        ("isaacgym:Ent", {}, InvalidArgument, "the task cannot be made: KeyError: 'Ent'"),
        ("isaacgym:Ant", {"start_seconds": 0.01}, DeadlineExceeded, "no answer from .* within 0.01 s"),
        ("isaacgym:Ant", {"interpreter": "/bin/false"}, Unavailable, r"its server process is gone \(exit code 1\)"),
    ],
)
def test_a_simulator_that_cannot_start_is_reported_in_one_line(
    id: str, options: dict[str, object], kind: type[Any], complaint: str, start: Any
) -> None:
    with pytest.raises(kind, match=complaint) as refusal:
        start(id, 1, **options)
    assert len(refusal.value.message.splitlines()) == 1


def test_while_the_simulator_starts_the_role_compiles(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So `start_seconds` is the limit, and not the 120 s that a role without compilation has."""
    ask, seen = IsaacServer.ask, list[tuple[bool, float]]()

    def noting(server: IsaacServer, line: str, deadline_seconds: float) -> str:
        seen.append((is_compiling(), deadline_seconds))
        return ask(server, line, deadline_seconds)

    monkeypatch.setattr(IsaacServer, "ask", noting)
    simulator = start("isaacgym:Ant", 1, start_seconds=300.0)
    assert seen[0] == (True, 300.0)
    seen.clear()
    simulator.step(torch.zeros(1, 8))
    assert [compiles for compiles, _ in seen] == [False]


def test_an_exception_of_the_simulator_is_reported_in_one_line(start: Any) -> None:
    simulator = start("isaacgym:Crashing", 1)
    simulator.step(torch.zeros(1, 1))
    with pytest.raises(Internal, match="the simulator failed: RuntimeError: PhysX: out of memory"):
        simulator.step(torch.ones(1, 1))
    with pytest.raises(Unavailable, match=r"its server process is gone \(exit code 1\)"):
        simulator.step(torch.zeros(1, 1))


def test_a_simulator_that_dies_is_reported_with_its_last_line(start: Any) -> None:
    simulator = start("isaacgym:Crashing", 1)
    with pytest.raises(Unavailable, match=r"gone \(exit code 139\); its last line: Segmentation fault \(core dumped\)"):
        simulator.step(-torch.ones(1, 1))


def test_a_dict_is_one_row_of_its_entries_with_the_numbers_of_the_task(
    environment: pytest.MonkeyPatch, start: Any
) -> None:
    environment.setenv("ISAAC_STAND_IN_LAB", "3.0")
    plain, composite = start("isaaclab:Isaac-Ant-Direct", 3), start("isaaclab:Isaac-Dict-Ant-Direct", 3)
    assert composite.observation_space.kind == "composite"
    assert [(entry.name, entry.encoding, entry.shape) for entry in composite.observation_space.entries] == [
        ("position.height", "vector", (5,)),
        ("position.joints", "vector", (8,)),
        ("speeds", "vector", (14,)),
    ]
    assert torch.equal(composite.reset(3), plain.reset(3))
    ended = 0
    for _ in range(25):
        action = torch.linspace(-1.0, 1.0, 24).view(3, 8)
        found, wanted = composite.step(action), plain.step(action)
        assert torch.equal(found.observation, wanted.observation)
        assert torch.equal(found.final_observation, wanted.final_observation)
        ended += int((found.terminated | found.truncated).sum())
    assert ended > 0


def has_exited(pid: int) -> bool:
    """Waits until a process is gone; it need not be a child of this one."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], WAIT_SECONDS)[0])
    finally:
        os.close(descriptor)


def test_the_server_ends_with_the_simulator_and_leaves_no_file(environment: pytest.MonkeyPatch) -> None:
    simulator = started("isaacgym:Counter", 1)
    mapped = [
        line.split()[-2:] for line in Path("/proc/self/maps").read_text().splitlines() if "podrace-isaac-" in line
    ]
    assert mapped
    assert all(deleted == "(deleted)" for _, deleted in mapped)
    simulator.close()
    assert has_exited(simulator._server._process.pid)
    simulator.close()


def test_the_server_ends_when_the_client_is_killed(environment: pytest.MonkeyPatch) -> None:
    script = (
        "from simulators import make\n"
        "simulator = make('isaacgym:Counter', 1, {'simulation_device': 'cpu'})\n"
        "print('server', simulator._server._process.pid, flush=True)\n"
        "input()\n"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=FOLDER.parents[3]
    )
    assert client.stdout is not None
    assert client.stdin is not None
    with client, client.stdout as lines:
        pid = next(int(line.split()[1]) for line in iter(lines.readline, "") if line.startswith("server "))
        client.kill()
    assert has_exited(pid)
