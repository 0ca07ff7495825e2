"""Replays gradient steps of off-policy algorithms from CUDA graphs, with the sampling of their batches.

Sampling a prioritized batch and updating its priorities takes about 80 operations. In the graph they cost one launch
together with the gradient step. Only the random numbers are drawn outside.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

from agentpod.capture.graph_replay import GraphReplay, Record
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.transitions import Filling

Learn = Callable[..., tuple[Tensor, Tensor]]
"""Makes a gradient step from the fields of a batch, and noise; returns metrics [M] and absolute errors [B]."""


class SampledSteps:
    """Gradient steps on batches of a replay buffer; those of another buffer are recorded again.

    steps = SampledSteps(settings, learn, changed, record)
    for segment in segments:
        metrics = steps.train(replay, noise, beta, generator, next_variant)
    """

    def __init__(
        self,
        settings: Any,
        learn: Learn,
        changed: Callable[[], list[Tensor]],
        record: Record | None,
    ) -> None:
        """Records nothing yet.

        Args:
            settings: Hyperparameters, see agentpod.algorithms.off_policy.OffPolicySettings.
            learn: Makes a gradient step; see the invariants of agentpod.capture.graph_replay.
            changed: Returns the tensors that `learn` changes.
            record: How a step is recorded; None: as a CUDA graph.
        """
        self._settings, self._learn, self._changed, self._record = settings, learn, changed, record
        self._replay: ReplayBuffer | None = None
        self._graph: GraphReplay[Tensor] | None = None

    @property
    def graphs(self) -> int:
        """Number of graphs of the present replay buffer."""
        return self._graph.graphs if self._graph else 0

    def train(
        self,
        replay: ReplayBuffer,
        noise: Tensor,
        beta: float,
        generator: torch.Generator,
        next_variant: Callable[[], Hashable],
    ) -> Tensor:
        """Makes gradient steps.

        Args:
            replay: Where batches are sampled; its memory stays where it is.
            noise: Of each step, [updates, ...].
            beta: Exponent of the importance weights.
            generator: Batches are drawn from it.
            next_variant: Called before each step; returns what else it depends on.

        Returns:
            Metrics of each step: [updates, M].
        """
        graph, filling, metrics = self._graph_of(replay), replay.filling(), []
        weighting = torch.full((), beta, dtype=torch.float64, device=replay.device)
        for draw, row in zip(self._draws(replay, len(noise), generator), noise, strict=True):
            variant = next_variant()
            metrics.append(graph((draw, row, *filling, weighting), variant).clone())
        return torch.stack(metrics)

    def _draws(self, replay: ReplayBuffer, updates: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Draws the random numbers of batches, in the order in which eager steps draw them."""
        size = self._settings.batch_size
        if not replay.prioritized:
            yield from torch.split(replay.draw(updates * size, generator), size)
            return
        for _ in range(updates):
            yield replay.draw(size, generator)

    def _graph_of(self, replay: ReplayBuffer) -> GraphReplay[Tensor]:
        """Returns the graphs of a replay buffer, which read its memory."""
        if self._graph is not None and self._replay is replay:
            return self._graph
        settings = self._settings

        def step(draw: Tensor, noise: Tensor, oldest: Tensor, size: Tensor, beta: Tensor) -> Tensor:
            filling = Filling(oldest, size)
            batch = replay.batch(draw, settings.n_step, settings.discount, beta=beta, filling=filling)
            metrics, errors = self._learn(*batch, noise)
            if settings.prioritized:
                replay.update_priorities(batch.index, errors)
            return metrics

        def changed() -> list[Tensor]:
            return [*self._changed(), *replay.sampling_state()]

        self._replay = replay
        self._graph = GraphReplay(step, changed, "a gradient step with its batch", self._record)
        return self._graph
