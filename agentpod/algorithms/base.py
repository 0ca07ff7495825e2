"""Defines the interface of an algorithm, and reads its hyperparameters from a specification.

There are two families. agentpod.algorithms.on_policy learns from one rollout and discards it;
agentpod.algorithms.off_policy learns from a replay buffer. An algorithm is a subclass of one of them with its own loss.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints, runtime_checkable

import torch
from torch import Tensor

from agentpod import rate_schedules
from agentpod.algorithms.flat_adam import Reduce
from agentpod.algorithms.fusible import Fusible
from agentpod.capture.graph_replay import Record
from agentpod.experience.memory_spec import MemorySpec
from agentpod.models.cnn import NO_TORSO
from agentpod.models.policy import NetworkSpec, Policy
from podrace.errors import DataLoss, InvalidArgument
from podrace.specification import catalog
from simulators.base import Space

Hyperparameters = TypeVar("Hyperparameters")


@dataclass(frozen=True)
class Settings:
    """Hyperparameters that all algorithms have. Subclasses add fields, with the defaults and ranges of the catalog."""

    algorithm: ClassVar[str]
    """Key of podrace.specification.catalog.ALGORITHMS."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each hidden layer, of the actor and of the critics."""
    activation: str = "tanh"
    """Key of agentpod.models.mlp.ACTIVATIONS."""
    normalize_observations: bool = True
    """Whether observations are normalized by running mean and standard deviation; uint8 observations are divided by 255
    instead."""
    torso: str = NO_TORSO
    """Key of agentpod.models.cnn.TORSOS: convolutions before the hidden layers, for image observations."""
    network_class: str = ""
    """Class of the policy's network, see agentpod.models.user_network; empty: layers of `hidden_sizes`."""
    horizon: int = 128
    """Steps of each environment between two updates."""
    learning_rate: float = 3e-4
    """Step size of Adam."""
    learning_rate_schedule: str = ""
    """Function that returns a factor of the learning rate, see agentpod.rate_schedules; empty: none."""
    learning_rate_steps: int = 0
    """Environment steps of a learner over which its learning rate decreases linearly; 0 = constant. A child starts at
    the steps of its parent, as in all schedules."""
    final_learning_rate: float = 0.05
    """Learning rate after the decrease, as a fraction of `learning_rate`."""

    def __post_init__(self) -> None:
        """Validates the values.

        Raises:
            InvalidArgument: A value is outside the range that the catalog states.
        """
        for name, declared in self.declared().items():
            value = getattr(self, name)
            if isinstance(value, str) and declared.choices and value not in declared.choices:
                raise InvalidArgument(f"hyperparameter {name} = {value!r} must be one of {', '.join(declared.choices)}")
            for number in value if isinstance(value, tuple) else (value,):
                _check_range(name, number, declared)
        if self.learning_rate_schedule and self.learning_rate_steps:
            raise InvalidArgument(
                "hyperparameters learning_rate_schedule and learning_rate_steps both change the learning rate: leave "
                "one of them out"
            )

    @classmethod
    def declared(cls) -> Mapping[str, catalog.Hyperparameter]:
        """Returns default and range of every hyperparameter; built-in algorithms have theirs in the catalog."""
        return catalog.ALGORITHMS[cls.algorithm].hyperparameters

    @property
    def network(self) -> NetworkSpec:
        """Structure of the policy."""
        return NetworkSpec(
            self.hidden_sizes,
            self.activation,
            self.normalize_observations,
            torso=self.torso,
            network_class=self.network_class,
        )

    @property
    def memory(self) -> MemorySpec:
        """Memory of experience that the learner must allocate."""
        return MemorySpec(self.horizon)

    @property
    def changes_learning_rate(self) -> bool:
        """Whether the learning rate depends on the steps."""
        return bool(self.learning_rate_schedule or self.learning_rate_steps)

    def learning_rate_after(self, environment_steps: int) -> float:
        """Returns the learning rate after `environment_steps` of a learner, if it changes.

        Raises:
            InvalidArgument: The user's schedule cannot be used.
        """
        if self.learning_rate_schedule:
            return self.learning_rate * rate_schedules.factor(self.learning_rate_schedule, environment_steps)
        return self.learning_rate * linear_schedule(
            1.0, self.final_learning_rate, environment_steps / self.learning_rate_steps
        )


