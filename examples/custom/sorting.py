"""An environment with a Dict observation, a MultiDiscrete action and an action mask: sort parcels into bins."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

KINDS, FORCES, STEPS = 4, 3, 20
WASTE = KINDS
"""Number of the bin for everything, which is always open."""


class Sorting(gymnasium.Env):
    """Put each parcel into the bin of its kind, with a force that fits its weight; 20 parcels are an episode.

    The right bin is worth 0.5, and the right force 0.5. If the right bin is closed, the waste bin is right. The action
    mask has one flag for each bin, and then one for each force: closed bins are invalid, and choosing one is an error.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "kind": spaces.Discrete(KINDS, start=1),
                "size": spaces.Box(0.0, 100.0, (2,), np.float32),
                "density": spaces.Box(0.0, 1.0, (), np.float32),
                "action_mask": spaces.MultiBinary(KINDS + 1 + FORCES),
            }
        )
        self.action_space = spaces.MultiDiscrete([KINDS + 1, FORCES])
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts with a new parcel."""
        super().reset(seed=seed)
        self._steps = 0
        return self._next_parcel(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Sorts the parcel: [bin, force]."""
        chosen, force = (int(number) for number in action)
        if not self._open[chosen]:
            raise ValueError(f"bin {chosen} is closed")
        right = self._kind if self._open[self._kind] else WASTE
        weight = self._size.mean() / 100.0 * self._density
        reward = 0.5 * (chosen == right) + 0.5 * (force == np.searchsorted([0.15, 0.35], weight))
        self._steps += 1
        return self._next_parcel(), float(reward), False, self._steps == STEPS, {}

    def _next_parcel(self) -> dict[str, Any]:
        self._kind = int(self.np_random.integers(KINDS))
        self._size = self.np_random.uniform(0.0, 100.0, 2).astype(np.float32)
        self._density = np.float32(self.np_random.uniform())
        self._open = np.append(self.np_random.uniform(size=KINDS) < 0.7, True)
        mask = np.append(self._open, np.ones(FORCES, np.bool_)).astype(np.int8)
        return {"kind": self._kind + 1, "size": self._size, "density": np.array(self._density), "action_mask": mask}


def make() -> Sorting:
    """Makes one environment."""
    return Sorting()
