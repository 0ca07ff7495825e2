"""Gathers transitions of several steps from the ring of a replay buffer."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from agentpod.experience.replay_layout import FINAL


class TransitionBatch(NamedTuple):
    """B transitions, each over m <= n steps that start with a sampled one."""

    observation: Tensor
    """[B, *shape], as stored."""
    action: Tensor
    """[B] int64, or [B, A] float32."""
    reward: Tensor
    """[B] float32: sum over k < m of gamma^k r_k."""
    discount: Tensor
    """[B] float32: gamma^m; 0 where the last step terminated."""
    next_observation: Tensor
    """[B, *shape], observation to bootstrap from; where terminated it is finite but meaningless."""
    weight: Tensor
    """[B] float32, importance weights; 1 where sampling is uniform."""
    index: Tensor  # type: ignore[assignment] # shadows tuple.index, which is not used
    """[B] int64, index of the first step: row N + lane."""


class Filling(NamedTuple):
    """Which steps are READY: numbers, or tensors [] int64 on the device for a CUDA graph."""

    oldest: int | Tensor
    """Index of the oldest one."""
    size: int | Tensor
    """How many there are."""


class Transitions:
    """The steps of a ring, by their age."""

    def __init__(self, rings: Mapping[str, Tensor], device: torch.device) -> None:
        """Views the fields [R, N, ...] of a ring on a device."""
        rows, self._count = rings["reward"].shape
        self._capacity, self._device, self._on_host = rows * self._count, device, device.type == "cpu"
        self._flat = {name: ring.view(-1, *ring.shape[2:]) for name, ring in rings.items()}

    def at(self, age: Tensor, weight: Tensor, n_step: int, discount: float, filling: Filling) -> TransitionBatch:
        """Returns the transitions of steps; see `ReplayBuffer.sample`.

        Args:
            age: Steps since the oldest READY one, [B] int64.
            weight: Importance weights, [B] float32.
            n_step: Rewards summed before bootstrapping from a value.
            discount: Gamma, per step.
            filling: Which steps are READY.
        """
        index = (age + filling.oldest) % self._capacity
        window = self._one_step if n_step == 1 else self._several_steps
        last, reward, following_discount, final = window(age, index, n_step, discount, filling)
        observation, action = (self._flat[name].index_select(0, index) for name in ("observation", "action"))
        # Where final_observation is used, the next row may be FILLING: the step's own row is read, then replaced.
        following = torch.add(last, ~final, alpha=self._count) % self._capacity
        next_observation = self._flat["observation"].index_select(0, following)
        # Counting the final observations would synchronize with the device, which a graph cannot.
        with_final = self._with_all_finals if isinstance(filling.size, Tensor) else self._with_final
        next_observation = with_final(next_observation, last, final)
        return TransitionBatch(observation, action, reward, following_discount, next_observation, weight, index)

    def _with_final(self, next_observation: Tensor, last: Tensor, final: Tensor) -> Tensor:
        """Replaces next observations by the final observations of steps `last` [B] where `final` [B] is set."""
        if not self._on_host:
            return self._with_all_finals(next_observation, last, final)
        found = self._flat[FINAL]
        if len(rows := final.nonzero().squeeze(1)):
            # Other rows are not read: memory that was never written has no pages yet.
            next_observation.index_copy_(0, rows, found.index_select(0, last.index_select(0, rows)))
        return next_observation

    def _with_all_finals(self, next_observation: Tensor, last: Tensor, final: Tensor) -> Tensor:
        """`_with_final` that reads all final observations, without waiting for the device."""
        found = self._flat[FINAL]
        mask = final.view(-1, *(1,) * (found.dim() - 1))
        return torch.where(mask, found.index_select(0, last), next_observation)

    def _one_step(
        self, age: Tensor, index: Tensor, n_step: int, discount: float, filling: Filling
    ) -> tuple[Tensor, ...]:
        """`_several_steps` for n = 1, without looking ahead."""
        reward, terminated, truncated = self._outcomes(index)
        return index, reward, ~terminated * discount, truncated | (age >= filling.size - self._count)

    def _several_steps(
        self, age: Tensor, index: Tensor, n_step: int, discount: float, filling: Filling
    ) -> tuple[Tensor, ...]:
        """Evaluates windows of n steps, in tensors [n, B].

        Returns:
            Of each window, [B] each: its last step, the discounted sum of rewards, the discount of what follows, and
            whether what follows is a final observation.
        """
        k = torch.arange(n_step, device=self._device).unsqueeze(1)
        ahead = age + k * self._count
        # Rows after the newest one are FILLING: the first step is read there instead, and not counted.
        steps = (torch.where(ahead < filling.size, ahead, age) + filling.oldest) % self._capacity
        reward, terminated, truncated = (found.view(steps.shape) for found in self._outcomes(steps.view(-1)))
        final = truncated | (ahead >= filling.size - self._count)
        ends = terminated | final | (k == n_step - 1)
        # max returns the first of equal maxima: the first step that ends. argmax takes 25 times as long.
        last = ends.view(torch.uint8).max(0, keepdim=True).indices
        powers = discount ** torch.arange(n_step + 1, device=self._device, dtype=torch.float64)
        total = torch.where(k <= last, reward * powers[:-1].float().unsqueeze(1), 0.0).sum(0)
        following = powers.float().index_select(0, last.squeeze(0) + 1)
        steps, terminated, final = (tensor.gather(0, last).squeeze(0) for tensor in (steps, terminated, final))
        return steps, total, following.masked_fill_(terminated, 0.0), final

    def _outcomes(self, index: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._flat[name].index_select(0, index) for name in ("reward", "terminated", "truncated"))