def linear_schedule(initial: float, final: float, progress: float) -> float:
    """Interpolates from `initial` to `final` for a `progress` from 0 to 1, and is constant outside that range."""
    return initial + (final - initial) * min(max(progress, 0.0), 1.0)


def _check_range(name: str, value: object, declared: catalog.Hyperparameter) -> None:
    if declared.low is None or declared.high is None or isinstance(value, bool) or not isinstance(value, int | float):
        return
    # This also refuses NaN, because comparisons with NaN are false.
    if not declared.low <= value <= declared.high:
        raise InvalidArgument(f"hyperparameter {name} = {value} must be between {declared.low:g} and {declared.high:g}")


class Algorithm(Protocol):
    """Improves a policy from experience.

        algorithm = make("ppo", observation_space, action_space, {"discount": 0.99}, seed=1)
        algorithm.policy.load(checkpoint_policy)
        algorithm.load_state_dict(checkpoint_state)
        while budget_left:
            publish(algorithm.policy.flat, version=algorithm.update_number)
            metrics = algorithm.update(next_full_rollout())  # or the replay buffer, with one more segment in it
        save(algorithm.policy.tensors(), algorithm.state_dict())

    Algorithms are deterministic: seed, state and experience determine every bit of the result.

    Attributes:
        settings_type: Dataclass of its hyperparameters.
        action_kinds: Kinds of action space that it supports.
        network: Structure of its policy, from which workers and evaluators build the same policy.
        policy: The policy that it improves; copy `flat` only between updates.
        memory: Memory of experience that it needs.
        update_number: Number of calls of `update` over all training of the agent: the policy version.
    """

    settings_type: ClassVar[type[Any]]
    action_kinds: ClassVar[frozenset[str]]
    network: NetworkSpec
    policy: Policy
    memory: MemorySpec
    update_number: int

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hyperparameters: Mapping[str, object],
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Creates new networks with weights drawn from the seed.

        Raises:
            InvalidArgument: A hyperparameter is invalid, or a space is not supported.
        """
        ...

    def update(self, experience: Any) -> dict[str, float]:
        """Improves the policy.

        Args:
            experience: A rollout (agentpod.experience.rollout), which may contain the lanes of several workers side by
                side; or an agentpod.experience.replay_buffer.ReplayBuffer that has received one more segment since the
                last call.

        Returns:
            Metrics to log, all finite; empty if nothing was trained, as during the warm-up of a replay memory.

        Raises:
            InvalidArgument: The rollout is too small for the hyperparameters.
            DataLoss: A loss or a gradient was not finite; policy and state are as before the update.
        """
        ...

    def begin_episodes(self) -> None:
        """Discards everything about unfinished episodes, because the simulators were reset before the next rollout."""
        ...

    def fusible(self) -> Fusible:
        """Returns the live state that the learners of one agent fuse; call `refresh` after changing it."""
        ...

    def share_gradients(self, reduce: Reduce) -> None:
        """Averages, from now on and in place by `reduce`, all that determines a step: gradients, divergences, warm-up.

        Every update calls `reduce.finish` before its changes are final. An exception of `reduce` undoes the update in
        progress like any other error.
        """
        ...

    def refresh(self) -> None:
        """Recomputes what is derived from the state that a fusion round changed."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Returns everything except the policy that an exact resume needs: contiguous copies by flat names."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `state_dict` returned.

        Raises:
            InvalidArgument: A tensor is missing or has another shape.
        """
        ...


USER_NETWORK = "the network of the policy is user code (network_class)"
"""Why a step is not captured: such a network may wait for the device at any place."""


@runtime_checkable
class Capturable(Protocol):
    """An algorithm whose gradient steps may be replayed from CUDA graphs."""

    def capture(self, record: Record | None = None) -> str:
        """Replays gradient steps from now on; steps of rare sizes stay eager. Gradients are shared between graphs.

        Args:
            record: How a step is recorded; None: as a CUDA graph.

        Returns:
            Why nothing is replayed; empty if steps are.
        """
        ...


def capture_updates(algorithm: object, *, wanted: bool, device: str, record: Record | None = None) -> str:
    """Makes an algorithm replay its gradient steps from CUDA graphs, if it can.

    Args:
        algorithm: The algorithm.
        wanted: Setting `captured` of the pod.
        device: Device that it trains on.
        record: How a step is recorded; None: as a CUDA graph.

    Returns:
        Why it does not; empty if it does.
    """
    if not wanted:
        return "pod.captured is false"
    if torch.device(device).type != "cuda":
        return f"the learner computes on {device}"
    if not isinstance(algorithm, Capturable):
        return "the algorithm has no method capture"
    if isinstance(network := getattr(algorithm, "network", None), NetworkSpec) and network.network_class:
        return USER_NETWORK
    return algorithm.capture(record)


@contextmanager
def restored_on_error(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restores the values of the tensors if the block raises any exception."""
    before = [tensor.clone() for tensor in tensors]
    try:
        yield
    except BaseException:
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
        raise


