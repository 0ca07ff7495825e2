"""Owns what acts: an observation normalizer, an actor network and a head, all in one flat buffer.

A worker and an evaluator hold a policy and nothing else of an agent; learners publish one by copying one buffer.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.models.action_heads import DEFAULT_HEAD, Head, head_kind, head_outputs
from agentpod.models.cnn import NO_TORSO, PIXEL_SCALE, TORSOS
from agentpod.models.factory import NetworkFactory
from agentpod.models.mlp import ACTIVATIONS, Shapes, element_count, flat_views
from agentpod.models.normalizer import VARIANCE_FLOOR
from podrace.errors import UNSUITABLE_SPACE, InvalidArgument
from simulators.base import Space

OBSERVATION_CLIP = 10.0
ACTOR_OUTPUT_GAIN = 0.01


@dataclass(frozen=True)
class NetworkSpec:
    """What a policy is made of, beside the spaces of its simulator."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each hidden layer of the actor."""
    activation: str = "tanh"
    """Key of agentpod.models.mlp.ACTIVATIONS."""
    normalize_observations: bool = True
    """Whether observations are shifted by their running mean and divided by their running deviation; those of dtype
    uint8 never are, but divided by 255 instead."""
    head: str = DEFAULT_HEAD
    """Key of agentpod.models.action_heads.HEADS: how the actor's outputs become actions."""
    torso: str = NO_TORSO
    """Key of agentpod.models.cnn.TORSOS: the convolutions that look at pictures before the hidden layers do."""
    recurrent_size: int = 0
    """Numbers that the actor remembers from step to step, between its hidden layers and its head; 0 = nothing."""

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise InvalidArgument(f"activation {self.activation!r} is unknown: choose one of {', '.join(ACTIVATIONS)}")
        if any(size < 1 for size in self.hidden_sizes):
            raise InvalidArgument(f"hidden_sizes {list(self.hidden_sizes)} must all be at least 1")
        if self.torso not in TORSOS:
            raise InvalidArgument(f"torso {self.torso!r} is unknown: choose one of {', '.join(TORSOS)}")
        if self.recurrent_size and not self.hidden_sizes:
            raise InvalidArgument(
                f"recurrent_size {self.recurrent_size} needs a hidden layer before it: give hidden_sizes one"
            )

    def network_factory(self, observation_space: Space) -> NetworkFactory:
        """How its networks are built."""
        return NetworkFactory(observation_space, self.hidden_sizes, self.activation, self.torso, self.recurrent_size)

    def normalizes(self, observation_space: Space) -> bool:
        """Whether these observations are seen in running standard units; bytes have a scale of their own."""
        return self.normalize_observations and observation_space.dtype != torch.uint8


def policy_shapes(observation_space: Space, action_space: Space, network: NetworkSpec) -> Shapes:
    """Names and shapes of a policy's tensors as they lie in its buffer: statistics, actor, what the head needs.

    Raises:
        InvalidArgument: A space cannot be observed or acted in.
    """
    if observation_space.kind != "continuous":
        raise InvalidArgument(
            "a perceptron cannot see discrete observations: let the simulator encode them one-hot",
            reason=UNSUITABLE_SPACE,
        )
    inputs, outputs = math.prod(observation_space.shape), head_outputs(network.head, action_space)
    shapes: dict[str, tuple[int, ...]] = {}
    if network.normalizes(observation_space):
        shapes |= {"observation_mean": (inputs,), "observation_variance": (inputs,)}
    shapes.update(network.network_factory(observation_space).shapes("actor", outputs))
    shapes.update(head_kind(network.head, action_space).extra(action_space))
    return shapes


