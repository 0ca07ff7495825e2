"""Specifies the memory of experience that an algorithm needs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MemorySpec:
    """The memory of experience that a learner allocates for an algorithm."""

    horizon: int
    """Steps of each environment between two updates."""
    replay_capacity: int = 0
    """Environment steps in the replay buffer, over all environments; 0 = on-policy, which allocates two rollouts."""
    prioritized: bool = False
    """Whether replayed steps are sampled by priority."""
    priority_exponent: float = 0.0
    """Alpha of prioritized sampling: 0 samples uniformly, 1 in proportion to the error."""
