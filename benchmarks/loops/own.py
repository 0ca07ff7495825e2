"""Measures podrace for `peers.py` in one process: a training loop without services, matrix products, the simulator."""

import math
from collections.abc import Mapping

import torch
from harness.floors import Product, ppo_update, sac_update, simulator_steps_per_second, updates_per_second
from torch import Tensor

from agentpod.algorithms import make
from agentpod.algorithms.matmul_precision import matmul_precision
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import replay_fields, replay_rows
from agentpod.experience.rollout import Field, Lanes, Rollout, collect, rollout_fields
from agentpod.models.actors import PolicyActor
from agentpod.roles.evaluator import play, score
from agentpod.seeding import derive_generator, derive_seed
from loops.process import EPISODES, Answer, Measure, Rate, Request, Target, serve
from simulators import Space
from simulators import make as make_simulator

EVALUATION_SEED = 12345


class Loop:
    """An agent that collects and updates in alternation, on one thread.

    loop = Loop(request)
    while not over(loop.steps):
        loop.advance()
    """

    def __init__(self, request: Request) -> None:
        self._simulator = make_simulator(request.environment, request.count)
        spaces = self._simulator.observation_space, self._simulator.action_space
        self.algorithm = make(request.algorithm, *spaces, request.settings, request.seed)
        self._memory = self.algorithm.memory
        self._tensors, self._replay = self._allocate(*spaces, request.count)
        self._lanes = Lanes.start(self._simulator.reset(derive_seed(request.seed, "reset", 0)))
        self._seed, self.steps = request.seed, 0

    def _allocate(
        self, observation_space: Space, action_space: Space, count: int
    ) -> tuple[dict[str, Tensor], ReplayBuffer | None]:
        """Allocates one rollout, or a replay buffer."""
        memory, spaces = self._memory, (observation_space, action_space)
        if not memory.replay_capacity:
            return _zeros(rollout_fields(*spaces, memory.horizon, count)), None
        rows = replay_rows(memory.replay_capacity, memory.horizon, count)
        tensors = _zeros(replay_fields(*spaces, rows, count))
        return tensors, ReplayBuffer(tensors, memory.horizon, prioritized=memory.prioritized)

    def advance(self) -> None:
        """Collects one rollout and makes the update that follows."""
        if self._replay is None:
            self._collect(self._tensors)
            self._update(self._tensors)
            return
        first_row = self._replay.grant()
        rows = slice(first_row, first_row + self._memory.horizon)
        self._collect({name: tensor[rows] for name, tensor in self._tensors.items()})
        self._replay.receive(first_row)
        self._update(self._replay)

    def _update(self, experience: Rollout | ReplayBuffer) -> None:
        with matmul_precision("float32", self.algorithm.network.hidden_sizes, "cpu"):
            self.algorithm.update(experience)

    def _collect(self, rollout: Rollout) -> None:
        generator = derive_generator("cpu", self._seed, "act", 0, self.algorithm.update_number)
        result = collect(self._simulator, self.algorithm.policy, rollout, self._lanes, generator)
        self._lanes = result.lanes
        self.steps += result.steps

    def evaluate(self, environment: str) -> float:
        """Returns the mean return of EPISODES greedy episodes."""
        simulator = make_simulator(environment, EPISODES)
        try:
            actor = PolicyActor(self.algorithm.policy, EPISODES, torch.Generator(), greedy=True)
            episodes = play(simulator, actor, EPISODES, EVALUATION_SEED)
            return score(episodes).mean_return
        finally:
            simulator.close()

    def close(self) -> None:
        """Closes the simulator."""
        self._simulator.close()


def _zeros(fields: Mapping[str, Field]) -> dict[str, Tensor]:
    return {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in fields.items()}


def train(request: Request) -> Answer:
    """Measures a rate, or the time to the target."""
    goal = Rate(request) if request.measure == "rate" else Target(request, lambda: loop.evaluate(request.environment))
    loop = Loop(request)
    try:
        while not goal.over(loop.steps):
            loop.advance()
    finally:
        loop.close()
    return goal.answer


def matrix_products(request: Request) -> Answer:
    """Measures the environment steps per second that the matrix products of the updates allow."""
    settings, (observation, action) = request.settings, _spaces(request.environment)
    inputs = math.prod(observation.shape)
    update: list[Product]
    if request.algorithm == "sac":
        update = sac_update(inputs, math.prod(action.shape), settings["hidden_sizes"], settings["batch_size"])
        steps = 1 / settings["updates_per_step"]
    else:
        outputs = action.n if action.kind == "discrete" else math.prod(action.shape)
        steps = request.count * settings["horizon"]
        shape = settings["hidden_sizes"], steps, settings["minibatch_size"], settings["epochs"]
        update = ppo_update(inputs, outputs, *shape)
    return {"steps_per_second": steps * updates_per_second(update, request.seconds)}


def _spaces(environment: str) -> tuple[Space, Space]:
    simulator = make_simulator(environment, 1)
    simulator.close()
    return simulator.observation_space, simulator.action_space


def measure(request: Request, cores: int) -> Answer:
    """Answers a request."""
    if request.measure == "products":
        return matrix_products(request)
    if request.measure == "simulator":
        return {
            "steps_per_second": simulator_steps_per_second(request.environment, request.count, request.seconds),
        }
    return train(request)


def load(threads: int) -> Measure:
    """Returns the function that answers requests; everything is imported already."""
    torch.set_num_threads(threads)
    return measure


if __name__ == "__main__":
    serve(load)
