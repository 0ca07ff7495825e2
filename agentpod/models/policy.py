"""Implements policies: an observation normalizer, an actor network and an action head in one flat buffer.

Workers and evaluators hold only the policy of an agent. A learner publishes a policy by copying its buffer.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from agentpod.models.action_heads import (
    DEFAULT_HEAD,
    Head,
    action_limits,
    bounded_dimensions,
    head_kind,
    head_outputs,
    masked_head,
)
from agentpod.models.action_mask import output_mask
from agentpod.models.agent_networks import with_agents
from agentpod.models.cnn import NO_TORSO, PIXEL_SCALE, TORSOS
from agentpod.models.distributions import GaussianOfRows
from agentpod.models.entry_scaling import OBSERVATION_CLIP, EntryScaling
from agentpod.models.factory import NetworkFactory
from agentpod.models.mlp import ACTIVATIONS, Shapes, element_count, flat_views
from agentpod.models.normalizer import VARIANCE_FLOOR
from podrace.errors import UNSUITABLE_SPACE, InvalidArgument
from podrace.spaces.entries import VECTOR
from simulators.base import Space

ACTOR_OUTPUT_GAIN = 0.01
MOST_PARAMETERS = 2**28
"""Most parameters of a policy, 1 GiB."""


@dataclass(frozen=True)
class NetworkSpec:
    """The structure of a policy, apart from the spaces of its simulator."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each hidden layer of the actor."""
    activation: str = "tanh"
    """Key of agentpod.models.mlp.ACTIVATIONS."""
    normalize_observations: bool = True
    """Whether observations are normalized by their running mean and standard deviation. Observations of dtype uint8 are
    divided by 255 instead."""
    head: str = DEFAULT_HEAD
    """Key of agentpod.models.action_heads.HEADS: how the actor's outputs become actions."""
    torso: str = NO_TORSO
    """Key of agentpod.models.cnn.TORSOS: the convolutions before the hidden layers, for image observations."""
    recurrent_size: int = 0
    """Size of the actor's GRU, between its hidden layers and its head; 0 = no recurrence."""
    network_class: str = ""
    """Class of the actor's network, see agentpod.models.user_network; empty: layers of `hidden_sizes`."""
    network_options: tuple[tuple[str, float], ...] = ()
    """Arguments of that class, by name and in the order of the names."""
    share_parameters: bool = True
    """Whether the agents of a team have one policy; otherwise each has separate parameters and statistics, and every
    tensor has a leading dimension [A]."""

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise InvalidArgument(f"activation {self.activation!r} is unknown: choose one of {', '.join(ACTIVATIONS)}")
        if any(size < 1 for size in self.hidden_sizes):
            raise InvalidArgument(f"hidden_sizes {list(self.hidden_sizes)} must all be at least 1")
        if self.torso not in TORSOS:
            raise InvalidArgument(f"torso {self.torso!r} is unknown: choose one of {', '.join(TORSOS)}")
        if self.recurrent_size and not self.hidden_sizes:
            raise InvalidArgument(
                f"recurrent_size {self.recurrent_size} needs a hidden layer before it: add one to hidden_sizes"
            )
        if self.network_class and (self.recurrent_size or self.torso != NO_TORSO):
            name = "recurrent_size" if self.recurrent_size else "torso"
            raise InvalidArgument(f"network_class {self.network_class!r} replaces all layers: leave out {name}")
        if not self.share_parameters:
            self._check_separate()

    def _check_separate(self) -> None:
        torso = "" if self.torso == NO_TORSO else self.torso
        others = {"torso": torso, "recurrent_size": self.recurrent_size, "network_class": self.network_class}
        for name, value in others.items():
            if value:
                raise InvalidArgument(
                    f"share_parameters = false: separate parameters of agents need layers of hidden_sizes; leave out "
                    f"{name} (it is {value!r}) or share the parameters"
                )

    def separate_agents(self, observation_space: Space) -> int:
        """Returns the number of agents with separate parameters, A; 0 = all agents share them."""
        return 0 if self.share_parameters else observation_space.lanes

    def network_factory(self, observation_space: Space, action_space: Space) -> NetworkFactory:
        """Returns the factory of its networks for these spaces."""
        return NetworkFactory(
            observation_space,
            self.hidden_sizes,
            self.activation,
            self.torso,
            self.recurrent_size,
            self.network_class,
            self.network_options,
            head_outputs(self.head, action_space) if self.network_class else 0,
            self.separate_agents(observation_space),
        )

    def normalizes(self, observation_space: Space) -> bool:
        """Whether observations of this space are normalized by running statistics; uint8 observations are not.

        Of composite observations only the entries with the encoding `vector` are.
        """
        if observation_space.entries:
            has_vectors = any(entry.encoding == VECTOR for entry in observation_space.entries)
            return self.normalize_observations and has_vectors
        return self.normalize_observations and observation_space.dtype != torch.uint8


