"""Keeps everything that a user-defined algorithm trains in one flat buffer, which is clipped, stepped and fused as one.

The buffer is laid out as

    | observation statistics | actor, parameters of the head | the user's modules |
    |<----------------- policy ------------------->|
                             |<------------------ parameters ------------------->|

Every parameter of a module is a view of it, and its `grad` a view of a second buffer of the same layout.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from agentpod.algorithms.autograd.torch_optimizer import TorchOptimizer
from agentpod.algorithms.flat_adam import FlatAdam
from agentpod.models.mlp import Differentiable, Network, Sequences, element_count, flat_views
from agentpod.models.policy import Policy
from podrace.errors import UNUSABLE_ALGORITHM, InvalidArgument

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer | None]


class TrainedNetworks:
    """The policy and the modules of a user-defined algorithm, their gradient, targets and optimizer.

        networks = TrainedNetworks(policy, {"critic": critic}, targets=True)
        networks.optimize(None, learning_rate=3e-4, epsilon=1e-8, maximum_norm=10.0)
        outputs = networks.actor(observation)
        norm = networks.step(loss_of(outputs, networks.modules["critic"](observation)))
        networks.update_target(0.005)

    Attributes:
        policy: As given, over the first part of the buffer.
        modules: The user's modules, by name.
        target_modules: Their targets, which do not require gradients; empty without targets.
        parameters: [P] float32, everything that is trained.
        gradient: [P] float32, of the loss with respect to `parameters`.
        leaves: The parameters that a user-defined optimizer gets.
        policy_network: The policy's network if it is a module of the user (`network_class`), else an empty module.
        target_policy_network: Its target; None without one.
        log_std: [A], the differentiable log standard deviation of the head, if it has one.
        optimizer: Steps `parameters`.
    """

    optimizer: FlatAdam | TorchOptimizer
    policy_network: nn.Module = nn.Module()
    target_policy_network: nn.Module | None = None

    def __init__(self, policy: Policy, modules: Mapping[str, nn.Module], *, targets: bool) -> None:
        """Moves a policy and modules, with their values, into one buffer.

        Raises:
            InvalidArgument: A parameter is not float32.
        """
        device, self.modules = policy.flat.device, dict(modules)
        for name, module in self.modules.items():
            _check_parameters(name, module.to(device))
        own = [parameter for module in self.modules.values() for parameter in module.parameters()]
        buffer = torch.cat([policy.flat, *(parameter.detach().flatten() for parameter in own)])
        gradient = torch.zeros_like(buffer)
        size = len(policy.flat)
        self.policy = Policy(policy.observation_space, policy.action_space, policy.network, flat=buffer[:size])
        self.policy.load(policy.flat)
        shapes = {name: tuple(view.shape) for name, view in policy.tensors().items()}
        statistics = element_count({name: shape for name, shape in shapes.items() if name.startswith("observation_")})
        self.parameters, self.gradient = buffer[statistics:], gradient[statistics:]
        self.target = self.parameters.clone() if targets else self.parameters.new_empty(0)
        gradients = flat_views(gradient[:size], shapes)
        self._build_actors(gradients, gradient[statistics : statistics + len(self.policy.actor_flat)], targets=targets)
        self.log_std: Tensor | None = None
        if "log_std" in shapes:
            self.log_std = _leaf(self.policy.tensors()["log_std"], gradients["log_std"])
            self.leaves.append(self.log_std)
        _rebase(own, buffer[size:], gradient[size:])
        self.leaves += [parameter for parameter in own if parameter.requires_grad]
        self.target_modules = self._copied_modules(size - statistics) if targets else {}

    def _build_actors(self, gradients: Mapping[str, Tensor], actor_gradient: Tensor, *, targets: bool) -> None:
        policy, views = self.policy, self.policy.tensors()
        shapes = {name: tuple(view.shape) for name, view in views.items() if name.startswith("actor.")}
        factory = policy.network.network_factory(policy.observation_space, policy.action_space)
        target_views = flat_views(self.target[: len(policy.actor_flat)], shapes) if targets else {}
        self._target_actor = factory.make("actor", target_views) if targets else None
        self._network: Network | None = None
        if policy.network.network_class:
            self.policy_network = factory.user_network().bound(views, gradients)
            self.target_policy_network = factory.user_network().bound(target_views, None) if targets else None
            self.leaves = list(self.policy_network.parameters())
            return
        scratch = torch.zeros_like(policy.actor_flat)
        self._network = factory.make("actor", views)
        self._gradient_network, self._scratch = factory.make("actor", flat_views(scratch, shapes)), scratch
        self._actor_leaf = _leaf(policy.actor_flat, actor_gradient)
        self.leaves = [self._actor_leaf]

    def _copied_modules(self, begin: int) -> dict[str, nn.Module]:
        """Returns copies of the modules over the target buffer."""
        copies = {name: copy.deepcopy(module).requires_grad_(False) for name, module in self.modules.items()}
        parameters = [parameter for module in copies.values() for parameter in module.parameters()]
        _rebase(parameters, self.target[begin:], None)
        return copies

    def optimize(
        self, make: MakeOptimizer | None, *, learning_rate: float, epsilon: float, maximum_norm: float
    ) -> None:
        """Creates the optimizer: the user's if `make` returns one, else Adam."""
        own = make(self.leaves) if make else None
        if own is None:
            self.optimizer = FlatAdam(
                self.parameters,
                self.gradient,
                learning_rate=learning_rate,
                epsilon=epsilon,
                maximum_norm=maximum_norm,
            )
        else:
            self.optimizer = TorchOptimizer(
                own, self.parameters, self.gradient, learning_rate=learning_rate, maximum_norm=maximum_norm
            )

    def actor(self, observation: Tensor, sequences: Sequences | None = None) -> Tensor:
        """Returns the actor's outputs [B, outputs] for normalized observations [B, D], differentiable by parameters.

        Those of invalid actions are masked. A recurrent actor is unrolled over `sequences`.
        """
        outputs: Tensor
        if self._network is None:
            outputs = self.policy_network(observation.view(len(observation), *self.policy.observation_space.shape))
        else:
            outputs = _Traced.apply(  # type: ignore[no-untyped-call]
                self._actor_leaf, observation, self._network.unrolled(sequences), self._gradient_network, self._scratch
            )
        mask = self.policy.mask
        return mask.apply(outputs, observation) if mask else outputs

    def target_actor(self, observation: Tensor) -> Tensor:
        """Returns the outputs of the target actor, without gradients."""
        with torch.no_grad():
            outputs, mask = self._present_target().forward(observation), self.policy.mask
            return mask.apply(outputs, observation) if mask else outputs

    def _present_target(self) -> Network:
        if self._target_actor is None:
            raise InvalidArgument("there are no target networks: set `targets = True` in the class of the algorithm")
        return self._target_actor

    def continued(self, observation: Tensor, following: Tensor, sequences: Sequences, *, target: bool) -> Tensor:
        """Returns outputs of a recurrent actor for what follows each step of sequences, without gradients.

        Args:
            observation: [T L, D], normalized.
            following: [T L, D], the observation after each step, normalized.
            sequences: How the rows of `observation` follow each other.
            target: Whether to use the target actor.

        Returns:
            [T L, outputs].
        """
        network: Any = self._present_target() if target else self._network
        with torch.no_grad():
            _, states = network.unroll(observation, sequences)
            outputs: Tensor = network.advance(following, states.flatten(0, 1))[0]
            return self.policy.mask.apply(outputs, following) if self.policy.mask else outputs

    def step(self, loss: Tensor) -> Tensor:
        """Differentiates a loss and makes one optimizer step; returns the norm of the gradient: []."""
        self.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            return self.optimizer.step()

    def update_target(self, rate: float) -> None:
        """Moves the targets towards the networks by Polyak averaging; no effect without targets."""
        if not len(self.target):
            return
        self.target.lerp_(self.parameters, rate)
        for name, module in self.modules.items():
            for buffer, target in zip(module.buffers(), self.target_modules[name].buffers(), strict=True):
                target.copy_(buffer)

    def buffers(self) -> dict[str, Tensor]:
        """Returns the buffers of the modules and of their targets, by name."""
        trained = {f"networks.buffers.{name}": module for name, module in self.modules.items()}
        trained |= {f"networks.target_buffers.{name}": module for name, module in self.target_modules.items()}
        return {f"{prefix}.{key}": one for prefix, module in trained.items() for key, one in module.named_buffers()}

    def tensors(self) -> dict[str, Tensor]:
        """Returns all live tensors that training changes, by name."""
        return {
            "networks.flat": self.parameters,
            "networks.target": self.target,
            **{f"networks.optimizer.{name}": tensor for name, tensor in self.optimizer.tensors().items()},
            **self.buffers(),
        }


