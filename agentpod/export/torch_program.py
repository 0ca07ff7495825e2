"""Makes a module of a policy that torch.export can trace: from an observation to an action of the environment."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from agentpod.models.cnn import NO_TORSO, PIXEL_SCALE, TORSOS, image_layout
from agentpod.models.entry_scaling import OBSERVATION_CLIP
from agentpod.models.factory import image_space
from agentpod.models.gru import RecurrentNetwork
from agentpod.models.normalizer import VARIANCE_FLOOR
from agentpod.models.policy import Policy
from podrace.spaces.entries import BYTES, VECTOR, Entry, columns
from simulators.base import Space

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "elu": nn.functional.elu}
EXAMPLE_ROWS = 3
"""Rows of the example of a trace: more than one, so that the number of rows stays free."""


class PolicyProgram(nn.Module):
    """A policy as a module: (observation, state) -> (action, next state). The state has no columns if there is none."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._network, self._space, self._actions = policy.network, policy.observation_space, policy.action_space
        self._recurrent = isinstance(policy.actor, RecurrentNetwork)
        self._normalizes = policy.normalizes
        for name, tensor in policy.tensors().items():
            self.register_buffer(name.replace(".", "_"), tensor.detach().cpu().clone())
        own = bool(policy.network.network_class)
        self._layers = (
            0 if own else sum(f"actor.{layer}.weight" in policy.tensors() for layer in range(len(policy.tensors())))
        )
        self._factory = policy.network.network_factory(policy.observation_space, policy.action_space)
        self._mask = policy.mask
        self._user_network = self._factory.user_network().bound(policy.tensors(), None) if own else None
        for name, tensor in zip(("minimum", "maximum", "scale", "offset"), policy.action_bounds or (), strict=False):
            self.register_buffer(f"action_{name}", tensor.clone())

    def forward(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns actions and the next recurrent state, for observations [N, ...] and a state [N, S]."""
        activation, x = ACTIVATIONS[self._network.activation], self._input(observation)
        if self._user_network is not None:
            x = self._user_network(x.reshape(-1, *self._space.shape))
        for layer in range(self._layers):
            x = self._linear(x, f"actor_{layer}")
            if self._recurrent or layer + 1 < self._layers:
                x = activation(x)
        if self._recurrent:
            unit = [self._part(f"actor_recurrent_{name}") for name in ("input_weight", "state_weight")]
            biases = [self._part(f"actor_recurrent_{name}") for name in ("input_bias", "state_bias")]
            state = torch.gru_cell(x, state, *unit, *biases)
            x = self._linear(state, "actor_output_0")
        x = self._mask.apply(x, observation.float()) if self._mask else x
        return self._action(x), state

    def _part(self, name: str) -> Tensor:
        found: Tensor = getattr(self, name)
        return found

    def _linear(self, x: Tensor, name: str) -> Tensor:
        result: Tensor = nn.functional.linear(x, self._part(f"{name}_weight"), self._part(f"{name}_bias"))
        return result

    def _input(self, observation: Tensor) -> Tensor:
        x = observation.float()
        if self._space.entries:
            return self._encoded(x) if self._user_network is None else self._scaled_row(x)
        if self._space.dtype == torch.uint8:
            x = x * PIXEL_SCALE
        if self._network.torso != NO_TORSO:
            x = self._torso(x, "actor", self._space)
        x = x.flatten(1)
        return self._normalized(x, slice(None)) if self._normalizes else x

    def _scaled_row(self, rows: Tensor) -> Tensor:
        """Scales all entries of the rows of composite observations, and keeps the mask."""
        return torch.cat([self._scaled(rows, entry, place) for entry, place in columns(self._space.entries)], 1)

    def _scaled(self, rows: Tensor, entry: Entry, place: slice) -> Tensor:
        if entry.encoding == BYTES:
            return rows[:, place] * PIXEL_SCALE
        normalizes = entry.encoding == VECTOR and self._normalizes
        return self._normalized(rows[:, place], place) if normalizes else rows[:, place]

    def _encoded(self, rows: Tensor) -> Tensor:
        """Returns the outputs of all encoders side by side, for the rows of composite observations."""
        features = []
        for name, entry, place in self._factory.encoded("actor"):
            x, own = self._scaled(rows, entry, place), name.replace(".", "_")
            if self._factory.has_torso(entry):
                space = image_space(entry)
                x = self._torso(x.reshape(-1, *space.shape), own, space).flatten(1)
            features.append(ACTIVATIONS[self._network.activation](self._linear(x, f"{own}_0")))
        return torch.cat(features, 1)

    def _torso(self, x: Tensor, name: str, space: Space) -> Tensor:
        layout = image_layout(space, self._network.torso)
        x = x.permute(0, 3, 1, 2) if layout.channels_last else x
        for index, layer in enumerate(TORSOS[self._network.torso]):
            weight, bias = self._part(f"{name}_torso_{index}_weight"), self._part(f"{name}_torso_{index}_bias")
            x = ACTIVATIONS[self._network.activation](nn.functional.conv2d(x, weight, bias, layer.stride))
        return x

    def _normalized(self, x: Tensor, place: slice) -> Tensor:
        inverse = (self._part("observation_variance")[place] + VARIANCE_FLOOR).rsqrt()
        return ((x - self._part("observation_mean")[place]) * inverse).clamp(-OBSERVATION_CLIP, OBSERVATION_CLIP)

    def _action(self, outputs: Tensor) -> Tensor:
        head = self._network.head
        if self._actions.kind == "discrete":
            return outputs[:, int(head == "dueling") :].argmax(1)
        if self._actions.kind == "multi_binary":
            return (outputs > 0).long().reshape(-1, *self._actions.shape)
        if self._actions.kind == "multi_discrete":
            parts = outputs.split_with_sizes(self._actions.choices, 1)
            return torch.stack([part.argmax(1) for part in parts], 1).reshape(-1, *self._actions.shape)
        if head == "squashed":
            outputs = outputs.chunk(2, 1)[0]
        action = outputs if head == "stochastic" else outputs.tanh()
        action = torch.maximum(torch.minimum(action, self._part("action_maximum")), self._part("action_minimum"))
        scaled = self._part("action_offset") + action * self._part("action_scale")
        return scaled.reshape(-1, *self._actions.shape)


class EnsembleProgram(nn.Module):
    """Several policies as one module, by the mean of their actions or by majority vote; their states side by side."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        super().__init__()
        self.members = nn.ModuleList(PolicyProgram(policy) for policy in policies)
        self._sizes = [policy.state_size for policy in policies]
        self._choices = policies[0].action_space.most_choices

    def forward(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See PolicyProgram.forward."""
        states = state.split_with_sizes(self._sizes, 1)
        acted = [member(observation, own) for member, own in zip(self.members, states, strict=True)]
        actions, following = torch.stack([action for action, _ in acted]), torch.cat([own for _, own in acted], 1)
        if not self._choices:
            return actions.mean(0), following
        return nn.functional.one_hot(actions, self._choices).sum(0).argmax(-1), following


def traced(policies: Sequence[Policy]) -> torch.export.ExportedProgram:
    """Traces a policy, or an ensemble, for any number of rows."""
    module = PolicyProgram(policies[0]) if len(policies) == 1 else EnsembleProgram(policies)
    space, size = policies[0].observation_space, sum(policy.state_size for policy in policies)
    example = torch.zeros(EXAMPLE_ROWS, *space.shape, dtype=space.dtype), torch.zeros(EXAMPLE_ROWS, size)
    rows = torch.export.Dim("rows", min=1)
    return torch.export.export(module.eval(), example, dynamic_shapes=({0: rows}, {0: rows}))


def saved(program: torch.export.ExportedProgram, path: Path) -> None:
    """Writes a program to a `.pt2` file, which `torch.export.load` reads."""
    torch.export.save(program, path)
