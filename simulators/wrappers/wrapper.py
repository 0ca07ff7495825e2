"""Defines the base class of wrappers: it behaves as the wrapped simulator, except for what a subclass changes."""

from torch import Tensor

from podrace.errors import InvalidArgument
from simulators.base import Report, Simulator, Space, Step


class Wrapper:
    """Delegates everything to the wrapped simulator; see simulators.base.Simulator.

    Attributes:
        inner: The wrapped simulator.
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of lanes, N.
    """

    def __init__(self, inner: Simulator) -> None:
        """Wraps a simulator."""
        self.inner = inner
        self.observation_space, self.action_space, self.count = inner.observation_space, inner.action_space, inner.count

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        return self.inner.reset(seed)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        return self.inner.step(action)

    def report(self) -> Report:
        """Returns the report of the wrapped simulator."""
        return self.inner.report()

    def close(self) -> None:
        """Closes the wrapped simulator."""
        self.inner.close()


def refuse_composite(space: Space, owner: str) -> None:
    """Raises InvalidArgument for an observation space whose entries a wrapper would mix up."""
    if space.entries:
        names = ", ".join(entry.name for entry in space.entries)
        raise InvalidArgument(f"{owner}: the observations are composite ({names}): remove the wrapper")


def over_lanes(flags: Tensor, like: Tensor) -> Tensor:
    """Reshapes flags [N] to broadcast over the rows of `like` [N, ...]."""
    return flags.view(-1, *[1] * (like.dim() - 1))
