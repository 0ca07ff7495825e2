"""The example of a simulator in another language: Node.js, built only from the .proto files."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from podrace.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, Unavailable
from simulators import make

LINE_SECONDS = 20


@pytest.fixture(scope="module")
def node(repository: Path, node_program: Callable[[Path], Path]) -> Path:
    """Returns a folder with the example and gRPC for Node.js."""
    return node_program(repository / "examples/custom/simulator-node")


@pytest.fixture
def child(node: Path, repository: Path) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        ["node", "simulator.js", str(repository / "protos")], cwd=node, stdout=subprocess.PIPE, text=True
    )
    yield child
    child.kill()
    child.wait(LINE_SECONDS)
    assert child.stdout is not None
    child.stdout.close()


@pytest.fixture
def id(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    words = child.stdout.readline().split()
    assert words[:1] == ["serves"]
    return f"grpc://{words[1]}"


def test_a_simulator_in_another_language_steps_like_any_other(id: str) -> None:
    simulator = make(id, 3, {"id": "point", "max_episode_steps": 4})
    assert simulator.observation_space.shape == (2,)
    assert (simulator.action_space.low, simulator.action_space.high) == ((-1.0,), (1.0,))
    position, speed = simulator.reset(5).clone().T
    assert len(set(position.tolist())) == 3
    force = torch.tensor([[1.0], [0.0], [-1.0]])
    for t in range(1, 9):
        step = simulator.step(force)
        speed = speed + 0.1 * force[:, 0]
        position = position + 0.1 * speed
        ended = t % 4 == 0
        expected = torch.stack([position, speed], dim=1)
        torch.testing.assert_close(step.final_observation if ended else step.observation, expected)
        torch.testing.assert_close(step.reward, 1 - position**2 - 0.1 * speed**2)
        assert step.truncated.tolist() == [ended] * 3
        assert not step.terminated.any()
        position, speed = step.observation.clone().T
    first = simulator.reset(5).clone()
    assert torch.equal(simulator.reset(5), first)
    assert not torch.equal(simulator.reset(6), first)
    simulator.close()


def test_a_refusal_by_another_languages_service_is_reported(id: str) -> None:
    with pytest.raises(InvalidArgument, match="there is no simulator 'line' here"):
        make(id, 3, {"id": "line"})
    with pytest.raises(InvalidArgument, match="unknown option 'steps'"):
        make(id, 3, {"id": "point", "steps": 3})
    with pytest.raises(ResourceExhausted, match="5000 environments are too many"):
        make(id, 5000, {"id": "point"})
    with pytest.raises(FailedPrecondition, match="does not offer shared memory"):
        make(id, 3, {"id": "point", "plane": "shared"})


def test_a_service_in_another_language_that_dies_is_named(id: str, child: subprocess.Popen[str]) -> None:
    simulator = make(id, 3, {"id": "point"})
    simulator.reset(1)
    child.kill()
    child.wait(LINE_SECONDS)
    with pytest.raises(Unavailable, match=f"the simulator service at {id.removeprefix('grpc://')} is gone"):
        simulator.step(torch.zeros(3, 1))
    simulator.close()