def non_finite_error(names: Sequence[str], metrics: Tensor, update_number: int) -> DataLoss:
    """Creates the error of an update that was undone because of a value that is not finite.

    Args:
        names: Of the metrics.
        metrics: [minibatches, metrics], at least one not finite.
        update_number: Of the update.
    """
    minibatch, metric = (~metrics.isfinite()).nonzero()[0].tolist()
    return DataLoss(
        f"{names[metric]} is not finite in minibatch {minibatch}, update {update_number}, which was undone; "
        "lower learning_rate or maximum_gradient_norm, or check the scale of the rewards",
        reason="ERROR_REASON_NON_FINITE",
    )


def load_tensors(
    live: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    any_shape: Collection[str] = (),
) -> None:
    """Copies a saved state into live tensors, after checking all of it.

    Args:
        live: Tensors to copy into, by name.
        wanted: A state of this algorithm, which determines the required names and shapes.
        state: The saved state.
        any_shape: Names whose shape may differ.

    Raises:
        InvalidArgument: A tensor is missing or has another shape; nothing was copied.
    """
    for name, tensor in wanted.items():
        if name not in state or (name not in any_shape and state[name].shape != tensor.shape):
            found = list(state[name].shape) if name in state else "none"
            raise InvalidArgument(
                f"tensor {name!r} of the training state must have shape {list(tensor.shape)}, found {found}: "
                "it was saved with other spaces or hidden_sizes"
            )
    for name, tensor in live.items():
        tensor.copy_(state[name])


def parse_hyperparameters(cls: type[Hyperparameters], values: Mapping[str, object]) -> Hyperparameters:
    """Creates the frozen dataclass `cls` from a specification's hyperparameters, whose numbers may all be floats.

    Args:
        cls: A dataclass whose fields are float, int, bool, str or tuple[int, ...].
        values: By field name; missing ones take their defaults.

    Raises:
        InvalidArgument: A name is unknown, or a value has another type or is out of range.
    """
    types = _field_types(cls)  # type: ignore[arg-type]
    for name in values:
        if name not in types:
            raise InvalidArgument(f"hyperparameter {name!r} is unknown: choose among {', '.join(types)}")
    return cls(**{name: _convert(name, value, types[name]) for name, value in values.items()})


@cache
def _field_types(cls: type[Any]) -> dict[str, Any]:
    """Returns the type of each field of a dataclass, by name."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _convert(name: str, value: object, wanted: Any) -> object:
    """Converts `value` to the type `wanted`; integers are valid floats, and whole floats are valid integers."""
    match value:
        case bool() | str() if wanted is type(value):
            return value
        case bool():
            pass
        case int() | float() if wanted is float:
            return float(value)
        case int() if wanted is int:
            return value
        case float() if wanted is int and value.is_integer():
            return int(value)
        case list() | tuple() if wanted == tuple[int, ...]:
            return tuple(_convert(name, item, int) for item in value)
    raise InvalidArgument(f"hyperparameter {name} = {value!r} must be {_TYPE_NAMES[wanted]}")


_TYPE_NAMES: Mapping[object, str] = {
    float: "a number",
    int: "an integer",
    bool: "true or false",
    str: "a string",
    tuple[int, ...]: "a list of integers",
}
