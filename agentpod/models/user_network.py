"""Runs networks of users: classes of torch.nn.Module, over views of a flat buffer.

    network = UserNetwork.build("python:mine:Residual", {}, (8,), 4, (64, 64), "tanh")
    network = network.over(flat_views(flat, network.shapes()))
    outputs = network.forward(inputs)

The class is called with `shape` (of an observation), `outputs` (their number), `hidden_sizes`, `activation` and
`options`, as far as its constructor has arguments of these names; options are arguments of their own names. Its method
`forward` maps observations [B, *shape], normalized, to outputs [B, outputs].
"""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from agentpod.models.mlp import Sequences, Shapes
from podrace.config import unknown
from podrace.errors import UNUSABLE_ALGORITHM, InvalidArgument
from podrace.plugins import loader
from podrace.plugins.entry_points import NETWORKS, class_of, installed
from podrace.plugins.user_calls import calls_user_code, unusable

ACTOR = "actor"
KEY = "network_class"
LARGEST_SEED = 2**62


class UserNetwork:
    """A feed-forward actor whose layers are a module of the user; see agentpod.models.mlp.FeedForward.

    Gradients are computed by automatic differentiation.

    Attributes:
        module: The module, which only gives the structure: its own parameters are not used.
    """

    state_size: int = 0

    def __init__(self, make: "_Maker", module: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Binds a module to tensors; see `build` and `over`."""
        self._make, self.module = make, module
        self._parameters = dict(tensors or {})

    @staticmethod
    def build(
        name: str,
        options: Mapping[str, float],
        shape: tuple[int, ...],
        outputs: int,
        hidden_sizes: tuple[int, ...],
        activation: str,
    ) -> "UserNetwork":
        """Imports the class and creates a module of it, whose parameters are not used.

        Args:
            name: `python:module:Class`, or the name of an entry point in the group `podrace.networks`.
            options: Arguments of the class besides the following ones.
            shape: Of an observation.
            outputs: Number of outputs.
            hidden_sizes: The hyperparameter.
            activation: The hyperparameter.

        Raises:
            InvalidArgument: There is no such class, or a module of it is unusable (UNUSABLE_ALGORITHM).
        """
        return _built(name, tuple(sorted(options.items())), shape, outputs, hidden_sizes, activation)

    def shapes(self) -> Shapes:
        """Returns names and shapes of the parameters: `actor.<name in the module>`."""
        return {f"{ACTOR}.{name}": tuple(one.shape) for name, one in self.module.named_parameters()}

    def over(self, tensors: Mapping[str, Tensor]) -> "UserNetwork":
        """Returns the network over views of a buffer, which have the names that `shapes` returns."""
        own = {name: tensors[f"{ACTOR}.{name}"] for name, _ in self.module.named_parameters()}
        return UserNetwork(self._make, self._make.on(next(iter(own.values())).device), own)

    def bound(self, tensors: Mapping[str, Tensor], gradients: Mapping[str, Tensor] | None) -> nn.Module:
        """Returns a module whose parameters are views of a buffer, and their gradients views of another one."""
        module = self._make(next(iter(tensors.values())).device)
        for name, parameter in module.named_parameters():
            parameter.data = tensors[f"{ACTOR}.{name}"]
            parameter.requires_grad_(gradients is not None)
            if gradients is not None:
                parameter.grad = gradients[f"{ACTOR}.{name}"]
        return module

    def initialize(self, generator: torch.Generator, output_gain: float) -> None:
        """Draws the weights as the class does; `output_gain` has no effect."""
        seed = int(torch.randint(LARGEST_SEED, (), generator=generator, device=generator.device))
        for name, parameter in self._make(torch.device("cpu"), seed).named_parameters():
            self._parameters[name].copy_(parameter.detach())

    def forward(self, inputs: Tensor) -> Tensor:
        """Computes outputs [B, outputs] for inputs [B, D]."""
        return self._call(self._parameters, inputs)

    def advance(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Computes one step; there is no recurrent state."""
        return self.forward(inputs), state

    def unrolled(self, sequences: Sequences | None) -> "UserNetwork":
        """Returns itself: rows are independent of each other."""
        return self

    def trace(self, inputs: Tensor) -> list[Tensor]:
        """Returns the inputs [B, D] and the outputs [B, outputs]; callers may select rows of both."""
        return [inputs, self.forward(inputs)]

    def backward(self, output_gradient: Tensor, trace: list[Tensor], into: "UserNetwork") -> None:
        """Overwrites the tensors of `into` with the gradient of a scalar loss."""
        leaves = {name: one.detach().requires_grad_() for name, one in self._parameters.items()}
        with torch.enable_grad():
            # Computed again, because a graph does not survive the selection of rows without gradients.
            outputs = self._call(leaves, trace[0].detach())
        with self._differentiated(outputs):
            found = torch.autograd.grad(outputs, list(leaves.values()), output_gradient, allow_unused=True)
        for target, gradient in zip(into._parameters.values(), found, strict=True):
            target.zero_() if gradient is None else target.copy_(gradient)

    def input_gradient(self, output_gradient: Tensor, trace: list[Tensor], inputs: slice = slice(None)) -> Tensor:
        """Computes the gradient of a scalar loss with respect to the selected inputs."""
        seen = trace[0].detach().requires_grad_()
        with torch.enable_grad():
            outputs = self._call(self._parameters, seen)
        with self._differentiated(outputs):
            return torch.autograd.grad(outputs, seen, output_gradient)[0][:, inputs]

    def member(self, index: int) -> "UserNetwork":
        """Is part of the interface: an actor is no ensemble."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _differentiated(self, outputs: Tensor) -> Iterator[None]:
        """Names the class if its outputs cannot be differentiated, as after an operation in place."""
        if not outputs.requires_grad:
            problem = "returned outputs that cannot be differentiated: compute them without torch.no_grad and detach"
            raise unusable(self._make.cls, "forward", problem, key=KEY)
        with calls_user_code(self._make.cls, "forward", KEY):
            yield

    def _call(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        observation = inputs.view(len(inputs), *self._make.shape)
        with calls_user_code(self._make.cls, "forward", KEY):
            outputs: Any = torch.func.functional_call(self.module, dict(parameters), (observation,))
        self._make.check_outputs(outputs, len(inputs))
        found: Tensor = outputs
        return found


class _Maker:
    """Creates modules of one class with the same arguments."""

    def __init__(
        self, cls: type[nn.Module], arguments: Mapping[str, Any], shape: tuple[int, ...], outputs: int
    ) -> None:
        self.cls, self.shape, self._arguments, self._outputs = cls, shape, arguments, outputs
        self._modules: dict[torch.device, nn.Module] = {}

    def __call__(self, device: torch.device, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]), calls_user_code(self.cls, "__init__", KEY):
            torch.manual_seed(seed)
            return self.cls(**self._arguments).to(device).eval()

    def on(self, device: torch.device) -> nn.Module:
        """Returns the module that gives the structure on a device."""
        if device not in self._modules:
            self._modules[device] = self(device)
        return self._modules[device]

    def check_outputs(self, outputs: object, rows: int) -> None:
        """Raises InvalidArgument for outputs of another shape than [B, outputs]."""
        if not isinstance(outputs, Tensor) or outputs.shape != (rows, self._outputs):
            found = list(outputs.shape) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
            raise unusable(
                self.cls, "forward", f"returned {found}, expected a tensor [{rows}, {self._outputs}]", key=KEY
            )


@lru_cache(maxsize=256)
def _built(
    name: str,
    options: tuple[tuple[str, float], ...],
    shape: tuple[int, ...],
    outputs: int,
    hidden_sizes: tuple[int, ...],
    activation: str,
) -> UserNetwork:
    cls = network_class(name)
    known = {"shape": shape, "outputs": outputs, "hidden_sizes": hidden_sizes, "activation": activation}
    given = {key: int(value) if value == int(value) else value for key, value in options}
    make = _Maker(cls, _arguments(cls, known, given), shape, outputs)
    module = make.on(torch.device("cpu"))
    parameters = dict(module.named_parameters())
    if not parameters:
        raise unusable(cls, "__init__", "creates no parameters", key=KEY)
    for key, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            raise unusable(
                cls, "__init__", f"creates parameter {key} as {parameter.dtype}, expected torch.float32", key=KEY
            )
    kept = [key for key in module.state_dict() if key not in parameters]
    if kept:
        problem = f"keeps state in the buffer {kept[0]}, which no policy holds; a constant needs persistent=False"
        raise unusable(cls, "__init__", problem, key=KEY)
    network = UserNetwork(make, module, {key: one.detach() for key, one in parameters.items()})
    with torch.no_grad():
        network.forward(torch.zeros(2, max(1, torch.Size(shape).numel())))
    return network


def network_class(name: str) -> type[nn.Module]:
    """Imports the class of a network.

    Raises:
        InvalidArgument: There is no such class, or it is no module of torch (UNUSABLE_ALGORITHM).
    """
    address = class_of(name, NETWORKS)
    if address is None:
        raise InvalidArgument(unknown(KEY, "network", name, installed(NETWORKS)), reason=UNUSABLE_ALGORITHM)
    try:
        found = getattr(loader.import_user_module(address.module), address.name, None)
    except InvalidArgument as error:
        raise InvalidArgument(f"{KEY} = {name!r}: {error.message}", reason=UNUSABLE_ALGORITHM) from None
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        problem = f"module {address.module!r} has no class {address.name!r} derived from torch.nn.Module"
        raise InvalidArgument(f"{KEY} = {name!r}: {problem}", reason=UNUSABLE_ALGORITHM)
    return found


def _arguments(cls: type[nn.Module], known: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    accepted = inspect.signature(cls).parameters
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in accepted.values())
    for key in options:
        if not takes_any and key not in accepted:
            raise unusable(
                cls, "__init__", f"has no argument {key!r}, which the settings of its algorithm give", key=KEY
            )
    return {key: value for key, value in known.items() if key in accepted} | dict(options)
