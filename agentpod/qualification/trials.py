"""Makes an algorithm and experience for it in this process, to update it on any device."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.algorithms import ALGORITHMS, Algorithm, make
from agentpod.algorithms.base import Capturable
from agentpod.algorithms.flat_adam import Reduce
from agentpod.capture.graph_replay import Record
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import replay_fields
from agentpod.experience.rollout import Field, Lanes, collect, rollout_fields
from agentpod.seeding import derive_generator
from simulators import Simulator
from simulators import make as make_simulator

SEED = 1
LANES = 32
SEGMENTS = 4
"""Segments of experience, each with one update."""
HORIZON = 16
SETTINGS: Mapping[str, object] = {"hidden_sizes": [64, 64], "horizon": HORIZON}
ON_POLICY: Mapping[str, Mapping[str, object]] = {
    **{name: {"minibatch_size": LANES * HORIZON // 4} for name in ("ppo", "ippo", "mappo")},
    "a2c": {},
}
OFF_POLICY: Mapping[str, object] = {
    "batch_size": 64,
    "updates_per_step": 1 / 64,
    "warmup_steps": LANES * HORIZON,
    "replay_capacity": LANES * HORIZON * SEGMENTS,
}
REPLAYING_TEAMS, AGENTS = ("vdn", "qmix", "maddpg", "matd3"), 3
"""Algorithms with a replay memory that are tried with teams, and the number of agents of such a team."""
PRIORITIZED = ("d3qn",)
"""Algorithms that are tried with priorities."""


@dataclass(frozen=True)
class Experience:
    """What an algorithm learns from, on the processor."""

    algorithm: str
    segments: tuple[Mapping[str, Tensor], ...]
    """SEGMENTS rollouts, or segments of a replay memory."""


def settings_of(name: str) -> dict[str, object]:
    """Returns the hyperparameters that an algorithm is tried with."""
    own = ON_POLICY.get(name, OFF_POLICY)
    if name in REPLAYING_TEAMS:
        # The memory counts steps of agents.
        own = {**own, "replay_capacity": AGENTS * LANES * HORIZON * SEGMENTS}
    return {**SETTINGS, **own, **({"prioritized": True} if name in PRIORITIZED else {})}


def environments_of(name: str, count: int) -> Simulator:
    """Makes environments that an algorithm can learn in."""
    discrete = "discrete" in ALGORITHMS[name].action_kinds
    if getattr(ALGORITHMS[name], "trains_teams", False):
        return make_simulator("spread", count, {"continuous_actions": not discrete})
    return make_simulator("cartpole" if discrete else "pendulum", count)


def new_algorithm(name: str, device: str, hyperparameters: Mapping[str, object] | None = None) -> Algorithm:
    """Creates an algorithm; the weights depend on the device, because they are drawn there."""
    simulator = environments_of(name, 1)
    settings = settings_of(name) | dict(hyperparameters or {})
    return make(name, simulator.observation_space, simulator.action_space, settings, SEED, device)


def collected(name: str, hyperparameters: Mapping[str, object] | None = None) -> Experience:
    """Collects experience on the processor with a new policy."""
    simulator = environments_of(name, LANES)
    spaces = simulator.observation_space, simulator.action_space
    algorithm = new_algorithm(name, "cpu", hyperparameters)
    lanes = Lanes.start(simulator.reset(SEED), algorithm.policy.state_size, spaces[0].lanes)
    replays = bool(algorithm.memory.replay_capacity)
    state_size, count = algorithm.policy.state_size, simulator.count
    fields = replay_fields(*spaces, HORIZON, count) if replays else rollout_fields(*spaces, HORIZON, count, state_size)
    segments = []
    for number in range(SEGMENTS):
        segment = zeros(fields, "cpu")
        generator = derive_generator("cpu", SEED, "act", 0, number)
        with torch.no_grad():
            lanes = collect(simulator, algorithm.policy, segment, lanes, generator).lanes
        segments.append(segment)
    return Experience(name, tuple(segments))


def zeros(fields: Mapping[str, Field], device: str) -> dict[str, Tensor]:
    """Allocates the tensors of a layout."""
    return {name: torch.zeros(field.shape, dtype=field.dtype, device=device) for name, field in fields.items()}


def updated(
    experience: Experience,
    device: str,
    updates: int = SEGMENTS,
    *,
    hyperparameters: Mapping[str, object] | None = None,
    record: Record | None = None,
    reduce: Reduce | None = None,
) -> tuple[Algorithm, list[Tensor]]:
    """Updates an algorithm from a fixed state, one time for each segment.

    Args:
        experience: What it learns from.
        device: Where it learns.
        updates: Number of updates.
        hyperparameters: In addition to those of `settings_of`.
        record: How gradient steps are recorded for replay; None: they run eagerly.
        reduce: Averages gradients over learners; None: there are no others.

    Returns:
        The algorithm, and its policy before the first and after each update, on the processor.
    """
    algorithm = new_algorithm(experience.algorithm, device, hyperparameters)
    start = new_algorithm(experience.algorithm, "cpu", hyperparameters)
    if record and isinstance(algorithm, Capturable):
        algorithm.capture(record)
    if reduce:
        algorithm.share_gradients(reduce)
    algorithm.policy.load(start.policy.flat)
    algorithm.load_state_dict(start.state_dict())
    policies = [algorithm.policy.flat.cpu().clone()]
    update = update_of(algorithm, experience, device)
    for number in range(updates):
        update(number)
        policies.append(algorithm.policy.flat.cpu().clone())
    return algorithm, policies


def update_of(algorithm: Algorithm, experience: Experience, device: str) -> Callable[[int], object]:
    """Returns a function that updates an algorithm with the segment of a number."""
    segments = [{name: tensor.to(device) for name, tensor in one.items()} for one in experience.segments]
    if not algorithm.memory.replay_capacity:
        return lambda number: algorithm.update(segments[number])
    memory = {name: torch.cat([segment[name] for segment in segments]) for name in segments[0]}
    replay = ReplayBuffer(memory, HORIZON, prioritized=algorithm.memory.prioritized)

    def update(number: int) -> object:
        replay.receive(replay.grant())
        return algorithm.update(replay)

    return update