class Policy:
    """What acts.

        policy = Policy(simulator.observation_space, simulator.action_space, NetworkSpec())
        policy.load(published)
        noise = policy.noise((count,), generator)
        action = policy.act(observation, noise)
        step = simulator.step(policy.to_environment(action))

    and whether it remembers anything or not:

        state = policy.begin(count)
        outputs, state = policy.advance(observation, state)
        action = policy.head.sample(outputs, noise)
        step = simulator.step(policy.to_environment(action))
        policy.reset_state(state, step.terminated | step.truncated)

    Actions are the head's own: int64 [N] if discrete, float32 [N, A] if continuous (A: the elements of
    action_space.shape), unbounded or within [-1, 1]. Not meant for autograd: nothing here requires a gradient.

    Attributes:
        flat: [P] float32, everything the policy knows.
        head: Turns outputs of the actor into actions.
        actor: The network, over views of `flat`.
        actor_flat: [P_a] float32, the part of `flat` that the actor's tensors lie in.
        state_size: S, numbers that the actor remembers from step to step.
        normalizes: Whether observations are seen in running standard units.
        to_environment: Maps actions to the environment's units: clipped to [-1, 1] and spread over [low, high] where
            bounded.
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
        """Lays the tensors out; all are zero (the variance one) until `initialize` or `load`.

        Args:
            observation_space: Continuous; without a torso a shape of rank above 1 is flattened.
            action_space: Continuous or discrete.
            network: Layers and activation.
            flat: Where to live, [P] float32 (a part of a larger buffer, say); its own buffer by default.
            device: Of its own buffer.

        Raises:
            InvalidArgument: A space cannot be observed or acted in.
        """
        shapes = policy_shapes(observation_space, action_space, network)
        self.flat = torch.zeros(element_count(shapes), device=device) if flat is None else flat
        self._views = flat_views(self.flat, shapes)
        self.actor = network.network_factory(observation_space).make("actor", self._views)
        self.state_size = self.actor.state_size
        begin = element_count(_named(shapes, "observation_"))
        self.actor_flat = self.flat[begin : begin + element_count(_named(shapes, "actor."))]
        self.head: Head = head_kind(network.head, action_space).make(action_space, self._views)
        self.to_environment = _action_map(action_space, self.flat.device)
        self._inverse_deviation = torch.empty(0)
        self._bytes = observation_space.dtype == torch.uint8
        self._torso_sees_bytes = network.torso != NO_TORSO
        self.normalizes = network.normalizes(observation_space)
        if self.normalizes:
            self._views["observation_variance"].fill_(1.0)
        self._refresh()

    def tensors(self) -> dict[str, Tensor]:
        """Named views of `flat`, in order: a checkpoint's parts and the table a third party reads the buffer by."""
        return dict(self._views)

    def initialize(self, generator: torch.Generator, output_gain: float = ACTOR_OUTPUT_GAIN) -> None:
        """Draws a new actor: near-uniform choices or means near zero, at the default gain."""
        self.actor.initialize(generator, output_gain)

    def set_head_parameter(self, name: str, value: float) -> None:
        """Sets what the head needs beside the network: all elements of `log_std`, or `exploration`.

        Heads that have no such number are left as they are.
        """
        if name in self._views:
            self._views[name].fill_(value)

    def load(self, flat: Tensor) -> None:
        """Becomes the policy that was published as `flat` [P] float32.

        Raises:
            InvalidArgument: The length differs: it was published by a policy of other spaces or layers.
        """
        if flat.shape != self.flat.shape:
            raise InvalidArgument(
                f"a policy of {self.flat.numel()} numbers cannot load one of {flat.numel()}: "
                "it was published for other spaces or hidden_sizes"
            )
        self.flat.copy_(flat)
        self._refresh()

    def set_statistics(self, mean: Tensor, variance: Tensor) -> None:
        """Normalizes by these from now on: [D] each, any floating dtype."""
        self._views["observation_mean"].copy_(mean)
        self._views["observation_variance"].copy_(variance)
        self._refresh()

    def _refresh(self) -> None:
        """Derives from `flat` what acting would otherwise compute at every step."""
        if "observation_variance" in self._views:
            self._inverse_deviation = (self._views["observation_variance"] + VARIANCE_FLOOR).rsqrt()

    def normalize(self, observation: Tensor) -> Tensor:
        """Observations [B, *shape] as the networks see them: [B, D] float32, within +-10 deviations of the mean where
        they are normalized, within [0, 1] if they are bytes; as bytes for a torso, which scales them itself.
        """
        flattened = observation.flatten(1)
        if self._torso_sees_bytes:
            return flattened
        if not self.normalizes:
            return flattened * PIXEL_SCALE if self._bytes else flattened.float()
        centred = flattened - self._views["observation_mean"]
        return centred.mul_(self._inverse_deviation).clamp_(-OBSERVATION_CLIP, OBSERVATION_CLIP)

    def outputs(self, observation: Tensor) -> Tensor:
        """What the actor says of observations [N, *shape]: [N, outputs], to be read by `head`.

        One that remembers says what it would at the beginning of an episode; see `advance`.
        """
        return self.actor.forward(self.normalize(observation))

    def initial_state(self, count: int) -> Tensor:
        """The state [N, S] of N lanes at the beginning of their episodes: zeros."""
        return self.flat.new_zeros(count, self.state_size)

    def advance(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """`outputs` for observations [N, *shape] of lanes in the midst of their episodes, and their next state.

        Args:
            observation: [N, *shape].
            state: [N, S] float32, from `begin` or from the step before.

        Returns:
            [N, outputs]; the next state [N, S], in memory of its own.
        """
        return self.actor.advance(self.normalize(observation), state)

    def reset_state(self, state: Tensor, done: Tensor) -> None:
        """Zeroes the state [N, S], in place, of the lanes whose episode is done: [N] bool."""
        if self.state_size:
            state.masked_fill_(done.unsqueeze(1), 0.0)

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws the randomness of `leading` acts at once: [*leading, ...]."""
        return self.head.noise(leading, generator)

    def act(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Samples actions, [N] int64 or [N, A] float32, for observations [N, *shape] and noise from `noise`."""
        return self.head.sample(self.outputs(observation), noise)

    def act_greedily(self, observation: Tensor) -> Tensor:
        """What to do without exploring, for observations [N, *shape]."""
        return self.head.mode(self.outputs(observation))


def _named(shapes: Shapes, prefix: str) -> Shapes:
    return {name: shape for name, shape in shapes.items() if name.startswith(prefix)}


def _action_map(action_space: Space, device: torch.device) -> Callable[[Tensor], Tensor]:
    """The map from a head's actions to the environment's units.

    Discrete: the identity. Continuous, [N, A] -> [N, *shape]: a dimension with finite bounds is clipped to [-1, 1],
    which then spans [low, high]; one with an open end is passed on as it is, clipped at the end it has.
    """
    if action_space.kind == "discrete":
        return lambda action: action
    elements = (math.prod(action_space.shape),)
    low = torch.tensor(action_space.low or (-math.inf,), device=device).broadcast_to(elements)
    high = torch.tensor(action_space.high or (math.inf,), device=device).broadcast_to(elements)
    bounded = low.isfinite() & high.isfinite()
    centre = torch.where(bounded, (low + high) / 2, 0.0)
    half_range = torch.where(bounded, (high - low) / 2, 1.0)
    minimum = torch.where(bounded, -1.0, low)
    maximum = torch.where(bounded, 1.0, high)

    def to_environment(action: Tensor) -> Tensor:
        scaled = torch.addcmul(centre, action.clamp(minimum, maximum), half_range)
        return scaled.view(len(action), *action_space.shape)

    return to_environment
