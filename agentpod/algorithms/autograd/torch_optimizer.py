"""Adapts an optimizer of torch to flat buffers: its state can be saved, undone and fused from the first step on."""

import torch
from torch import Tensor

from agentpod.algorithms.flat_adam import Reduce
from podrace.errors import UNUSABLE_ALGORITHM, InvalidArgument


def initial_values(optimizer: torch.optim.Optimizer, learning_rate: float) -> dict[str, float]:
    """Returns the initial values of what an optimizer of torch has changed after a step with a gradient of 0, by key.

    Args:
        optimizer: The optimizer.
        learning_rate: Of the group of a parameter.
    """
    values = {"step": 0.0}
    match optimizer:
        case torch.optim.NAdam():
            values |= {"mu_product": 1.0}
        case torch.optim.Adamax():
            values |= {"exp_inf": 0.0}
        case torch.optim.Rprop():
            values |= {"step_size": learning_rate}
        case torch.optim.ASGD():
            # The first step replaces ax, the average of the parameters.
            values |= {"eta": learning_rate, "mu": 1.0, "ax": 0.0}
    return values


class TorchOptimizer:
    """Has the interface of agentpod.algorithms.flat_adam.FlatAdam, for any torch.optim.Optimizer.

    The state of an optimizer usually exists only after its first step. Therefore one step with a gradient of 0 and
    without weight decay is made, and everything that it changed is restored. State that this step created is set to its
    initial value, which is 0 unless `initial_values` has another one.

    Attributes:
        parameters: [P] float32, changed by every step.
        gradient: [P] float32; a step clips it in place.
        rate: [] float64 on the CPU, the learning rate. The rates of the optimizer's groups keep their ratios to it.
        reduce: As of FlatAdam.
    """

    reduce: Reduce | None = None

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Tensor,
        gradient: Tensor,
        *,
        learning_rate: float,
        maximum_norm: float,
    ) -> None:
        """Creates the state of the optimizer.

        Args:
            optimizer: Over views of `parameters`, whose gradients are views of `gradient`.
            parameters: [P] float32.
            gradient: [P] float32.
            learning_rate: The hyperparameter.
            maximum_norm: Gradients with a larger norm are scaled down to it; 0 = no clipping.

        Raises:
            InvalidArgument: It keeps state that is neither a number in a tensor nor a float32 tensor, or whose initial
                value is not known.
        """
        self.parameters, self.gradient, self._optimizer = parameters, gradient, optimizer
        self.rate = torch.tensor(learning_rate, dtype=torch.float64)
        self._maximum_norm = maximum_norm
        self._factors = [float(group["lr"]) / learning_rate for group in optimizer.param_groups]
        self._create_state()

    def _create_state(self) -> None:
        existing = {name: value.clone() for name, value in self._values().items() if isinstance(value, Tensor)}
        self._step_in_place()
        self._state: dict[str, Tensor] = {}
        initial = self._initial_values()
        for name, value in self._values().items():
            if not isinstance(value, Tensor) or (value.dim() and value.dtype != torch.float32):
                raise InvalidArgument(
                    f"optimizer {type(self._optimizer).__qualname__}: state {name} is a {type(value).__name__}, which"
                    " no checkpoint can hold; keep it as a float32 tensor",
                    reason=UNUSABLE_ALGORITHM,
                )
            if name in existing:
                value.copy_(existing[name])
            elif name in initial:
                value.fill_(initial[name])
            elif value.any():
                raise InvalidArgument(
                    f"optimizer {type(self._optimizer).__qualname__}: state {name} is not 0 after a first step with a"
                    " gradient of 0, so its initial value is not known; create it in the constructor",
                    reason=UNUSABLE_ALGORITHM,
                )
            self._state[name] = value

    def _step_in_place(self) -> None:
        """Makes a step that leaves the parameters unchanged: its gradient is 0."""
        groups, before = self._optimizer.param_groups, self.parameters.clone()
        decays = [group.get("weight_decay") for group in groups]
        for group, decay in zip(groups, decays, strict=True):
            if decay is not None:
                group["weight_decay"] = 0.0
        self.gradient.zero_()
        self._optimizer.step()
        self.parameters.copy_(before)
        for group, decay in zip(groups, decays, strict=True):
            if decay is not None:
                group["weight_decay"] = decay

    def _initial_values(self) -> dict[str, float]:
        """Returns the known initial values of the state, by names as in `_values`."""
        groups = [group for group in self._optimizer.param_groups for _ in group["params"]]
        known = (initial_values(self._optimizer, float(group["lr"])) for group in groups)
        return {f"{i}.{key}": value for i, values in enumerate(known) for key, value in values.items()}

    def _values(self) -> dict[str, object]:
        """Returns the state by names `<parameter>.<key>`, in the order of the parameters."""
        states = enumerate(self._states())
        return {f"{i}.{key}": state[key] for i, state in states for key in sorted(state) if state[key] is not None}

    def _states(self) -> list[dict[str, object]]:
        parameters = [one for group in self._optimizer.param_groups for one in group["params"]]
        return [self._optimizer.state.get(one, {}) for one in parameters]

    def apply_rate(self) -> None:
        """Is part of the interface: here every step reads `rate`."""

    def step(self) -> Tensor:
        """Makes one step; returns the norm of the gradient before clipping: [] float32."""
        if self.reduce:
            self.reduce(self.gradient)
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        if self._maximum_norm > 0:
            self.gradient.mul_((self._maximum_norm / (norm + 1e-6)).clamp_(max=1.0))
        for group, factor in zip(self._optimizer.param_groups, self._factors, strict=True):
            group["lr"] = float(self.rate) * factor
        self._optimizer.step()
        self._keep_state()
        return norm

    def _keep_state(self) -> None:
        """Moves new tensors of the state into those that others hold."""
        for i, state in enumerate(self._states()):
            for key, value in state.items():
                kept = self._state.get(f"{i}.{key}")
                if kept is not None and isinstance(value, Tensor) and value is not kept:
                    state[key] = kept.copy_(value)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the live state: numbers (counters, for instance) and tensors of moments."""
        return dict(self._state)
