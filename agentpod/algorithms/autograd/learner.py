"""Implements what user's algorithms of both families have in common: networks, optimizer, and one gradient step."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from agentpod.algorithms.autograd import actions
from agentpod.algorithms.autograd.loss import LOSS, evaluate
from agentpod.algorithms.autograd.networks import TrainedNetworks
from agentpod.algorithms.fusible import Fusible
from agentpod.capture.graph_replay import Record
from agentpod.models.normalizer import SharedMoments
from agentpod.models.policy import Policy
from podrace.errors import DataLoss
from podrace.plugins.user_calls import calls_user_code
from podrace.seeding import derive_seed
from podrace.specification.declaration import place_of
from simulators.base import Space

MODULES, OPTIMIZER = "modules", "optimizer"


class LossDifferentiation:
    """What an author of an algorithm implements and may use; RolloutAlgorithm and ReplayAlgorithm add the updates.

    Attributes:
        hyperparameters: The settings of the agent, of the class `settings_type`.
        observation_size: D, length of an observation as networks receive it.
        action_size: A, number of choices, or of dimensions of a continuous action.
        generator: Random numbers for the loss; the same after a resume.
        targets: Whether the policy and the modules have target networks.
    """

    settings_type: ClassVar[type[Any]]
    targets: ClassVar[bool] = False
    hyperparameters: Any
    generator: torch.Generator
    _trained_networks: TrainedNetworks

    # --- what the author implements ---------------------------------------------------------------------------

    def loss(self, batch: Any) -> Any:
        """Returns the loss [] of a batch, or the loss and the errors [B] by which replayed steps are prioritized."""
        raise NotImplementedError

    def modules(self) -> Mapping[str, nn.Module]:
        """Returns new networks besides the policy, critics for instance, by name. Default: none."""
        return {}

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer | None:
        """Returns the optimizer of all parameters. Default: Adam."""
        return None

    # --- what the author may use ------------------------------------------------------------------------------

    def actor(self, observation: Tensor) -> Tensor:
        """Returns the outputs [B, outputs] of the policy's network; the loss can be differentiated through them."""
        return self._trained_networks.actor(observation)

    def target_actor(self, observation: Tensor) -> Tensor:
        """Returns the outputs of the policy's target network."""
        return self._trained_networks.target_actor(observation)

    @property
    def policy_network(self) -> Any:
        """The policy's network, an instance of the class that `network_class` names; it may have further methods."""
        return self._trained_networks.policy_network

    @property
    def target_policy_network(self) -> Any:
        """The target network of `policy_network`; call it under `torch.no_grad`."""
        return self._trained_networks.target_policy_network

    def module(self, name: str) -> Any:
        """Returns a network that `modules` made."""
        return self._trained_networks.modules[name]

    def target(self, name: str) -> Any:
        """Returns the target network of a network that `modules` made; call it under `torch.no_grad`."""
        return self._trained_networks.target_modules[name]

    def frozen(self, name: str, *inputs: Tensor) -> Any:
        """Calls a network such that gradients reach its inputs and not its parameters."""
        module = self._trained_networks.modules[name]
        constants = {key: tensor.detach() for key, tensor in module.named_parameters()}
        return torch.func.functional_call(module, constants, inputs)

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Returns log-probabilities [B] of actions under a `stochastic` policy with these outputs."""
        return actions.log_prob(outputs, action, self._trained_networks.log_std, self._trained_networks.policy.head)

    def entropy(self, outputs: Tensor) -> Tensor:
        """Returns the mean entropy [] of a `stochastic` policy with these outputs."""
        return actions.entropy(outputs, self._trained_networks.log_std, self._trained_networks.policy.head)

    def squashed_sample(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Samples actions [B, A] of a `squashed` policy with their log-probabilities [B]."""
        return actions.squashed_sample(outputs, self.generator)

    def capture(self, record: Record | None = None) -> str:
        """See Capturable.capture: the loss is code of a user, which may wait for the device at any place."""
        return "its loss is user code"

    # --- machinery --------------------------------------------------------------------------------------------

    def _measure(self, observation_space: Space, action_space: Space) -> None:
        self.observation_size = math.prod(observation_space.shape)
        self.action_size = action_space.n if action_space.kind == "discrete" else math.prod(action_space.shape)

    def _build_trained_networks(self, policy: Policy, seed: int) -> TrainedNetworks:
        """Moves the policy and the author's modules into one buffer; weights are drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "initialize", MODULES))
            with calls_user_code(type(self), MODULES):
                networks = TrainedNetworks(policy, self.modules(), targets=self.targets)
        settings = self.hyperparameters
        with calls_user_code(type(self), OPTIMIZER):
            networks.optimize(
                self.optimizer,
                learning_rate=settings.learning_rate,
                epsilon=settings.adam_epsilon,
                maximum_norm=settings.maximum_gradient_norm,
            )
        return networks

    def _differentiate(self, batch: Any) -> tuple[Tensor, Tensor | None]:
        """Makes one gradient step; returns the loss and the norm of the gradient [2], and the errors [B] if known."""
        loss, errors = evaluate(self, batch)
        with calls_user_code(type(self), LOSS):
            norm = self._trained_networks.step(loss)
        return torch.stack((loss.detach(), norm)), errors

    def _explained(self, error: DataLoss) -> DataLoss:
        """Adds class and line of the loss to the error of an update that is not finite."""
        return DataLoss(f"{place_of(type(self).loss)}: {error.message}", reason=error.reason)

    def _fusible_networks(self, counts: Mapping[str, Tensor], statistics: Mapping[str, SharedMoments]) -> Fusible:
        networks = self._trained_networks
        optimizer = {name: one for name, one in networks.tensors().items() if name.startswith("networks.optimizer.")}
        averaged = {name: one for name, one in networks.buffers().items() if one.is_floating_point()}
        counted = {name: one for name, one in networks.buffers().items() if name not in averaged and not one.dim()}
        return Fusible(
            parameters={"networks.flat": networks.parameters},
            targets=({"networks.target": networks.target} if len(networks.target) else {}) | averaged,
            moments={name: tensor for name, tensor in optimizer.items() if tensor.dim()},
            counts={name: tensor for name, tensor in optimizer.items() if not tensor.dim()} | counted | dict(counts),
            statistics=statistics,
        )
