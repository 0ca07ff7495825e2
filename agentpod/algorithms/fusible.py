"""Declares which state of an algorithm a fusion round averages, and by which rule."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from agentpod.models.normalizer import SharedMoments


@dataclass(frozen=True)
class Fusible:
    """The live state of an algorithm, by names in the same order on every learner."""

    parameters: Mapping[str, Tensor]
    """Networks and log temperature: float32."""
    targets: Mapping[str, Tensor] = field(default_factory=dict)
    """Target networks: float32."""
    moments: Mapping[str, Tensor] = field(default_factory=dict)
    """Both moments of Adam: float32."""
    counts: Mapping[str, Tensor] = field(default_factory=dict)
    """Step counters of Adam and of schedules: [], any dtype."""
    rates: Mapping[str, Tensor] = field(default_factory=dict)
    """Adaptive learning rates: [] float64, positive."""
    statistics: Mapping[str, SharedMoments] = field(default_factory=dict)
    """Moments of observations and returns."""