class _Traced(torch.autograd.Function):
    """Makes a network with a hand-written backward pass differentiable by its parameters."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        leaf: Tensor,
        inputs: Tensor,
        network: Differentiable,
        into: Network,
        scratch: Tensor,
    ) -> Tensor:
        """Returns the outputs [B, outputs]; `leaf` only connects them with the parameters."""
        trace = network.trace(inputs)
        ctx.call = network, into, scratch, trace  # type: ignore[attr-defined]
        # A copy: a reference from the context to its own output would keep both alive.
        return trace[-1].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradient of the parameters [P_a]; inputs get none."""
        network, into, scratch, trace = ctx.call  # type: ignore[attr-defined]
        network.backward(gradients[0].contiguous(), trace, into)
        return scratch.clone(), None, None, None, None


def _leaf(view: Tensor, gradient: Tensor) -> nn.Parameter:
    leaf = nn.Parameter(view)
    leaf.grad = gradient
    return leaf


def _rebase(parameters: Iterable[nn.Parameter], values: Tensor, gradient: Tensor | None) -> None:
    """Makes parameters, and their gradients, views of flat buffers that hold their values one after another."""
    begin = 0
    for parameter in parameters:
        end = begin + parameter.numel()
        parameter.data = values[begin:end].view(parameter.shape)
        if gradient is not None and parameter.requires_grad:
            parameter.grad = gradient[begin:end].view(parameter.shape)
        begin = end


def _check_parameters(name: str, module: nn.Module) -> None:
    for key, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            raise InvalidArgument(
                f"network {name!r}: parameter {key} is {parameter.dtype}, expected torch.float32",
                reason=UNUSABLE_ALGORITHM,
            )
