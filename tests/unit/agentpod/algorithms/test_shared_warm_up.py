"""Tests that learners which share gradients begin to train together, however their mean is rounded."""

from typing import Any

import torch
from experience import Course, new_algorithm
from torch import Tensor


class RingMean:
    """The mean over learners as NCCL computes it: each number times a rounded 1 / n, summed in float32 around a ring.

    Gradients are left as they are.
    """

    def __init__(self, learners: int, last: float) -> None:
        """The last learner of the ring contributes `last`, those before it 1."""
        self._numbers = [*[1.0] * (learners - 2), last]

    def __call__(self, tensor: Tensor) -> None:
        if tensor.dim() == 0:
            factor = torch.tensor(1.0) / (len(self._numbers) + 1)
            tensor.mul_(factor)
            for number in self._numbers:
                tensor.add_(number * factor)

    def finish(self) -> None:
        """There is nothing to wait for."""


def trains(learners: int, *, last: float) -> bool:
    """Whether a learner that is warm makes gradient steps."""
    algorithm: Any = new_algorithm("dqn", "discrete", hidden_sizes=[2], updates_per_step=0.0625)
    algorithm.share_gradients(RingMean(learners, last))
    return bool(algorithm.update(Course(algorithm, "discrete").next()))


def test_any_number_of_warm_learners_trains() -> None:
    found = {learners: trains(learners, last=1.0) for learners in (*range(2, 65), 1024)}
    assert [learners for learners, training in found.items() if not training] == []


def test_no_learner_trains_before_the_last_one_is_warm() -> None:
    found = {learners: trains(learners, last=0.0) for learners in (*range(2, 65), 1024)}
    assert [learners for learners, training in found.items() if training] == []
