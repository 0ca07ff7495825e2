"""Checks whether a simulator repeats its episodes for equal seeds, which paired comparisons of policies need.

The check resets twice with one seed, takes a few steps with the same random actions, and compares. It detects
simulators that ignore the seed, or whose state survives a reset. It does not detect randomness that begins later in an
episode, in states that random actions do not reach, or only in some lanes of a larger batch. Undetected, such
randomness lowers the measured correlation of the episodes, and below 0.2 comparisons are unpaired.
"""

import torch
from torch import Tensor

from agentpod.seeding import derive_generator
from podrace.spaces.entries import mask_columns
from simulators import Simulator

STEPS = 3
"""Steps of the check."""
TOLERANCE = 1e-4
"""Relative and absolute difference that counts as equal: engines on a GPU sum in any order."""
NOT_REPEATED = "the simulator does not repeat its episodes for equal seeds"


def find_difference(simulator: Simulator, seed: int) -> str:
    """Returns in one line how two runs with one seed differ; empty if they agree. Leaves the simulator to be reset."""
    first, second = _run(simulator, seed), _run(simulator, seed)
    for step, (one, other) in enumerate(zip(first, second, strict=True)):
        if not torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            where = f"at step {step}" if step else "in the first observation"
            return f"{NOT_REPEATED}: two runs differ {where}"
    return ""


def _run(simulator: Simulator, seed: int) -> list[Tensor]:
    """Returns what each step returned, as rows of numbers [N, M]."""
    generator = derive_generator("cpu", seed, "repeatability")
    observation = simulator.reset(seed)
    device, seen = observation.device, [_rows(observation)]
    for _ in range(STEPS):
        step = simulator.step(_actions(simulator, observation, generator).to(device))
        observation = step.observation
        flags = [step.reward, step.terminated, step.truncated]
        seen.append(torch.cat([_rows(step.observation), *(_rows(flag) for flag in flags)], dim=1))
    return seen


def _rows(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float64, copy=True).reshape(len(tensor), -1)


def _actions(simulator: Simulator, observation: Tensor, generator: torch.Generator) -> Tensor:
    """Draws actions uniformly between the bounds; where an element has none, between -1 and 1.

    Where the observations have an action mask, only valid actions are drawn: others may be an error.
    """
    space, count = simulator.action_space, simulator.count
    mask = mask_columns(simulator.observation_space.entries)
    if space.kind == "discrete" and mask is None:
        return torch.randint(space.n, (count,), generator=generator)
    if space.kind != "continuous":
        choices = list(space.choices or ((space.n,) if space.n else (2,) * torch.Size(space.shape).numel()))
        weights = torch.rand(count, sum(choices), generator=generator)
        valid = observation[:, mask].cpu() > 0 if mask else torch.ones_like(weights, dtype=torch.bool)
        chosen = [part.argmax(1) for part in (weights * valid).split_with_sizes(choices, 1)]
        return torch.stack(chosen, 1).reshape(count, *space.shape)
    elements = torch.Size(space.shape).numel()
    low = torch.tensor(space.low or (-1.0,) * elements, dtype=torch.float64).nan_to_num(neginf=-1.0)
    high = torch.tensor(space.high or (1.0,) * elements, dtype=torch.float64).nan_to_num(posinf=1.0)
    drawn = low + (high - low) * torch.rand(count, elements, generator=generator, dtype=torch.float64)
    return drawn.float().clamp(low.float(), high.float()).reshape(count, *space.shape)
