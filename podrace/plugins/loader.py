"""Imports the function of a plugin and limits the process it runs in."""

import ctypes
import importlib
import resource
import signal
import sys
from collections.abc import Callable
from types import ModuleType

import structlog

from podrace.errors import BAD_SPEC, InvalidArgument
from podrace.processes import user_ids

PR_SET_PDEATHSIG = 1

_log = structlog.get_logger(__name__)


def load(module_name: str, name: str) -> Callable[..., object]:
    """Imports a function. Blocks while the module is imported.

    Raises:
        InvalidArgument: As `import_user_module`; or the module has no such function (BAD_SPEC).
    """
    function = getattr(import_user_module(module_name), name, None)
    if not callable(function):
        raise InvalidArgument(f"module {module_name!r} has no function {name!r}", reason=BAD_SPEC)
    return function  # type: ignore[no-any-return]


def import_user_module(module_name: str) -> ModuleType:
    """Imports a module that a user named. Blocks while it is imported.

    Raises:
        InvalidArgument: The module raises while it is imported (SystemExit included). The reason is BAD_SPEC if the
            module does not exist, and empty if it exists and fails.
    """
    try:
        return importlib.import_module(module_name)
    except BaseException as error:  # sys.exit raises SystemExit, which is no Exception
        _log.error("module cannot be imported", module=module_name, exc_info=error)
        where = f" This Python has the packages of {sys.prefix}" if isinstance(error, ModuleNotFoundError) else ""
        raise InvalidArgument(
            f"module {module_name!r} cannot be imported ({describe_exception(error)}); is it on PYTHONPATH?{where}",
            reason=BAD_SPEC if _is_absent(error, module_name) else "",
        ) from None


def _is_absent(error: BaseException, module_name: str) -> bool:
    """Whether the module itself or one of its parent packages is missing, as opposed to a module that it imports."""
    return isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")


def describe_exception(error: BaseException) -> str:
    """Returns the type and the message of an exception."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def confine(memory_bytes: int = 0) -> None:
    """Makes the kernel kill this process when its parent exits, and before all other processes when memory runs out.

    This works on Linux only; on other systems it has no effect.

    Args:
        memory_bytes: Data memory that this process may allocate (RLIMIT_DATA); 0: no limit.
    """
    if sys.platform != "linux":
        return
    # The lifeline is read by Python code, which does not run while a native call holds the interpreter lock.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    user_ids.raise_oom_score()
    if memory_bytes:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
