"""Plays one episode in each lane of a simulator with a policy, without exploration."""

import torch

from agentpod.imports.conversion import Converted
from agentpod.models.actors import PolicyActor
from simulators.base import Simulator

MOST_STEPS = 100_000
"""Steps after which an episode that has not ended is cut off."""
SEED = 1


def returns(converted: Converted, simulator: Simulator) -> list[float]:
    """Returns the undiscounted return of the first episode of each lane; nothing if one does not end."""
    count = simulator.count
    actor = PolicyActor(converted.policy, count, torch.Generator(), greedy=True)
    total, running = torch.zeros(count), torch.ones(count, dtype=torch.bool)
    observation = simulator.reset(SEED)
    for _ in range(MOST_STEPS):
        step = simulator.step(actor.act(observation.clone()))
        total += step.reward * running
        running &= ~(step.terminated | step.truncated)
        if not running.any():
            return [float(each) for each in total]
        observation = step.observation
    return []
