"""Allocates an actor and its critic in one buffer, so that everything that is trained is one slice of it."""

import torch

from agentpod.models.distributions import require_distribution
from agentpod.models.mlp import element_count, flat_views
from agentpod.models.policy import NetworkSpec, Policy, policy_shapes
from simulators.base import Space

CRITIC_OUTPUT_GAIN = 1.0


class ActorCritic:
    """A policy, a critic with the same hidden layers, and the gradient of every trained parameter.

    The buffer is laid out as

        | observation statistics | actor, log_std | critic |
        |<-------------- policy ---------------->|
                                 |<----- parameters ----->|

    Publishing copies its first part, the policy; the optimizer steps its last part, the parameters.

    Attributes:
        policy: The acting part, over the first part of the buffer.
        distribution: The policy's head.
        critic: Maps observations as the policy normalizes them [B, D], or what else it receives [B, S], to values
            [B, 1]. A recurrent critic has a separate state.
        critic_tensors: Views of the critic's weights and biases, by name.
        parameters: [P] float32, the trained parameters.
        gradient: [P] float32, of the loss with respect to `parameters`.
        gradients: Views of the gradient, by name.
        actor_gradient: The network that the actor's backward pass writes into.
        critic_gradient: The network that the critic's backward pass writes into.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        network: NetworkSpec,
        device: torch.device | str = "cpu",
        critic_space: Space | None = None,
    ) -> None:
        """Allocates the tensors; all weights are zero until `initialize`.

        Args:
            observation_space: Of the actor.
            action_space: Of the actor.
            network: Structure of both networks.
            device: Of the tensors.
            critic_space: Space of what the critic receives; None: the observations. If agents have separate
                parameters, it names them as well.

        Raises:
            InvalidArgument: The observation space or the action space is not supported.
        """
        network_factory = network.network_factory(observation_space, action_space)
        policy_layout = policy_shapes(observation_space, action_space, network)
        critic_factory = network.network_factory(critic_space or observation_space, action_space)
        critic_layout = critic_factory.shapes("critic", 1)
        layout = {**policy_layout, **critic_layout}
        statistics = element_count({name: size for name, size in layout.items() if name.startswith("observation_")})
        policy_size = element_count(policy_layout)

        buffer = torch.zeros(element_count(layout), device=device)
        self.policy = Policy(observation_space, action_space, network, flat=buffer[:policy_size])
        self.distribution = require_distribution(self.policy.head)
        self.critic_tensors = flat_views(buffer[policy_size:], critic_layout)
        self.critic = critic_factory.make("critic", self.critic_tensors)
        self.parameters = buffer[statistics:]

        gradient_buffer = torch.zeros_like(buffer)
        self.gradient = gradient_buffer[statistics:]
        self.gradients = flat_views(gradient_buffer, layout)
        self.actor_gradient = network_factory.make("actor", self.gradients)
        self.critic_gradient = critic_factory.make("critic", self.gradients)

    def initialize(self, generator: torch.Generator, initial_log_std: float) -> None:
        """Initializes actor and critic with random weights, and log_std with `initial_log_std`."""
        self.policy.initialize(generator)
        self.policy.set_head_parameter("log_std", initial_log_std)
        self.critic.initialize(generator, CRITIC_OUTPUT_GAIN)
