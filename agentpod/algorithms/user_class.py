"""Imports the class of a user-defined algorithm and checks that it has what a learner calls."""

import inspect
from functools import cache
from typing import Any, cast

from agentpod.algorithms.autograd import ReplayAlgorithm, RolloutAlgorithm
from agentpod.algorithms.autograd.learner import LossDifferentiation
from agentpod.algorithms.base import Settings
from podrace.errors import UNUSABLE_ALGORITHM, InvalidArgument
from podrace.plugins import loader
from podrace.plugins.address import PythonFunction
from podrace.specification.declaration import place_of

METHODS = (
    "update",
    "state_dict",
    "load_state_dict",
    "begin_episodes",
    "fusible",
    "refresh",
    "share_gradients",
)
"""Methods of agentpod.algorithms.base.Algorithm."""
KINDS = frozenset({"continuous", "discrete", "multi_discrete", "multi_binary"})


@cache
def load_class(address: PythonFunction) -> type[Any]:
    """Imports a class. Blocks while its module is imported.

    Raises:
        InvalidArgument: The module cannot be imported, or the class lacks something (UNUSABLE_ALGORITHM).
    """
    try:
        module = loader.import_user_module(address.module)
    except InvalidArgument as error:
        raise InvalidArgument(error.message, reason=UNUSABLE_ALGORITHM) from None
    found = getattr(module, address.name, None)
    if not isinstance(found, type):
        raise InvalidArgument(f"module {address.module!r} has no class {address.name!r}", reason=UNUSABLE_ALGORITHM)
    cls: Any = found
    if problem := class_problem(cls):
        raise InvalidArgument(f"{place_of(cls)}: {problem}", reason=UNUSABLE_ALGORITHM)
    cls.settings_type.declared()
    return cast(type[Any], cls)


def class_problem(cls: type[Any]) -> str:
    """Returns what a class of an algorithm lacks; empty if nothing."""
    missing = [name for name in METHODS if not callable(getattr(cls, name, None))]
    if missing:
        bases = f"{RolloutAlgorithm.__name__} or {ReplayAlgorithm.__name__}"
        return f"has no method {missing[0]}; derive it from {bases} of agentpod.algorithms.autograd"
    if issubclass(cls, LossDifferentiation) and cls.loss is LossDifferentiation.loss:
        return "has no method loss"
    settings = getattr(cls, "settings_type", None)
    if not (inspect.isclass(settings) and issubclass(settings, Settings)):
        return f"settings_type = {settings!r}: expected a dataclass derived from RolloutSettings or ReplaySettings"
    kinds = getattr(cls, "action_kinds", None)
    if not (isinstance(kinds, frozenset | set) and kinds and kinds <= KINDS):
        return f"action_kinds = {kinds!r}: expected a set of {', '.join(sorted(KINDS))}"
    return ""