def policy_shapes(observation_space: Space, action_space: Space, network: NetworkSpec) -> Shapes:
    """Returns names and shapes of a policy's tensors in buffer order: statistics, actor, parameters of the head.

    Raises:
        InvalidArgument: The observation space or the action space is not supported, or the policy is too large.
    """
    if observation_space.kind not in ("continuous", "composite"):
        raise InvalidArgument(
            f"{observation_space.kind} observations are not supported: let the simulator encode them one-hot",
            reason=UNSUITABLE_SPACE,
        )
    inputs, outputs = math.prod(observation_space.shape), head_outputs(network.head, action_space)
    agents = network.separate_agents(observation_space)
    leading = (agents,) if agents else ()
    shapes: dict[str, tuple[int, ...]] = {}
    if network.normalizes(observation_space):
        shapes |= dict.fromkeys(("observation_mean", "observation_variance"), (*leading, inputs))
    shapes.update(network.network_factory(observation_space, action_space).shapes("actor", outputs))
    extra = head_kind(network.head, action_space).extra(action_space)
    shapes.update({name: (*leading, *shape) for name, shape in extra.items()})
    parameters = sum(math.prod(shape) for shape in shapes.values())
    if parameters > MOST_PARAMETERS:
        raise InvalidArgument(f"the policy has {parameters} parameters, at most {MOST_PARAMETERS}: lower hidden_sizes")
    return shapes


