"""Computes in float64 what networks for teams compute."""

import torch
from torch import Tensor


def reference_mix(mixer: dict[str, Tensor], values: Tensor, state: Tensor) -> Tensor:
    """QMIX's mixing network, one step and one unit at a time, from section 4 of the paper."""
    size, totals = mixer["first_bias.bias"].shape[0], []
    for q, s in zip(values, state, strict=True):
        first = (mixer["first_weights.weight"] @ s + mixer["first_weights.bias"]).abs()
        bias = mixer["first_bias.weight"] @ s + mixer["first_bias.bias"]
        last = (mixer["last_weights.weight"] @ s + mixer["last_weights.bias"]).abs()
        inner = (mixer["last_bias.0.weight"] @ s + mixer["last_bias.0.bias"]).clamp(min=0)
        total = mixer["last_bias.2.weight"][0] @ inner + mixer["last_bias.2.bias"][0]
        for unit in range(size):
            z = sum(first[agent * size + unit] * q[agent] for agent in range(len(q))) + bias[unit]
            total = total + last[unit] * (z if z > 0 else z.exp() - 1)
        totals.append(total)
    return torch.stack(totals)
