"""Runs the suite of tests/integration/simulators/test_contract.py against simulators behind a service."""

import importlib.util
from pathlib import Path

import pytest
import torch

from simulators import Simulator, make

_PATH = Path(__file__).with_name("test_contract.py")
_SPEC = importlib.util.spec_from_file_location("simulator_contract", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
suite = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(suite)

test_tensors = suite.test_tensors_have_the_shapes_and_types_that_the_spaces_state
test_the_same_seed_and_actions_give_the_same_steps = suite.test_the_same_seed_and_actions_give_the_same_steps
test_ends = suite.test_an_episode_ends_in_exactly_one_way_and_restarts_in_the_same_step
test_observations_are_finite = suite.test_observations_are_finite

CASES = {
    "discrete actions, by messages": {"id": "CartPole-v1", "plane": "grpc"},
    "continuous actions, by messages": {"id": "pendulum", "max_episode_steps": 7, "plane": "grpc"},
    "discrete actions, in memory": {"id": "cartpole", "plane": "shared"},
    "continuous actions, in memory": {"id": "Pendulum-v1", "max_episode_steps": 7, "plane": "shared"},
}


@pytest.fixture(params=CASES)
def simulator(request: pytest.FixtureRequest, service: str) -> Simulator:
    return make(service, suite.COUNT, CASES[request.param])


def test_lanes_and_seeds_start_differently(simulator: Simulator) -> None:
    first, second = simulator.reset(1).clone(), simulator.reset(2).clone()
    assert len({tuple(lane) for lane in first.tolist()}) == suite.COUNT
    assert not torch.equal(first, second)
