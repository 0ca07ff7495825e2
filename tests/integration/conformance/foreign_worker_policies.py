"""Workers that break what the contract says about recurrence and replay memories; written from the protos alone."""

from typing import Any

import numpy as np
from foreign_workers import Worker


class NeverForgets(Worker):
    """Keeps the recurrent state over the end of an episode."""

    breaks = "h is 0 at the first step of an episode"

    def forget(self, lane: int) -> None:
        pass


class FirstRows(Worker):
    """Writes every segment of a replay memory to its first rows."""

    breaks = "The worker writes the T rows from `first_row` on"

    def first_row(self, slot: Any) -> int:
        return 0


class ForgetsTheEnd(Worker):
    """Loses the observation after the last step of a segment."""

    breaks = "There is no row for the observation after the last step"

    def end_in_memory(self, arrays: dict[str, np.ndarray], states: np.ndarray) -> None:
        arrays["observation"] = arrays["observation"][:-1]


BROKEN = [NeverForgets, FirstRows, ForgetsTheEnd]
