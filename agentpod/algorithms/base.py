"""Owns what every algorithm is to its learner, and how its hyperparameters are read from a specification.

There are two families: agentpod.algorithms.on_policy learns from a rollout and forgets it,
agentpod.algorithms.off_policy from a replay memory. An algorithm is a class of either family with a loss of its own.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints

import torch
from torch import Tensor

from agentpod.algorithms.fusible import Fusible
from agentpod.experience.memory_spec import MemorySpec
from agentpod.models.cnn import NO_TORSO
from agentpod.models.policy import NetworkSpec, Policy
from podrace.errors import DataLoss, InvalidArgument
from podrace.specification import catalog
from simulators.base import Space

Hyperparameters = TypeVar("Hyperparameters")


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of an algorithm; a subclass adds the fields, with the defaults and ranges of the catalog."""

    algorithm: ClassVar[str]
    """Key of podrace.specification.catalog.ALGORITHMS."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each hidden layer, of actor and critics."""
    activation: str = "tanh"
    """Key of agentpod.models.mlp.ACTIVATIONS."""
    normalize_observations: bool = True
    """Whether the networks see observations in running standard units; bytes are divided by 255 instead."""
    torso: str = NO_TORSO
    """Key of agentpod.models.cnn.TORSOS: convolutions before the hidden layers, for pictures."""
    horizon: int = 128
    """Steps of each environment between two updates."""
    learning_rate: float = 3e-4
    """Step size of Adam."""
    learning_rate_steps: int = 0
    """Environment steps of a learner over which its learning rate falls, in a straight line; 0 = it stays."""
    final_learning_rate: float = 0.05
    """What it falls to, as a share of `learning_rate`."""

    def __post_init__(self) -> None:
        """Refuses what cannot train.

        Raises:
            InvalidArgument: A value is out of the range that the catalog states.
        """
        for name, declared in catalog.ALGORITHMS[self.algorithm].hyperparameters.items():
            value = getattr(self, name)
            if isinstance(value, str) and value not in declared.choices:
                raise InvalidArgument(f"hyperparameter {name} = {value!r} must be one of {', '.join(declared.choices)}")
            for number in value if isinstance(value, tuple) else (value,):
                _check_range(name, number, declared)

    @property
    def network(self) -> NetworkSpec:
        """Of the policy."""
        return NetworkSpec(self.hidden_sizes, self.activation, self.normalize_observations, torso=self.torso)

    @property
    def memory(self) -> MemorySpec:
        """What the learner must keep."""
        return MemorySpec(self.horizon)

    def learning_rate_after(self, environment_steps: int) -> float:
        """The step size after so many steps of a learner's life, where it falls; see learning_rate_steps."""
        return self.learning_rate * linear_schedule(
            1.0, self.final_learning_rate, environment_steps / self.learning_rate_steps
        )


def linear_schedule(initial: float, final: float, progress: float) -> float:
    """The number a share `progress` of the way from `initial` to `final`, where it stays."""
    return initial + (final - initial) * min(max(progress, 0.0), 1.0)


def _check_range(name: str, value: object, declared: catalog.Hyperparameter) -> None:
    if declared.low is None or declared.high is None or isinstance(value, bool) or not isinstance(value, int | float):
        return
    # A comparison with not-a-number is false as well.
    if not declared.low <= value <= declared.high:
        raise InvalidArgument(f"hyperparameter {name} = {value} must be between {declared.low:g} and {declared.high:g}")


