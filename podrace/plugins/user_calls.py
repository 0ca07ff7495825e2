"""Calls methods of user-defined classes, and reports each of their errors in one line."""

import contextlib
import inspect
import traceback
from collections.abc import Iterator
from typing import Any

from podrace.errors import UNUSABLE_ALGORITHM, InvalidArgument, PodraceError
from podrace.plugins.loader import describe_exception
from podrace.specification.declaration import place_of


@contextlib.contextmanager
def calls_user_code(cls: type[Any], method: str, key: str = "") -> Iterator[None]:
    """Turns any exception of a user-defined method into one line with the key, the class and the line that raised.

    Raises:
        InvalidArgument: The block raised (UNUSABLE_ALGORITHM).
    """
    try:
        yield
    except PodraceError:
        raise
    except Exception as error:
        line = line_of(error, cls)
        raise unusable(cls, method, f"raised {describe_exception(error)}", line, key=key) from error


def unusable(cls: type[Any], method: str, problem: str, place: str = "", *, key: str = "") -> InvalidArgument:
    """Creates the error of a class whose method is wrong.

    `place` defaults to that of the method, or to that of the class if it inherits the method.
    """
    where = place or place_of(vars(cls).get(method, cls)).rpartition(", ")[2]
    called = f"{cls.__module__}.{cls.__qualname__}.{method}"
    text = " ".join(f"{f'{key}: ' if key else ''}{called} ({where}) {problem}".split())
    return InvalidArgument(text, reason=UNUSABLE_ALGORITHM)


def line_of(error: BaseException | None, code: Any) -> str:
    """Returns the last line of the file of a class or function that an exception came through: `mine.py:31`.

    Without an exception, or if it came through no line of the file, that of the definition; empty if it is unknown.
    """
    try:
        file = inspect.getsourcefile(code)
    except TypeError:
        return ""
    if error is None:
        return place_of(code).rpartition(", ")[2]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{str(file).rpartition('/')[2]}:{lines[-1]}" if lines else ""
