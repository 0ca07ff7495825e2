"""Decides which waiting requests are computed together, and when.

A request waits only while the policy is busy, or for `delay_seconds` for others to join it. The deadline of a request
counts as well: it is computed before the deadline comes too close, and not at all once the deadline has passed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class BatchLimits:
    """Sizes and times of batches."""

    maximum_rows: int = 1024
    """Most observations that are computed together; a larger request is computed alone."""
    delay_seconds: float = 0.0
    """Longest time that a request waits for others to join its batch; 0: it only waits while the policy is busy."""
    queued_rows: int = 16384
    """Most observations that wait; further requests are refused."""


class Waiting(NamedTuple):
    """A request that waits."""

    rows: int
    """Number of its observations."""
    arrival: float
    """When it arrived, in seconds."""
    deadline: float = math.inf
    """When its caller stops waiting, in seconds."""


class Cut(NamedTuple):
    """What to compute now."""

    take: int
    """How many requests from the front form the next batch; 0: none yet."""
    wait_seconds: float
    """Time after which to decide again, unless a request arrives; infinity: only when one arrives."""
    reason: str
    """Why."""


def admits(queued_rows: int, rows: int, limits: BatchLimits) -> bool:
    """Whether a request may join the queue. An empty queue takes a request of any size."""
    return not queued_rows or queued_rows + rows <= limits.queued_rows


def cut(waiting: Sequence[Waiting], now: float, limits: BatchLimits, compute_seconds: float = 0.0) -> Cut:
    """Decides what an idle policy computes next.

    Args:
        waiting: The requests that wait, oldest first; none of them is past its deadline.
        now: The current time in seconds.
        limits: Sizes and times.
        compute_seconds: Time that the last batch took. A batch starts this long before the first deadline in it.
    """
    if not waiting:
        return Cut(0, math.inf, "nothing waits")
    take, rows = 0, 0
    for request in waiting:
        if take and rows + request.rows > limits.maximum_rows:
            return Cut(take, 0.0, "the batch is full")
        take, rows = take + 1, rows + request.rows
    if rows >= limits.maximum_rows:
        return Cut(take, 0.0, "the batch is full")
    left = waiting[0].arrival + limits.delay_seconds - now
    if left <= 0.0:
        return Cut(take, 0.0, "the oldest request has waited long enough")
    spare = min(request.deadline for request in waiting) - compute_seconds - now
    if spare <= 0.0:
        return Cut(take, 0.0, "a deadline is near")
    return Cut(0, min(left, spare), "others may join")


def expired(waiting: Sequence[Waiting], now: float) -> list[int]:
    """Returns the positions of requests whose callers do not wait any longer."""
    return [index for index, request in enumerate(waiting) if request.deadline <= now]
