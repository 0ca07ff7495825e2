"""Finds the functions and classes of users that a specification names, and turns their errors into one line."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from podrace.errors import BAD_SPEC, InvalidArgument, PodraceError
from podrace.limits.config import Allowed
from podrace.limits.names import module_problem
from podrace.plugins import loader
from podrace.plugins.address import PythonFunction, parse
from podrace.plugins.user_calls import line_of
from simulators.options import closest


def find(address: str, allowed: Allowed, owner: str, key: str) -> Callable[..., Any]:
    """Imports a function or class. Blocks while its module is imported.

    Args:
        address: `python:module:name`.
        allowed: Which modules may be used.
        owner: What names it, for messages.
        key: Key and value of the specification, for messages.

    Raises:
        InvalidArgument: It cannot be imported, or is defined in a module that is not allowed.
    """
    found = parse(address)
    if not isinstance(found, PythonFunction):
        raise InvalidArgument(f"{owner}: expected python:module:name, not {address!r}")
    try:
        function = loader.load(found.module, found.name)
    except InvalidArgument as error:
        module = sys.modules.get(found.module)
        hint = closest(found.name, dir(module)) if module else ""
        raise InvalidArgument(f"{owner}: {error.message}{hint}") from error
    # A module that is allowed also has the functions that it imports, such as those of subprocess.
    origin = getattr(function, "__module__", None) or type(function).__module__
    if f"{found.module}:{found.name}" not in allowed.modules and (problem := module_problem(origin, "", allowed)):
        raise InvalidArgument(f"{key}: is defined elsewhere: {problem}", reason=BAD_SPEC)
    return function


@contextlib.contextmanager
def explained(owner: str, code: Callable[..., Any]) -> Iterator[None]:
    """Turns any exception of the block into one line with the owner, the code and the line that raised.

    Raises:
        InvalidArgument: The block raised.
    """
    try:
        yield
    except PodraceError:
        raise
    except Exception as error:
        raise InvalidArgument(f"{owner}: {label(code, error)} raised {_one_line(error)}") from error


def label(code: Callable[..., Any], error: BaseException | None = None) -> str:
    """Returns the name of a function or class, and where it is defined or raised: `mine.Noisy (mine.py:12)`."""
    name = f"{code.__module__}.{getattr(code, '__qualname__', type(code).__qualname__)}"
    place = line_of(error, code)
    return f"{name} ({place})" if place else name


def _one_line(error: BaseException) -> str:
    return " ".join(loader.describe_exception(error).split())
