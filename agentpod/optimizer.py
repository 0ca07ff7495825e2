"""Owns Adam over one flat buffer: a whole agent is clipped and stepped by a handful of operations."""

import torch
from torch import Tensor


class FlatAdam:
    """Adam (Kingma and Ba 2015, algorithm 1) for one tensor and a gradient that is always written to the same place.

        optimizer = FlatAdam(parameters, gradient, learning_rate=3e-4, epsilon=1e-5, maximum_norm=0.5)
        ...  # fill `gradient`
        norm = optimizer.step()

    Attributes:
        parameters: [P] float32, changed by every step.
        gradient: [P] float32, scaled down by every step where it is too long.
    """

    def __init__(
        self, parameters: Tensor, gradient: Tensor, *, learning_rate: float, epsilon: float, maximum_norm: float
    ) -> None:
        """Starts with no momentum.

        Args:
            parameters: [P] float32.
            gradient: [P] float32.
            learning_rate: Step size.
            epsilon: Added to the denominator.
            maximum_norm: Longer gradients are scaled down to this length; 0 = off.
        """
        self.parameters, self.gradient = parameters, gradient
        self._maximum_norm = maximum_norm
        parameters.grad = gradient
        self._adam = torch.optim.Adam([parameters], learning_rate, eps=epsilon, fused=True)
        # Made here rather than by the first step, so that every training state has the same tensors.
        moments = {name: torch.zeros_like(parameters) for name in ("exp_avg", "exp_avg_sq")}
        self._adam.state[parameters] = {"step": torch.zeros((), device=parameters.device), **moments}

    def step(self) -> Tensor:
        """Steps along `gradient`; returns its length before scaling: [] float32."""
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        if self._maximum_norm > 0:
            self.gradient.mul_((self._maximum_norm / (norm + 1e-6)).clamp_(max=1.0))
        self._adam.step()
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """The live state beside the parameters: `step` [], `exp_avg` [P] and `exp_avg_sq` [P], all float32."""
        return dict(self._adam.state[self.parameters])
