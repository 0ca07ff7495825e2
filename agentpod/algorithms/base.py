"""Owns what every algorithm is to its learner, and how its hyperparameters are read from a specification."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints

import torch
from torch import Tensor

from agentpod.policy import NetworkSpec, Policy
from agentpod.rollout import Rollout
from podrace.errors import InvalidArgument
from simulators.base import Space

Hyperparameters = TypeVar("Hyperparameters")


class Algorithm(Protocol):
    """Turns rollouts into a better policy.

        algorithm = make("ppo", observation_space, action_space, {"discount": 0.99}, seed=1)
        algorithm.policy.load(checkpoint_policy)
        algorithm.load_state_dict(checkpoint_state)
        while budget_left:
            publish(algorithm.policy.flat, version=algorithm.update_number)
            metrics = algorithm.update(next_full_rollout())
        save(algorithm.policy.tensors(), algorithm.state_dict())

    An algorithm is deterministic: its seed, its state and the rollouts decide every bit of what follows.

    Attributes:
        settings_type: Dataclass of its hyperparameters.
        action_kinds: Kinds of action space it can learn in.
        network: Of its policy, so that workers and evaluators can build the same.
        policy: What it improves; copy `flat` between updates only.
        horizon: Steps of each environment in the rollouts it wants.
        update_number: Updates done in the agent's life.
    """

    settings_type: ClassVar[type[Any]]
    action_kinds: ClassVar[frozenset[str]]
    network: NetworkSpec
    policy: Policy
    horizon: int
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

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Learns from one rollout, which may hold the lanes of several workers side by side.

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

    def state_dict(self) -> dict[str, Tensor]:
        """Everything but the policy that an exact resume needs: contiguous copies by flat names."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from what `state_dict` returned.

        Raises:
            InvalidArgument: A tensor is missing or of another shape.
        """
        ...


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
