"""Trains and evaluates in one process and one thread, without a pod or a plane."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from agentpod.algorithms import Algorithm, make
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import replay_fields, replay_rows
from agentpod.experience.rollout import Field, Lanes, collect, rollout_fields
from agentpod.models.actors import PolicyActor
from agentpod.models.policy import Policy
from agentpod.roles.evaluator import play, score
from agentpod.seeding import derive_generator, derive_seed
from simulators import make as make_simulator

ENVIRONMENTS = 16
EPISODES = 32
EVALUATIONS = 20


def train(
    name: str,
    id: str,
    hyperparameters: dict[str, object],
    seed: int,
    steps: int,
    over: Callable[[Algorithm, int], bool] = lambda algorithm, steps: False,
    options: Mapping[str, object] | None = None,
) -> Algorithm:
    """Trains for `steps` environment steps over all environments, or until `over` returns True after an update."""
    simulator = make_simulator(id, ENVIRONMENTS, options or {})
    spaces = simulator.observation_space, simulator.action_space
    algorithm = make(name, *spaces, hyperparameters, seed)
    memory, count, agents = algorithm.memory, simulator.count, spaces[0].lanes
    state_size = algorithm.policy.state_size
    lanes = Lanes.start(simulator.reset(derive_seed(seed, "reset", 0)), state_size, agents)
    if memory.replay_capacity:
        tensors = zeros(replay_fields(*spaces, replay_rows(memory.replay_capacity, memory.horizon, count), count))
        replay = ReplayBuffer(tensors, memory.horizon, prioritized=memory.prioritized)
    else:
        tensors = zeros(rollout_fields(*spaces, memory.horizon, count, state_size))
    while algorithm.update_number * memory.horizon * count < steps * agents:
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
        if over(algorithm, algorithm.update_number * memory.horizon * count // agents):
            break
    simulator.close()
    return algorithm


def best_score(
    name: str,
    id: str,
    hyperparameters: dict[str, object],
    seed: int,
    steps: int,
    wanted: float,
    options: Mapping[str, object] | None = None,
) -> float:
    """Returns the best of up to EVALUATIONS intermediate scores, as for a champion; stops at the wanted score."""
    scores: list[float] = []

    def scored(algorithm: Algorithm, taken: int) -> bool:
        if taken * EVALUATIONS >= steps * (len(scores) + 1):
            scores.append(evaluate(id, algorithm.policy, options))
            return scores[-1] >= wanted
        return False

    train(name, id, hyperparameters, seed, steps, scored, options)
    return max(scores)


def zeros(fields: dict[str, Field]) -> dict[str, Tensor]:
    return {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in fields.items()}


def evaluate(id: str, policy: Policy, options: Mapping[str, object] | None = None) -> float:
    """Returns the mean return of EPISODES greedy episodes, as the evaluator plays them."""
    simulator = make_simulator(id, EPISODES, options or {})
    try:
        actor = PolicyActor(policy, simulator.count, torch.Generator(), greedy=True)
        return score(play(simulator, actor, EPISODES, 12345)).mean_return
    finally:
        simulator.close()
