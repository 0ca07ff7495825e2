"""Scales the entries of composite observations: vectors by running statistics, bytes by 255, the others not at all."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from agentpod.models.cnn import PIXEL_SCALE
from agentpod.models.normalizer import VARIANCE_FLOOR
from podrace.spaces.entries import BYTES, VECTOR, Entry, columns, width

OBSERVATION_CLIP = 10.0


class EntryScaling:
    """Scales all entries of a row in one pass: clip((x - mean) factor, -limit, limit), each [D].

    | encoding | mean | factor | limit |
    |---|---|---|---|
    | `vector`, with statistics | observation_mean | 1 / sqrt(observation_variance + 1e-8) | 10 |
    | `bytes` | 0 | 1 / 255 | none |
    | any other | 0 | 1 | none |
    """

    def __init__(self, entries: Sequence[Entry], device: torch.device, agents: int = 0) -> None:
        """Starts without statistics: vectors are unchanged.

        Args:
            entries: Of a row.
            device: Of the rows.
            agents: Number of agents with separate statistics, whose rows alternate; 0 = one set of statistics.
        """
        self._is_vector = torch.zeros(width(entries), dtype=torch.bool, device=device)
        self._fixed = torch.ones(width(entries), device=device)
        for entry, place in columns(entries):
            self._is_vector[place] = entry.encoding == VECTOR
            if entry.encoding == BYTES:
                self._fixed[place] = PIXEL_SCALE
        if agents:
            self._fixed = self._fixed.repeat(agents, 1)
        self._mean, self._factor = torch.zeros_like(self._fixed), self._fixed.clone()
        self._limit = torch.full_like(self._fixed, math.inf)

    def refresh(self, mean: Tensor | None, variance: Tensor | None) -> None:
        """Uses new statistics of all columns, [D] or [A, D], of which those of vectors count; None: no change."""
        if mean is None or variance is None:
            return
        # In place: CUDA graphs keep the addresses.
        self._mean.copy_(torch.where(self._is_vector, mean, 0.0))
        self._factor.copy_(torch.where(self._is_vector, (variance + VARIANCE_FLOOR).rsqrt(), self._fixed))
        self._limit.copy_(torch.where(self._is_vector, OBSERVATION_CLIP, math.inf))

    def apply(self, rows: Tensor) -> Tensor:
        """Returns rows [B, D] of any type, scaled: float32."""
        if self._mean.dim() > 1:
            return self._scale(rows.reshape(-1, *self._mean.shape)).flatten(0, 1)
        return self._scale(rows)

    def _scale(self, rows: Tensor) -> Tensor:
        return (rows - self._mean).mul_(self._factor).clamp_(-self._limit, self._limit)
