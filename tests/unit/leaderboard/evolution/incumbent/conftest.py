from collections.abc import Callable
from typing import Any

import pytest
from incumbent_race import QUANTUM, Log

MakeSpec = Callable[..., Any]


@pytest.fixture
def make_log(make_spec: MakeSpec) -> Callable[..., Log]:
    """Logs; keyword arguments are settings of the strategy, or `algorithms`."""

    def make(algorithms: Any = None, **settings: Any) -> Log:
        searched = {"learning_rate": {"low": 1e-5, "high": 1e-1}, "epochs": {"low": 1, "high": 9}}
        fixed = {"discount": 0.99, "gae_lambda": 0.95, "entropy_coefficient": 0.01, "clip_range": 0.2}
        spec = make_spec(
            algorithms=algorithms or {"ppo": {"hyperparameters": searched | fixed}},
            evolution={"strategy": "incumbent", **settings},
            evaluation={"every_environment_steps": QUANTUM},
            objective={"wall_clock_duration": "1000s"},
            pod={"cores": 2},
        )
        return Log(spec)

    return make


@pytest.fixture
def log(make_log: Callable[..., Log]) -> Log:
    """A log without the chance decisions, so that a test decides alone what happens."""
    return make_log(riser_probability=0.0)
