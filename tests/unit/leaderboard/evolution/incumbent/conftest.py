from collections.abc import Callable

import pytest
from trial_log import Log


@pytest.fixture
def log(make_log: Callable[..., Log]) -> Log:
    """A log without the chance decisions, so that a test decides alone what happens."""
    return make_log(riser_probability=0.0)
