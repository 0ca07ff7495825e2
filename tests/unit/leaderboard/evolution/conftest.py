from collections.abc import Callable, Mapping
from typing import Any

import pytest
from trial_log import QUANTUM, Log

MakeSpec = Callable[..., Any]
NO_SECTIONS: Mapping[str, Any] = {}


@pytest.fixture
def make_log(make_spec: MakeSpec) -> Callable[..., Log]:
    """Logs; keyword arguments are settings in `[evolution]`, or `algorithms` and other sections."""

    def make(algorithms: Any = None, sections: Mapping[str, Any] = NO_SECTIONS, **settings: Any) -> Log:
        searched = {"learning_rate": {"low": 1e-5, "high": 1e-1}, "epochs": {"low": 1, "high": 9}}
        fixed = {"discount": 0.99, "gae_lambda": 0.95, "entropy_coefficient": 0.01, "clip_range": 0.2}
        spec = make_spec(
            algorithms=algorithms or {"ppo": {"hyperparameters": searched | fixed}},
            evolution={"strategy": "incumbent", **settings},
            evaluation={"every_environment_steps": QUANTUM},
            **{"pod": {"cores": 2}, "objective": {"wall_clock_duration": "1000s"}, **sections},
        )
        return Log(spec)

    return make
