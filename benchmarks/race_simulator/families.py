"""Defines the simulated tasks: families of learning curves. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """How learning depends on hyperparameters and luck. Without noise, returns are in [0, 1].

    Distances are in the unit cube of the searched hyperparameters; the position of the best ones is drawn per seed.
    """

    default_distance: float = 0.05
    """Distance of the default values from the best ones, per hyperparameter."""
    width: float = 0.25
    """Distance at which the asymptote of learning falls to 0.61 of its height."""
    pace: float = 0.07
    """Share of the gap to the asymptote that is closed in a quantum, at average values."""
    fast_ahead: float = 0.12
    """How far beyond the best learning rate the fastest one is."""
    drift: float = 0.0
    """How far the best learning rate falls while the return rises from 0 to 1."""
    pace_luck: float = 0.25
    """Standard deviation over seeds of the logarithm of the pace."""
    asymptote_luck: float = 0.08
    """Standard deviation over seeds of what the asymptote loses."""
    dead: float = 0.0
    """Probability that an agent's seed never gets beyond 0.3 of its asymptote."""
    noise: float = 0.04
    """Standard error of a score over its episodes."""
    collapse: float = 0.0
    """Probability of a collapse in a quantum: the return falls to 0.4 of itself."""
    plateau: bool = False
    """Whether a cheap substitute is learned at once (standing still), and greedy values never get beyond it."""
    valley: bool = False
    """Whether an untrained policy already has the substitute, and loses it before it gains a skill."""
    greed: float = 0.35
    """With a plateau: greed of hyperparameters beyond which an agent stays on it."""


FAMILIES: Mapping[str, Family] = {
    "good-defaults": Family(),
    "good-noisy": Family(noise=0.10, pace_luck=0.5, asymptote_luck=0.25),
    "slow-start": Family(plateau=True),
    "valley": Family(plateau=True, valley=True, pace=0.03),
    "scarce": Family(pace=0.02),
    "bad-defaults": Family(default_distance=0.38),
    "needle": Family(default_distance=0.45, width=0.15),
    "fast-is-wrong": Family(default_distance=0.2, fast_ahead=0.35, drift=0.3),
    "slow-start-bad": Family(plateau=True, default_distance=0.25),
    "lucky-seeds": Family(width=0.6, pace_luck=0.6, asymptote_luck=0.2, dead=0.4),
    "unstable": Family(default_distance=0.15, collapse=0.02, noise=0.06),
}
