"""What every wrapper around a simulator is: the simulator itself, but for what it changes."""

from torch import Tensor

from simulators.base import Report, Simulator, Step


class Wrapper:
    """Hands everything on; see simulators.base.Simulator.

    Attributes:
        inner: What is wrapped.
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of lanes, N.
    """

    def __init__(self, inner: Simulator) -> None:
        """Wraps."""
        self.inner = inner
        self.observation_space, self.action_space, self.count = inner.observation_space, inner.action_space, inner.count

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        return self.inner.reset(seed)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        return self.inner.step(action)

    def report(self) -> Report:
        """Of the wrapped simulator."""
        return self.inner.report()

    def close(self) -> None:
        """Closes the wrapped simulator."""
        self.inner.close()


def over_lanes(flags: Tensor, like: Tensor) -> Tensor:
    """Flags [N] with as many axes as `like` [N, ...], to choose its rows by."""
    return flags.view(-1, *[1] * (like.dim() - 1))
