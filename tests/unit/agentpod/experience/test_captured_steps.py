"""Tests that rollouts whose steps are replayed as a CUDA graph would replay them equal those of eager steps."""

from collections.abc import Mapping

import pytest
import torch
from structlog.typing import EventDict
from torch import Tensor

from agentpod.experience.captured_steps import CapturedSteps, captured_steps
from agentpod.experience.replay_layout import replay_fields
from agentpod.experience.rollout import CollectResult, Lanes, collect, rollout_fields
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.qualification.operations import OperationCounter, record_operations
from agentpod.qualification.trials import zeros
from simulators import make
from simulators.classic import ClassicOnDevice
from simulators.classic_tasks import CartPole, ClassicTask, Pendulum
from simulators.cuda_graph import CudaGraphSimulator

LANES, HORIZON, MAXIMUM_STEPS, ROLLOUTS = 5, 7, 6, 4
CASES: Mapping[str, tuple[type[ClassicTask], NetworkSpec]] = {
    "ppo, cartpole": (CartPole, NetworkSpec((8,))),
    "ppo, pendulum": (Pendulum, NetworkSpec((8,))),
    "ppo, recurrent": (CartPole, NetworkSpec((8,), recurrent_size=4)),
    "sac, pendulum": (Pendulum, NetworkSpec((8,), "relu", head="squashed", normalize_observations=False)),
    "dqn, cartpole": (CartPole, NetworkSpec((8,), "relu", head="values")),
}


def made(case: str) -> tuple[ClassicOnDevice, Policy]:
    task, network = CASES[case]
    simulator = ClassicOnDevice(task(), LANES, MAXIMUM_STEPS, "cpu")
    policy = Policy(simulator.observation_space, simulator.action_space, network)
    policy.initialize(torch.Generator().manual_seed(1))
    policy.set_head_parameter("exploration", 0.3)
    return simulator, policy


def rollouts(case: str, *, captured: bool, replay: bool) -> list[tuple[dict[str, Tensor], CollectResult]]:
    simulator, policy = made(case)
    steps = CapturedSteps(simulator, policy, record_operations) if captured else None
    lanes, found = Lanes.start(simulator.reset(3), policy.state_size), []
    spaces = simulator.observation_space, simulator.action_space
    fields = replay_fields(*spaces, HORIZON, LANES) if replay else None
    for number in range(ROLLOUTS):
        rollout = zeros(fields or rollout_fields(*spaces, HORIZON, LANES, policy.state_size), "cpu")
        # A policy changes between rollouts, in place.
        policy.load(policy.flat * 1.01)
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            result = collect(simulator, policy, rollout, lanes, generator, steps=steps)
        lanes = result.lanes
        found.append((rollout, result))
    return found


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_replayed_steps_give_the_same_rollouts(case: str) -> None:
    replay = not case.startswith("ppo")
    with OperationCounter():
        eager = rollouts(case, captured=False, replay=replay)
        replayed = rollouts(case, captured=True, replay=replay)
    ended = 0
    for (one, expected), (other, result) in zip(eager, replayed, strict=True):
        defined = one["truncated"].clone()
        if replay:
            defined[-1] = True
        for name in one:
            where = defined if name == "final_observation" else slice(None)
            assert torch.equal(one[name][where], other[name][where]), name
        assert torch.equal(expected.episode_returns, result.episode_returns)
        assert torch.equal(expected.lanes.observation, result.lanes.observation)
        assert torch.equal(expected.lanes.state, result.lanes.state)
        ended += len(result.episode_returns)
    assert ended > LANES


def test_a_replayed_step_launches_at_most_five_operations() -> None:
    simulator, policy = made("ppo, cartpole")
    tape = list[int]()

    def record(function, generators, device):  # type: ignore[no-untyped-def]
        with OperationCounter() as counter:
            result = function()
        tape.append(counter.operations)
        return (lambda: None), result

    steps = CapturedSteps(simulator, policy, record)
    fields = rollout_fields(simulator.observation_space, simulator.action_space, 1, LANES)
    rows = {name: tensor[0] for name, tensor in zeros(fields, "cpu").items() if name != "log_prob"}
    noise = policy.noise((LANES,), torch.Generator())
    with OperationCounter() as counter:
        steps.play(noise, rows)
    # One more is the replay itself.
    assert counter.operations + 1 <= 5
    assert tape[0] > 40


def test_a_graph_of_the_simulators_own_is_not_nested() -> None:
    simulator, policy = made("ppo, cartpole")
    inside = list[bool]()

    def record(function, generators, device):  # type: ignore[no-untyped-def]
        play, result = record_operations(function, generators, device)

        def watched() -> None:
            inside.append(True)
            play()

        return watched, result

    outer = CudaGraphSimulator(simulator, [simulator.generator], record)
    steps = captured_steps(outer, policy, record_operations)
    assert steps is not None
    assert inside == []


def test_the_reason_for_eager_steps_is_logged(log_lines: list[EventDict]) -> None:
    simulator = make("cartpole", LANES)
    policy = Policy(simulator.observation_space, simulator.action_space, NetworkSpec((8,)))
    assert captured_steps(simulator, policy, record_operations) is None
    (line,) = log_lines
    assert line["captured"] is False
    assert line["reason"] == "the simulator cannot be part of a CUDA graph"
