"""Implements Adam over one flat buffer, so that a whole agent is clipped and stepped by a few operations."""

from typing import Protocol

import torch
from torch import Tensor

from simulators.cuda_graph import between_graphs

FIRST_DECAY, SECOND_DECAY = 0.9, 0.999
"""Decay rates of the two moments (Kingma and Ba 2015, arXiv 1412.6980, algorithm 1)."""
MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of the moments."""


class Reduce(Protocol):
    """Averages what determines a step over the learners of an agent."""

    def __call__(self, tensor: Tensor) -> None:
        """Averages a tensor in place; on a GPU possibly later, in the order of the current stream.

        Raises:
            MemberLost: A learner was lost.
        """
        ...

    def finish(self) -> None:
        """Waits for all averages, once before an update counts; raises MemberLost if some of them are undefined."""
        ...


class FlatAdam:
    """Adam (Kingma and Ba 2015, arXiv 1412.6980, algorithm 1) for one tensor and its gradient buffer.

        optimizer = FlatAdam(parameters, gradient, learning_rate=3e-4, epsilon=1e-5, maximum_norm=0.5)
        ...  # fill `gradient`
        norm = optimizer.step()

    Attributes:
        parameters: [P] float32, changed by every step.
        gradient: [P] float32; a step clips it in place.
        rate: [] float64 on the CPU, the learning rate; call `apply_rate` after a change.
        reduce: Averages the gradient over the learners of an agent, in place, before it is used; None for a single
            learner.
    """

    reduce: Reduce | None = None

    def __init__(
        self, parameters: Tensor, gradient: Tensor, *, learning_rate: float, epsilon: float, maximum_norm: float
    ) -> None:
        """Starts with moments of 0.

        Args:
            parameters: [P] float32.
            gradient: [P] float32.
            learning_rate: Step size.
            epsilon: Added to the denominator.
            maximum_norm: Gradients with a larger norm are scaled down to it; 0 = no clipping.
        """
        self.parameters, self.gradient = parameters, gradient
        self.rate = torch.tensor(learning_rate, dtype=torch.float64)
        on_host = parameters.device.type == "cpu"
        # A number would be a constant of a CUDA graph. The kernel for GPUs takes the rate as float32.
        self._live_rate = self.rate if on_host else torch.full((), learning_rate, device=parameters.device)
        self._epsilon, self._maximum_norm = epsilon, maximum_norm
        self._moments = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self._steps = torch.zeros((), device=parameters.device)

    def apply_rate(self) -> None:
        """Makes the following steps use the present value of `rate`, without waiting for the device."""
        if self._live_rate is not self.rate:
            self._live_rate.fill_(float(self.rate))

    def step(self) -> Tensor:
        """Makes one step; returns the norm of the gradient before clipping: [] float32."""
        if self.reduce:
            between_graphs(self._average)
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        if self._maximum_norm > 0:
            self.gradient.mul_((self._maximum_norm / (norm + 1e-6)).clamp_(max=1.0))
        # The function that torch.optim.Adam(fused=True) calls, without its overhead of 0.2 ms per step.
        torch._fused_adam_(
            [self.parameters],
            [self.gradient],
            [self._moments[0]],
            [self._moments[1]],
            [],
            [self._steps.add_(1.0)],
            lr=self._live_rate,
            beta1=FIRST_DECAY,
            beta2=SECOND_DECAY,
            weight_decay=0.0,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
        )
        return norm

    def _average(self) -> None:
        """Averages the gradient over the learners, by what `reduce` is at this moment."""
        if self.reduce:
            self.reduce(self.gradient)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the state besides the parameters: `step` [], `exp_avg` [P] and `exp_avg_sq` [P], all float32."""
        return {"step": self._steps, "exp_avg": self._moments[0], "exp_avg_sq": self._moments[1]}
