"""Wraps one of podrace's simulators as a vector environment of Stable-Baselines3, with the simulator's report."""

from typing import Any

from comparison.vector import SimulatorVecEnv


class Batch(SimulatorVecEnv):
    """N lanes of a simulator, whose episodes start with one seed."""

    def measures(self) -> dict[str, float]:
        return self.simulator.report().metrics

    def env_method(self, method_name: str, *_: Any, indices: Any = None, **__: Any) -> list[Any]:
        return [getattr(self, method_name)()]