class Policy:
    """Chooses actions for observations.

        policy = Policy(simulator.observation_space, simulator.action_space, NetworkSpec())
        policy.load(published)
        noise = policy.noise((count,), generator)
        action = policy.act(observation, noise)
        step = simulator.step(policy.to_environment(action))

    The general loop, which also works for recurrent policies:

        state = policy.initial_state(count)
        outputs, state = policy.advance(observation, state)
        action = policy.head.sample(outputs, noise)
        step = simulator.step(policy.to_environment(action))
        policy.reset_state(state, step.terminated | step.truncated)

    Actions are in the head's units: int64 [N] if discrete; int64 [N, A] if multi-discrete or multi-binary (A: the
    elements of action_space.shape); float32 [N, A] if continuous, unbounded or within [-1, 1]. No tensor requires a
    gradient. If agents have separate parameters, rows of observations are in the order of lanes: those of the agents of
    an environment one after another.

    Attributes:
        observation_space: What it acts on.
        action_space: What it chooses from.
        network: Its structure.
        flat: [P] float32, all tensors of the policy.
        head: Turns outputs of the actor into actions.
        actor: The network, over views of `flat`.
        actor_flat: [P_a] float32, the part of `flat` that holds the actor's tensors.
        state_size: S, size of the actor's recurrent state; 0 = none.
        agents: Number of agents with separate parameters, A; 0 = one policy for all.
        normalizes: Whether observations are normalized by running statistics.
        mask: Sets the outputs of invalid actions; None where observations have no action mask.
        action_bounds: How actions are clamped and scaled to the environment's units; None unless they are continuous.
        to_environment: Maps actions to the environment's units: clamped to [-1, 1] and scaled to [low, high] where both
            bounds are finite.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        network: NetworkSpec,
        *,
        flat: Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocates the tensors; all are 0 (the variance 1) until `initialize` or `load`.

        Args:
            observation_space: Continuous or composite; without a torso, observations of rank above 1 are flattened.
            action_space: Of any kind that the head supports.
            network: Structure of the policy.
            flat: [P] float32, the memory to use, such as a slice of a larger buffer; by default a new buffer.
            device: Of a new buffer.

        Raises:
            InvalidArgument: The observation space or the action space is not supported.
        """
        shapes = policy_shapes(observation_space, action_space, network)
        self.observation_space, self.action_space, self.network = observation_space, action_space, network
        self.flat = torch.zeros(element_count(shapes), device=device) if flat is None else flat
        self._views = flat_views(self.flat, shapes)
        self.actor = network.network_factory(observation_space, action_space).make("actor", self._views)
        self.state_size = self.actor.state_size
        begin = element_count(_named(shapes, "observation_"))
        self.actor_flat = self.flat[begin : begin + element_count(_named(shapes, "actor."))]
        self.agents = network.separate_agents(observation_space)
        self.head = self._make_head()
        self.action_bounds = _action_bounds(action_space, self.flat.device)
        self.to_environment = _action_map(action_space, self.action_bounds)
        self._inverse_deviation = torch.empty(0, device=self.flat.device)
        entries = observation_space.entries
        self._scaling = EntryScaling(entries, self.flat.device, self.agents) if entries else None
        self.mask = output_mask(observation_space, action_space, network.head)
        if self.mask:
            self.head = masked_head(self.head)
        self._bytes = observation_space.dtype == torch.uint8
        self._torso_sees_bytes = network.torso != NO_TORSO
        self.normalizes = network.normalizes(observation_space)
        if self.normalizes:
            self._views["observation_variance"].fill_(1.0)
        self._refresh()

    def _make_head(self) -> Head:
        if self.agents and "log_std" in self._views:
            return GaussianOfRows(self._views["log_std"].shape[-1])
        return head_kind(self.network.head, self.action_space).make(self.action_space, self._views)

    def tensors(self) -> dict[str, Tensor]:
        """Returns named views of `flat` in order, as checkpoints store them and PolicySpec lists them."""
        return dict(self._views)

    def initialize(self, generator: torch.Generator, output_gain: float = ACTOR_OUTPUT_GAIN) -> None:
        """Draws new actor weights. At the default gain, choices are nearly uniform or means near 0."""
        self.actor.initialize(generator, output_gain)

    def set_head_parameter(self, name: str, value: float) -> None:
        """Sets all elements of the head's parameter `name` (`log_std` or `exploration`), if the head has it."""
        if name in self._views:
            self._views[name].fill_(value)

    def load(self, flat: Tensor) -> None:
        """Replaces all tensors by those of a published policy, `flat` [P] float32.

        Raises:
            InvalidArgument: The length differs, because the policy has other spaces or layers.
        """
        if flat.shape != self.flat.shape:
            raise InvalidArgument(
                f"a policy of {self.flat.numel()} parameters cannot load one of {flat.numel()}: "
                "it was published for other spaces or hidden_sizes"
            )
        self.flat.copy_(flat)
        self._refresh()

    def set_statistics(self, mean: Tensor, variance: Tensor) -> None:
        """Sets the mean and variance that observations are normalized by: [D] or [A, D] each, any floating dtype."""
        self._views["observation_mean"].copy_(mean)
        self._views["observation_variance"].copy_(variance)
        self._refresh()

    def _refresh(self) -> None:
        """Precomputes from `flat` what every step would otherwise compute again."""
        if self._scaling:
            self._scaling.refresh(self._views.get("observation_mean"), self._views.get("observation_variance"))
        elif "observation_variance" in self._views:
            # In place: CUDA graphs keep the address.
            torch.rsqrt(self._views["observation_variance"] + VARIANCE_FLOOR, out=self._inverse_deviation)

    def normalize(self, observation: Tensor) -> Tensor:
        """Returns observations [B, *shape] as the networks receive them: [B, D].

        They are float32: standardized and clamped to [-10, 10] if `normalizes`, divided by 255 if uint8, else
        unchanged. For a torso, uint8 observations stay uint8, because the torso scales them itself. Each entry of a
        composite observation is treated by its encoding, see EntryScaling. If agents have separate parameters, rows are
        in the order of lanes and get the number of their agent as one more column.
        """
        scaled = self._scaled(observation.flatten(1))
        return with_agents(scaled, self.agents) if self.agents else scaled

    def _scaled(self, flattened: Tensor) -> Tensor:
        if self._scaling:
            return self._scaling.apply(flattened)
        if self._torso_sees_bytes:
            return flattened
        if not self.normalizes:
            return flattened * PIXEL_SCALE if self._bytes else flattened.float()
        rows = flattened.reshape(-1, self.agents, flattened.shape[1]) if self.agents else flattened
        centred = rows - self._views["observation_mean"]
        scaled = centred.mul_(self._inverse_deviation).clamp_(-OBSERVATION_CLIP, OBSERVATION_CLIP)
        return scaled.flatten(0, 1) if self.agents else scaled

    def outputs(self, observation: Tensor) -> Tensor:
        """Returns the actor's outputs [N, outputs] for observations [N, *shape]; `head` interprets them.

        A recurrent actor starts from a zero state, as at the beginning of an episode; see `advance`.
        """
        inputs = self.normalize(observation)
        outputs = self.actor.forward(inputs)
        return self.mask.apply(outputs, inputs) if self.mask else outputs

    def initial_state(self, count: int) -> Tensor:
        """Returns the recurrent state [N, S] of N lanes at the beginning of their episodes: zeros."""
        return self.flat.new_zeros(count, self.state_size)

    def advance(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the actor's outputs and the next recurrent state.

        Args:
            observation: [N, *shape].
            state: [N, S] float32, from `initial_state` or from the previous step.

        Returns:
            [N, outputs]; the next state [N, S], in new memory.
        """
        inputs = self.normalize(observation)
        outputs, following = self.actor.advance(inputs, state)
        return (self.mask.apply(outputs, inputs) if self.mask else outputs), following

    def reset_state(self, state: Tensor, done: Tensor) -> None:
        """Zeroes the recurrent state [N, S], in place, of the lanes whose episode is done: [N] bool."""
        if self.state_size:
            state.masked_fill_(done.unsqueeze(1), 0.0)

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws the noise of `leading` actions at once: [*leading, ...]."""
        return self.head.noise(leading, generator)

    def act(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Samples actions, [N] int64 or [N, A] float32, for observations [N, *shape] and noise from `noise`."""
        return self.head.sample(self.outputs(observation), noise)

    def act_greedily(self, observation: Tensor) -> Tensor:
        """Returns actions without exploration for observations [N, *shape]."""
        return self.head.mode(self.outputs(observation))


def _named(shapes: Shapes, prefix: str) -> Shapes:
    return {name: shape for name, shape in shapes.items() if name.startswith(prefix)}


class ActionBounds(NamedTuple):
    """Maps an action a of the head to the environment's units: offset + clamp(a, minimum, maximum) scale. All [A]."""

    minimum: Tensor
    maximum: Tensor
    scale: Tensor
    offset: Tensor


def _action_bounds(action_space: Space, device: torch.device) -> ActionBounds | None:
    """Returns how the actions of a continuous space are clamped and scaled; None for other spaces.

    A dimension with two bounds is clamped to [-1, 1] and scaled so that [-1, 1] spans [low, high]. A dimension that
    `bounded_dimensions` does not count as bounded is not scaled, only clamped at its finite bounds, if it has some.
    """
    if action_space.kind != "continuous":
        return None
    elements = (math.prod(action_space.shape),)
    low, high = (bound.to(device).broadcast_to(elements) for bound in action_limits(action_space))
    bounded = bounded_dimensions(low, high)
    return ActionBounds(
        minimum=torch.where(bounded, -1.0, low),
        maximum=torch.where(bounded, 1.0, high),
        scale=torch.where(bounded, (high - low) / 2, 1.0),
        offset=torch.where(bounded, low / 2 + high / 2, 0.0),
    )


def _action_map(action_space: Space, bounds: ActionBounds | None) -> Callable[[Tensor], Tensor]:
    """Returns the map from a head's actions [N, A] to the environment's units [N, *shape]; identity if discrete."""
    if bounds is None:
        if len(action_space.shape) > 1:
            return lambda action: action.view(len(action), *action_space.shape)
        return lambda action: action
    minimum, maximum, scale, offset = bounds

    def to_environment(action: Tensor) -> Tensor:
        scaled = torch.addcmul(offset, action.clamp(minimum, maximum), scale)
        return scaled.view(len(action), *action_space.shape)

    return to_environment
