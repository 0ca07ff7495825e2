"""Implements networks with separate parameters for each agent of a team, computed together by batched products.

The networks of A agents are one ensemble: weights [A, out, in]. A row of inputs ends with the number of its agent (see
`with_agents`), so rows may be in any order and the agents may have different numbers of rows. They are grouped by agent
into [A, W, D], where W is the largest number of rows of an agent.
"""

import torch
from torch import Tensor

from agentpod.models.mlp import FeedForward, Sequences


def with_agents(rows: Tensor, agents: int) -> Tensor:
    """Appends the number of the agent to rows in the order of lanes: [N A, D] -> [N A, D + 1]; row r is of r % A."""
    numbers = torch.arange(agents, device=rows.device, dtype=rows.dtype).repeat(len(rows) // agents)
    return torch.cat((rows, numbers.unsqueeze(1)), 1)


def places(numbers: Tensor, agents: int) -> tuple[Tensor, int]:
    """Assigns rows to places of a table that has as many rows for each agent.

    Args:
        numbers: Agent of each row, [B] int64.
        agents: A.

    Returns:
        The place of each row, agent W + position: [B] int64; and W, the largest number of rows of an agent.
    """
    of_agent = numbers.unsqueeze(1) == torch.arange(agents, device=numbers.device)
    counts = of_agent.cumsum(0)
    width = int(counts[-1].max()) if len(numbers) else 0
    position = counts.gather(1, numbers.unsqueeze(1)).squeeze(1) - 1
    return numbers * width + position, width


class AgentNetworks:
    """The networks of A agents; see agentpod.models.mlp.FeedForward. Inputs are [B, D + 1], outputs [B, outputs].

    With `log_std` [A, K], the outputs of an agent are those of its network and then its row of `log_std`, which is
    trained like a bias.
    """

    state_size: int = 0

    def __init__(self, ensemble: FeedForward, agents: int, log_std: Tensor | None = None) -> None:
        """Combines an ensemble of A networks, and the log standard deviations of their actions if they have any."""
        self._ensemble, self._agents, self._log_std = ensemble, agents, log_std

    def initialize(self, generator: torch.Generator, output_gain: float) -> None:
        """Draws the weights of each agent; see Network.initialize."""
        self._ensemble.initialize(generator, output_gain)

    def advance(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Computes outputs for rows in the order of lanes, row r of agent r % A; returns the unchanged state [N, 0]."""
        rows = inputs[:, :-1].view(-1, self._agents, inputs.shape[1] - 1).transpose(0, 1)
        outputs = self._ensemble.forward(rows).transpose(0, 1)
        if self._log_std is not None:
            outputs = torch.cat((outputs, self._log_std.expand(len(outputs), -1, -1)), -1)
        return outputs.reshape(len(inputs), -1), state

    def forward(self, inputs: Tensor) -> Tensor:
        """Computes outputs [B, outputs] for inputs [B, D + 1] in any order."""
        return self.trace(inputs)[-1]

    def trace(self, inputs: Tensor) -> list[Tensor]:
        """Returns the activations of the ensemble, the place of each row, its agent, and the outputs."""
        numbers = inputs[:, -1].long()
        place, width = places(numbers, self._agents)
        table = inputs.new_zeros(self._agents * width, inputs.shape[1] - 1)
        table[place] = inputs[:, :-1]
        inner = self._ensemble.trace(table.view(self._agents, width, -1))
        outputs = inner[-1].flatten(0, 1)[place]
        if self._log_std is not None:
            outputs = torch.cat((outputs, self._log_std[numbers]), 1)
        return [*inner, place, numbers, outputs]

    def backward(self, output_gradient: Tensor, trace: list[Tensor], into: "AgentNetworks") -> None:
        """Overwrites the tensors of `into` with the gradient of a scalar loss; see FeedForward.backward."""
        own, numbers = self._grouped(output_gradient, trace), trace[-2]
        self._ensemble.backward(own, trace[:-3], into._ensemble)
        if into._log_std is not None:
            into._log_std.zero_().index_add_(0, numbers, output_gradient[:, own.shape[-1] :])

    def input_gradient(self, output_gradient: Tensor, trace: list[Tensor], inputs: slice = slice(None)) -> Tensor:
        """Computes the gradient of a scalar loss with respect to the selected inputs; see FeedForward."""
        grouped = self._ensemble.input_gradient(self._grouped(output_gradient, trace), trace[:-3], inputs)
        return grouped.flatten(0, 1)[trace[-3]]

    def _grouped(self, output_gradient: Tensor, trace: list[Tensor]) -> Tensor:
        """Returns the gradient of the outputs of the networks [A, W, outputs]; 0 in places without a row."""
        inner = trace[-4]
        table = torch.zeros_like(inner).flatten(0, 1)
        table[trace[-3]] = output_gradient[:, : inner.shape[-1]]
        return table.view_as(inner)

    def unrolled(self, sequences: Sequences | None) -> "AgentNetworks":
        """Returns itself: rows are independent of each other."""
        return self

    def member(self, index: int) -> FeedForward:
        """Returns the network of one agent, over the same memory, for inputs [B, D]."""
        return self._ensemble.member(index)
