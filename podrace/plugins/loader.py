"""A user's function in a process of its own: how it is found, and what sees to it that the process harms nobody."""

import ctypes
import importlib
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from podrace.errors import BAD_SPEC, InvalidArgument

PR_SET_PDEATHSIG = 1
FIRST_TO_DIE = 1000
"""Where memory runs out, the kernel ends the process with the highest of these first."""

_log = structlog.get_logger(__name__)


def load(module_name: str, name: str) -> Callable[..., object]:
    """Imports a function; blocks.

    Raises:
        InvalidArgument: The module cannot be imported, whatever it does instead, or has no such function. BAD_SPEC if
            there is nothing of that name, rather than something broken.
    """
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # a module may call sys.exit, too
        _log.error("the module cannot be imported", exc_info=error)
        raise InvalidArgument(
            f"module {module_name!r} cannot be imported ({shown(error)}); is it on PYTHONPATH?",
            reason=BAD_SPEC if _is_absent(error, module_name) else "",
        ) from None
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidArgument(f"module {module_name!r} has no function {name!r}", reason=BAD_SPEC)
    return function  # type: ignore[no-any-return]


def _is_absent(error: BaseException, module_name: str) -> bool:
    """Whether it is the module itself, or a package it should lie in, that is not there; not what it imports."""
    return isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")


def shown(error: BaseException) -> str:
    """What a user's code raised, in a line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def confine(memory_bytes: int = 0) -> None:
    """Sees to it that this process dies with its parent, however that dies, and before it where memory runs out.

    Args:
        memory_bytes: All that it may use; 0: as much as there is.
    """
    if sys.platform == "linux":
        # The lifeline is noticed by Python; a function that never lets go of the interpreter would outlive it.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(str(FIRST_TO_DIE))
        if memory_bytes:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
