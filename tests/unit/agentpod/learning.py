"""The whole of learning in one process and one thread: collect, update, score. No pod, no plane."""

import torch
from torch import Tensor

from agentpod.algorithms import Algorithm, make
from agentpod.evaluator import play, score
from agentpod.policy import Policy
from agentpod.randomness import derive_generator, derive_seed
from agentpod.replay import Replay, replay_fields, replay_rows
from agentpod.rollout import Field, Lanes, collect, rollout_fields
from simulators import make as make_simulator

ENVIRONMENTS = 16
EPISODES = 32


def train(name: str, id: str, hyperparameters: dict[str, object], seed: int, steps: int) -> Algorithm:
    """Trains on `steps` environment steps, counted over all environments."""
    simulator = make_simulator(id, ENVIRONMENTS)
    spaces = simulator.observation_space, simulator.action_space
    algorithm = make(name, *spaces, hyperparameters, seed)
    memory, count = algorithm.memory, simulator.count
    state_size = algorithm.policy.state_size
    lanes = Lanes.start(simulator.reset(derive_seed(seed, "reset", 0)), state_size)
    if memory.replay_capacity:
        tensors = zeros(replay_fields(*spaces, replay_rows(memory.replay_capacity, memory.horizon, count), count))
        replay = Replay(tensors, memory.horizon, prioritized=memory.prioritized)
    else:
        tensors = zeros(rollout_fields(*spaces, memory.horizon, count, state_size))
    while algorithm.update_number * memory.horizon * count < steps:
        generator = derive_generator("cpu", seed, "act", 0, algorithm.update_number)
        if memory.replay_capacity:
            first = replay.grant()
            rows = {key: tensor[first : first + memory.horizon] for key, tensor in tensors.items()}
            lanes = collect(simulator, algorithm.policy, rows, lanes, generator).lanes
            replay.receive(first)
            algorithm.update(replay)
        else:
            lanes = collect(simulator, algorithm.policy, tensors, lanes, generator).lanes
            algorithm.update(tensors)
    simulator.close()
    return algorithm


def zeros(fields: dict[str, Field]) -> dict[str, Tensor]:
    return {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in fields.items()}


def evaluate(id: str, policy: Policy) -> float:
    """Mean return of EPISODES greedy episodes, as the evaluator plays them."""
    simulator = make_simulator(id, EPISODES)
    try:
        return score(play(simulator, policy, EPISODES, 12345, greedy=True)).mean_return
    finally:
        simulator.close()
