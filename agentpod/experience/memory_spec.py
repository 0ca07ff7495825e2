"""States which memory of experience an algorithm learns from."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MemorySpec:
    """What a learner must keep for an algorithm."""

    horizon: int
    """Steps of each environment between two updates."""
    replay_capacity: int = 0
    """Environment steps of the replay memory, over all environments; 0 = on-policy: two rollouts and no more."""
    prioritized: bool = False
    """Whether replayed steps are drawn by priority."""
    priority_exponent: float = 0.0
    """Alpha of those priorities."""