class Algorithm(Protocol):
    """Turns experience into a better policy.

        algorithm = make("ppo", observation_space, action_space, {"discount": 0.99}, seed=1)
        algorithm.policy.load(checkpoint_policy)
        algorithm.load_state_dict(checkpoint_state)
        while budget_left:
            publish(algorithm.policy.flat, version=algorithm.update_number)
            metrics = algorithm.update(next_full_rollout())  # or the replay memory, with one more segment in it
        save(algorithm.policy.tensors(), algorithm.state_dict())

    An algorithm is deterministic: its seed, its state and the experience decide every bit of what follows.

    Attributes:
        settings_type: Dataclass of its hyperparameters.
        action_kinds: Kinds of action space it can learn in.
        network: Of its policy, so that workers and evaluators can build the same.
        policy: What it improves; copy `flat` between updates only.
        memory: The experience it wants.
        update_number: Calls of `update` in the agent's life: the policy version.
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
        """Draws new networks from the seed; raises InvalidArgument where a hyperparameter or a space cannot be used."""
        ...

    def update(self, experience: Any) -> dict[str, float]:
        """Learns.

        Args:
            experience: A rollout (agentpod.experience.rollout), which may hold the lanes of several workers side by
            side; or an
                agentpod.experience.replay_buffer.Replay that has received one more segment since the last call.

        Returns:
            Metrics to log, every one finite.

        Raises:
            InvalidArgument: The rollout is too small for the hyperparameters.
            DataLoss: A loss or a gradient was not finite; policy and state are left as before the update.
        """
        ...

    def begin_episodes(self) -> None:
        """Forgets the episodes under way: the simulators were reset, and the next rollout begins with new ones."""
        ...

    def fusible(self) -> Fusible:
        """The live state that the learners of one agent fuse; call `refresh` when it was changed."""
        ...

    def share_gradients(self, reduce: Callable[[Tensor], None]) -> None:
        """Has whatever decides a step (gradients, divergences, updates owed) averaged in place by `reduce` henceforth.

        It may raise, which undoes the update under way as any error does.
        """
        ...

    def refresh(self) -> None:
        """Derives again what depends on the state that a fusion has changed."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Everything but the policy that an exact resume needs: contiguous copies by flat names."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from what `state_dict` returned.

        Raises:
            InvalidArgument: A tensor is missing or of another shape.
        """
        ...


@contextmanager
def restored_on_error(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Whatever goes wrong in the block, the tensors have the values they had before it."""
    before = [tensor.clone() for tensor in tensors]
    try:
        yield
    except BaseException:
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
        raise


def non_finite_error(names: Sequence[str], metrics: Tensor, update_number: int) -> DataLoss:
    """The error of an update that was undone.

    Args:
        names: Of the metrics.
        metrics: [minibatches, metrics], at least one not finite.
        update_number: Of the update.
    """
    minibatch, metric = (~metrics.isfinite()).nonzero()[0].tolist()
    return DataLoss(
        f"{names[metric]} is not finite in minibatch {minibatch}, update {update_number}, which was undone; "
        "lower learning_rate or maximum_gradient_norm, or look at the scale of the rewards",
        reason="ERROR_REASON_NON_FINITE",
    )


def load_tensors(
    live: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    any_shape: Collection[str] = (),
) -> None:
    """Copies a saved state into live tensors, after checking that all of it fits.

    Args:
        live: What is copied into, by name.
        wanted: A state of this algorithm: the names and shapes there must be.
        state: What was saved.
        any_shape: Names whose shape may differ.

    Raises:
        InvalidArgument: A tensor is missing or of another shape; nothing was copied.
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
    """Builds the frozen dataclass `cls` from what a specification says, which may know numbers only as floats.

    Args:
        cls: A dataclass whose fields are float, int, bool, str or tuple[int, ...].
        values: By field name; what is missing takes its default.

    Raises:
        InvalidArgument: A name is unknown, or a value is of another type or out of range.
    """
    types = {field.name: get_type_hints(cls)[field.name] for field in fields(cls)}  # type: ignore[arg-type]
    for name in values:
        if name not in types:
            raise InvalidArgument(f"hyperparameter {name!r} is unknown: choose among {', '.join(types)}")
    return cls(**{name: _convert(name, value, types[name]) for name, value in values.items()})


def _convert(name: str, value: object, wanted: Any) -> object:
    """`value` as the type `wanted`; integers pass as floats, and whole floats as integers."""
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
