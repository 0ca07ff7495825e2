"""Turns parameters that Stable-Baselines3 saved into those of a podrace policy with the same actions. Pure.

A Gaussian policy of Stable-Baselines3 acts in units of the environment, a = clip(mean, low, high). One of podrace acts
in units of the policy, in which -1 and 1 are the bounds. Where both bounds are finite, its last layer is therefore
(mean - offset) / scale, with offset = (low + high) / 2 and scale = (high - low) / 2.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.imports.model_file import SavedModel
from agentpod.models.policy import NetworkSpec, Policy
from podrace.errors import InvalidArgument
from simulators.base import Space

ACTIVATIONS = {"Tanh": "tanh", "ReLU": "relu", "ELU": "elu"}
GAUSSIAN = "log_std"


@dataclass(frozen=True)
class Converted:
    """A policy of podrace."""

    algorithm: str
    policy: Policy


@dataclass(frozen=True)
class _Layout:
    """Where the layers of an actor are."""

    algorithm: str
    head: str
    hidden: str
    """Name of the hidden layers before their number; every second number is an activation."""
    outputs: tuple[str, ...]
    """Names of the last layers, whose outputs follow each other; empty: the last one of `hidden`."""
    activation: str
    """Default of the policy class."""


GRADIENT = _Layout("ppo", "stochastic", "mlp_extractor.policy_net", ("action_net",), "tanh")
SOFT = _Layout("sac", "squashed", "actor.latent_pi", ("actor.mu", "actor.log_std"), "relu")
TWIN = _Layout("td3", "deterministic", "actor.mu", (), "relu")
VALUES = _Layout("dqn", "values", "q_net.q_net", (), "relu")


def convert(
    model: SavedModel, observation_space: Space, action_space: Space, statistics: Mapping[str, Tensor] | None = None
) -> Converted:
    """Returns the policy of a model.

    Args:
        model: The model.
        observation_space: Of the environment.
        action_space: Of the environment.
        statistics: `observation_mean` and `observation_variance`, if it was trained with VecNormalize.

    Raises:
        InvalidArgument: The policy is of a kind that is not converted, or is for other spaces.
    """
    layout = _layout(model)
    _check_spaces(observation_space)
    layers = _layers(model.tensors, layout)
    network = NetworkSpec(
        hidden_sizes=tuple(len(weight) for weight, _ in layers[:-1]),
        activation=_activation(model, layout),
        normalize_observations=bool(statistics),
        head=layout.head,
    )
    policy = Policy(observation_space, action_space, network)
    wanted = {f"actor.{index}.{part}": each for index, pair in enumerate(layers) for part, each in _named(pair)}
    wanted |= dict(statistics or {}) | _parameters_of_head(model, policy)
    _scale_outputs(wanted, policy, len(layers) - 1)
    own = policy.tensors()
    if {name: each.shape for name, each in own.items()} != {name: each.shape for name, each in wanted.items()}:
        raise InvalidArgument(
            f"the model has {layers[0][0].shape[1]} inputs and {len(layers[-1][0])} outputs, which do not fit the"
            f" observations {list(observation_space.shape)} and the actions of the environment; is it the same one?"
        )
    for name, tensor in own.items():
        tensor.copy_(wanted[name])
    policy.load(policy.flat.clone())
    algorithm = "a2c" if layout is GRADIENT and "clip_range" not in model.settings else layout.algorithm
    return Converted(algorithm, policy)


def _layout(model: SavedModel) -> _Layout:
    names = model.tensors.keys()
    if "action_net.weight" in names and "lstm_actor.weight_ih_l0" not in names:
        layout = GRADIENT
    elif {"actor.mu.weight", "actor.log_std.weight"} <= names:
        layout = SOFT
    elif "actor.mu.0.weight" in names and not any(name.startswith("actor.log_std") for name in names):
        layout = TWIN
    elif "q_net.q_net.0.weight" in names:
        layout = VALUES
    else:
        raise InvalidArgument(
            f"the model is none of PPO, A2C, SAC, TD3, DDPG and DQN with MlpPolicy (its first parameters:"
            f" {', '.join(sorted(names)[:3])})"
        )
    if found := [name for name in names if "features_extractor." in name]:
        raise InvalidArgument(f"only models with MlpPolicy are converted; this one has {found[0]}")
    if model.setting("use_sde", False):
        raise InvalidArgument("a model with state-dependent exploration (use_sde) is not converted")
    return layout


def _check_spaces(observed: Space) -> None:
    if observed.kind != "continuous" or not observed.dtype.is_floating_point:
        raise InvalidArgument(
            "only models that observe vectors of numbers are converted, not"
            f" {observed.kind} observations of {observed.dtype}"
        )


def _layers(tensors: Mapping[str, Tensor], layout: _Layout) -> list[tuple[Tensor, Tensor]]:
    """Returns weight and bias of each layer, the outputs last."""
    pattern = re.compile(rf"{re.escape(layout.hidden)}\.(\d+)\.weight")
    numbers = sorted(int(match[1]) for name in tensors if (match := pattern.fullmatch(name)))
    names = [f"{layout.hidden}.{number}" for number in numbers]
    try:
        found = [(tensors[f"{name}.weight"], tensors[f"{name}.bias"]) for name in names]
        if layout.outputs:
            last = [tuple(tensors[f"{name}.{part}"] for part in ("weight", "bias")) for name in layout.outputs]
            found.append((torch.cat([pair[0] for pair in last]), torch.cat([pair[1] for pair in last])))
    except KeyError as error:
        raise InvalidArgument(f"the model has no parameter {error.args[0]}") from None
    if any(weight.ndim != 2 for weight, _ in found) or numbers != list(range(0, 2 * len(numbers), 2)):
        raise InvalidArgument(f"the layers {', '.join(names)} of the model are not those of an MlpPolicy")
    return found


def _named(pair: tuple[Tensor, Tensor]) -> list[tuple[str, Tensor]]:
    return [("weight", pair[0].clone()), ("bias", pair[1].clone())]


def _activation(model: SavedModel, layout: _Layout) -> str:
    given = model.policy_setting("activation_fn")
    name = re.sub(r"\W+$", "", given).rpartition(".")[2] if given else ""
    if name and name not in ACTIVATIONS:
        raise InvalidArgument(f"activation_fn {name}: a policy of podrace has one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name] if name else layout.activation


def _parameters_of_head(model: SavedModel, policy: Policy) -> dict[str, Tensor]:
    """Returns the parameters by which the head explores; those that the model does not have are 0."""
    own = {name: torch.zeros_like(tensor) for name, tensor in policy.tensors().items() if not _is_layer(name)}
    if GAUSSIAN in own and GAUSSIAN in model.tensors:
        own[GAUSSIAN] = model.tensors[GAUSSIAN].clone()
    if "exploration" in own:
        own["exploration"].fill_(float(model.setting("exploration_rate", 0.0)))
    return own


def _is_layer(name: str) -> bool:
    return name.startswith(("actor.", "observation_"))


def _scale_outputs(wanted: dict[str, Tensor], policy: Policy, last: int) -> None:
    """Changes the outputs of a Gaussian from units of the environment to units of the policy."""
    bounds = policy.action_bounds
    weight, bias = f"actor.{last}.weight", f"actor.{last}.bias"
    if bounds is None or policy.network.head != GRADIENT.head or wanted[bias].shape != bounds.scale.shape:
        return
    scale, offset = bounds.scale.double(), bounds.offset.double()
    wanted[weight] = (wanted[weight].double() / scale.unsqueeze(-1)).float()
    wanted[bias] = ((wanted[bias].double() - offset) / scale).float()
    wanted[GAUSSIAN] = (wanted[GAUSSIAN].double() - scale.log()).float()
