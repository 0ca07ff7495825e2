"""Implements recurrent networks: a GRU between hidden layers and output, with a hand-written backward pass.

Everything that does not depend on later steps is computed for all steps at once, so backpropagation through time needs
only four small operations per step. Automatic differentiation took 1.5 to 2.7 times as long on a CPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from agentpod.models.mlp import ACTIVATIONS, HIDDEN_GAIN, Activation, FeedForward, MultilayerPerceptron, Sequences

GATES = 3
"""Reset, update and candidate, in this order in every tensor of a unit."""
UNIT_TRACE, OUTPUT_TRACE = 6, 2
"""Number of tensors in the traces of a GRU and of a linear layer."""


class GatedRecurrentUnit:
    """A gated recurrent unit (Cho et al. 2014, arXiv 1406.1078, in the form of cuDNN and torch.nn.GRU).

        r  = sigmoid(W_r x + b_r + V_r h + c_r)             reset
        z  = sigmoid(W_z x + b_z + V_z h + c_z)             update
        n  = tanh(W_n x + b_n + r (V_n h + c_n))            candidate
        h' = (1 - z) n + z h

    Attributes:
        input_weight: [3 H, inputs]: W_r, W_z, W_n.
        input_bias: [3 H]: b.
        state_weight: [3 H, H]: V.
        state_bias: [3 H]: c.
    """

    def __init__(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Picks its tensors by the names that `shapes(name, ...)` returns."""
        self.input_weight, self.input_bias = tensors[f"{name}.input_weight"], tensors[f"{name}.input_bias"]
        self.state_weight, self.state_bias = tensors[f"{name}.state_weight"], tensors[f"{name}.state_bias"]
        self.size = self.state_weight.shape[1]

    @staticmethod
    def shapes(name: str, inputs: int, size: int) -> dict[str, tuple[int, ...]]:
        """Returns names and shapes of the tensors of a unit with a state of size H = `size`."""
        return {
            f"{name}.input_weight": (GATES * size, inputs),
            f"{name}.input_bias": (GATES * size,),
            f"{name}.state_weight": (GATES * size, size),
            f"{name}.state_bias": (GATES * size,),
        }

    def initialize(self, generator: torch.Generator) -> None:
        """Draws orthogonal weights, separately for each gate, and sets biases to 0."""
        for weight in (self.input_weight, self.state_weight):
            for gate in weight.chunk(GATES):
                nn.init.orthogonal_(gate, generator=generator)
        self.input_bias.zero_()
        self.state_bias.zero_()

    def advance(self, inputs: Tensor, state: Tensor) -> Tensor:
        """Computes one step without a trace: the next state [N, H] for inputs [N, inputs] and a state [N, H]."""
        weights = self.input_weight, self.state_weight, self.input_bias, self.state_bias
        following: Tensor = torch.gru_cell(inputs, state, *weights)
        return following

    def trace(self, inputs: Tensor, sequences: Sequences) -> list[Tensor]:
        """Runs the unit over sequences and keeps what `backward` needs.

        Args:
            inputs: [T L, inputs].
            sequences: T steps of L lanes.

        Returns:
            Six tensors: the inputs; the state before each step [T, L, H]; the gates r and z [T, L, 2 H]; V h + c [T, L,
            3 H]; n [T, L, H]; and the state after each step [T L, H].
        """
        (steps, lanes, _), size = sequences.keep.shape, self.size
        sums = torch.addmm(self.input_bias, inputs, self.input_weight.t()).view(steps, lanes, GATES * size)
        before, candidate, after = inputs.new_empty(3, steps, lanes, size).unbind()
        gates, inner = inputs.new_empty(steps, lanes, 2 * size), torch.empty_like(sums)
        # Unbinding all rows beforehand costs a third of indexing them one by one.
        rows = zip(
            *(tensor.unbind() for tensor in (sequences.keep, before, inner, gates, candidate, after)),
            *(part.unbind() for part in _parts(sums, size)),
            *(part.unbind() for part in _parts(inner, size)),
            *(half.unbind() for half in gates.chunk(2, -1)),
            strict=True,
        )
        state, transposed, tanh_ = sequences.state, self.state_weight.t(), ACTIVATIONS["tanh"].apply_
        for keep, old, all_inner, gate, new, result, gate_sums, new_sums, gate_inner, new_inner, reset, update in rows:
            torch.mul(state, keep, out=old)
            torch.addmm(self.state_bias, old, transposed, out=all_inner)
            torch.add(gate_sums, gate_inner, out=gate).sigmoid_()
            tanh_(torch.addcmul(new_sums, reset, new_inner, out=new))
            state = torch.lerp(new, old, update, out=result)
        return [inputs, before, gates, inner, candidate, after.view(-1, size)]

    def backward(
        self, state_gradient: Tensor, trace: list[Tensor], sequences: Sequences, into: "GatedRecurrentUnit"
    ) -> Tensor:
        """Overwrites the tensors of `into` with the gradient of a scalar loss, and returns the gradient of the inputs.

        No gradient crosses the beginning of an episode or the first step.

            d L / d h'_t is the gradient of step t itself plus what step t + 1 propagates back:  g
            d n = g (1 - z) (1 - n^2)      d z = g (h - n) z (1 - z)      d r = d n (V_n h + c_n) r (1 - r)
            d L / d h_t = g z + V_r^T d r + V_z^T d z + V_n^T (d n r)

        Here d r, d z and d n are with respect to the arguments of sigmoid and tanh.

        Args:
            state_gradient: [T L, H], direct gradient of the loss with respect to trace[-1], without later steps.
            trace: What `trace` returned.
            sequences: As for `trace`.
            into: A unit of the same size, over the gradient buffer.

        Returns:
            [T L, inputs].
        """
        inputs, before, gates, inner, candidate, _ = trace
        steps, lanes, size = before.shape
        reset, update = gates.chunk(2, -1)
        new_slope = (1.0 - update) * (1.0 - candidate.square())
        slopes = torch.empty_like(inner).view(steps, lanes, GATES, size)
        torch.mul(new_slope * inner[..., 2 * size :], reset - reset.square(), out=slopes[:, :, 0])
        torch.mul(before - candidate, update - update.square(), out=slopes[:, :, 1])
        torch.mul(new_slope, reset, out=slopes[:, :, 2])
        gradient, sums_gradient = self._through_time(state_gradient, slopes, update, sequences.keep)

        torch.mm(sums_gradient.t(), before.view(-1, size), out=into.state_weight)
        torch.sum(sums_gradient, 0, out=into.state_bias)
        # The reset gate does not scale the candidate's input sum, W_n x + b_n.
        torch.mul(gradient, new_slope.view(-1, size), out=sums_gradient[:, 2 * size :])
        torch.mm(sums_gradient.t(), inputs, out=into.input_weight)
        torch.sum(sums_gradient, 0, out=into.input_bias)
        return torch.mm(sums_gradient, self.input_weight)

    def _through_time(
        self, state_gradient: Tensor, slopes: Tensor, update: Tensor, keep: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Computes the recurrence of the gradient over steps.

        Returns:
            Gradients with respect to each state [T L, H], later steps included, and to V h + c [T L, 3 H].
        """
        steps, lanes, _, size = slopes.shape
        total, sums_gradient = state_gradient.clone().view(steps, lanes, size), torch.empty_like(slopes)
        carried, totals, kept = (update * keep).unbind(), total.unbind(), keep.unbind()
        rows, cut, flat = slopes.unbind(), sums_gradient.unbind(), sums_gradient.view(steps, lanes, -1).unbind()
        for t in range(steps - 1, 0, -1):
            torch.mul(totals[t].unsqueeze(1), rows[t], out=cut[t])
            earlier = totals[t - 1].addcmul_(totals[t], carried[t])
            earlier.addcmul_(torch.mm(flat[t], self.state_weight), kept[t])
        torch.mul(totals[0].unsqueeze(1), rows[0], out=cut[0])
        return total.view(-1, size), sums_gradient.view(steps * lanes, -1)


def _parts(sums: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Splits [..., 3 H] into the columns of reset and update, [..., 2 H], and those of the candidate, [..., H]."""
    return sums[..., : 2 * size], sums[..., 2 * size :]


class RecurrentNetwork:
    """Hidden layers, a GRU, and a linear output layer. Its state is the state of the GRU.

    Attributes:
        state_size: H.
    """

    def __init__(self, name: str, body: FeedForward, tensors: Mapping[str, Tensor], activation: str) -> None:
        """Picks its layers by the names that `shapes(name, ...)` returns.

        Args:
            name: For example "actor".
            body: The hidden layers; the last of them has no activation of its own.
            tensors: Views of a flat buffer; other names are ignored.
            activation: Key of ACTIVATIONS, after the last hidden layer.
        """
        self._body, self._activation = body, ACTIVATIONS[activation]
        self._unit = GatedRecurrentUnit(f"{name}.recurrent", tensors)
        self._output = MultilayerPerceptron(f"{name}.output", tensors, activation)
        self.state_size = self._unit.size

    @property
    def parts(self) -> "tuple[FeedForward, Activation, GatedRecurrentUnit, MultilayerPerceptron]":
        """Hidden layers, the activation after the last of them, the GRU and the output layer."""
        return self._body, self._activation, self._unit, self._output

    @staticmethod
    def shapes(name: str, body_outputs: int, size: int, outputs: int) -> dict[str, tuple[int, ...]]:
        """Returns names and shapes of the tensors after the body."""
        output = MultilayerPerceptron.shapes(f"{name}.output", (size, outputs))
        return GatedRecurrentUnit.shapes(f"{name}.recurrent", body_outputs, size) | output

    def initialize(self, generator: torch.Generator, output_gain: float) -> None:
        """Draws the weights of body, GRU and output layer."""
        self._body.initialize(generator, HIDDEN_GAIN)
        self._unit.initialize(generator)
        self._output.initialize(generator, output_gain)

    def advance(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Computes one step: outputs [N, outputs] and the next state [N, H]; see agentpod.models.mlp.Network."""
        following = self._unit.advance(self._features(inputs), state)
        return self._output.forward(following), following

    def unroll(self, inputs: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Computes outputs [T L, outputs] and the states after each step [T, L, H], without keeping a trace."""
        states = self._unit.trace(self._features(inputs), sequences)[-1]
        return self._output.forward(states), states.view(*sequences.keep.shape[:2], -1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Computes outputs [B, outputs] of the first step of an episode, from a zero state."""
        return self.advance(inputs, self._unit.input_bias.new_zeros(len(inputs), self.state_size))[0]

    def _features(self, inputs: Tensor) -> Tensor:
        return self._activation.apply_(self._body.forward(inputs))

    def unrolled(self, sequences: Sequences | None) -> "UnrolledNetwork":
        """Returns the network unrolled over `sequences`, for training.

        Raises:
            ValueError: `sequences` is None.
        """
        if sequences is None:
            raise ValueError("a recurrent network can only be trained over sequences")
        return UnrolledNetwork(self, sequences)


@dataclass(frozen=True)
class UnrolledNetwork:
    """A recurrent network unrolled over sequences; see agentpod.models.mlp.Differentiable."""

    network: RecurrentNetwork
    sequences: Sequences

    def trace(self, inputs: Tensor) -> list[Tensor]:
        """Returns the traces of body, GRU and output layer, concatenated, for inputs [T L, inputs]."""
        body, activation, unit, output = self.network.parts
        trace = body.trace(inputs)
        activation.apply_(trace[-1])
        trace += unit.trace(trace[-1], self.sequences)
        return trace + output.trace(trace[-1])

    def backward(self, output_gradient: Tensor, trace: list[Tensor], into: RecurrentNetwork) -> None:
        """Overwrites the tensors of `into` with the gradient of a scalar loss.

        Args:
            output_gradient: [T L, outputs], of the loss with respect to trace[-1].
            trace: What `trace` returned.
            into: A network of the same sizes, over the gradient buffer.
        """
        body, activation, unit, output = self.network.parts
        body_into, _, unit_into, output_into = into.parts
        first, last = len(trace) - UNIT_TRACE - OUTPUT_TRACE, len(trace) - OUTPUT_TRACE
        gradient = output.backward_through(output_gradient, trace[last:], output_into, slice(None))
        gradient = unit.backward(gradient, trace[first:last], self.sequences, unit_into)
        gradient = activation.backward_(gradient, trace[first - 1])
        body.backward(gradient, trace[:first], body_into)
