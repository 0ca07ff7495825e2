"""Calls the learning rate schedules of users, which the hyperparameter `learning_rate_schedule` names.

def warm_up(environment_steps: int) -> float:
    return min(1.0, environment_steps / 10_000)
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from podrace.config import unknown
from podrace.errors import UNUSABLE_ALGORITHM, InvalidArgument
from podrace.plugins import loader
from podrace.plugins.entry_points import SCHEDULES, class_of, installed
from podrace.plugins.user_calls import line_of

KEY = "learning_rate_schedule"


def factor(name: str, environment_steps: int) -> float:
    """Returns the factor of the learning rate after a number of environment steps of a learner.

    Args:
        name: `python:module:function`, or the name of an installed entry point.
        environment_steps: Over all training of the agent.

    Raises:
        InvalidArgument: There is no such function, it raises, or does not return a number of at least 0.
    """
    function = _function(name)
    try:
        found = function(environment_steps)
    except Exception as error:
        raise _unusable(function, f"raised {loader.describe_exception(error)}", error) from error
    try:
        value = float(found) if isinstance(found, int | float) else math.nan
    except OverflowError:
        raise _unusable(function, f"returned an integer above every float for {environment_steps} steps") from None
    if isinstance(found, bool) or not math.isfinite(value) or value < 0:
        raise _unusable(function, f"returned {found!r} for {environment_steps} steps, expected a number of at least 0")
    return value


@cache
def _function(name: str) -> Callable[..., Any]:
    address = class_of(name, SCHEDULES)
    if address is None:
        raise InvalidArgument(unknown(KEY, "schedule", name, installed(SCHEDULES)), reason=UNUSABLE_ALGORITHM)
    try:
        return loader.load(address.module, address.name)
    except InvalidArgument as error:
        raise InvalidArgument(f"{KEY} = {name!r}: {error.message}", reason=UNUSABLE_ALGORITHM) from None


def _unusable(function: Callable[..., Any], problem: str, error: BaseException | None = None) -> InvalidArgument:
    place = line_of(error, function)
    called = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    text = " ".join(f"{KEY}: {called} ({place}) {problem}".split())
    return InvalidArgument(text, reason=UNUSABLE_ALGORITHM)
