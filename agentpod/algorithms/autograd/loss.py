"""Calls what a user-defined algorithm implements, and turns everything that is wrong with the result into one line."""

import contextlib
import inspect
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from podrace.errors import UNUSABLE_ALGORITHM, InvalidArgument, PodraceError
from podrace.plugins.loader import describe_exception
from podrace.specification.declaration import place_of

LOSS = "loss"


def evaluate(algorithm: Any, batch: Any) -> tuple[Tensor, Tensor | None]:
    """Computes the loss of a batch.

    Args:
        algorithm: Its method `loss` returns a scalar, or a scalar and the errors [B] of the batch.
        batch: For the method.

    Returns:
        The loss [], which requires a gradient; the absolute errors [B], if the method returned errors.

    Raises:
        InvalidArgument: The method raised, or its result is not a scalar that depends on the trained networks
            (UNUSABLE_ALGORITHM). Whether it is finite is checked after the update.
    """
    cls = type(algorithm)
    with calls_user_code(cls, LOSS), torch.enable_grad():
        result = algorithm.loss(batch)
    loss, errors = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if not isinstance(loss, Tensor):
        raise unusable(cls, LOSS, f"returned a {type(loss).__name__}, expected a tensor with one element")
    if loss.numel() != 1:
        raise unusable(cls, LOSS, f"returned a tensor of shape {list(loss.shape)}, expected a scalar: take its mean")
    if not loss.requires_grad:
        raise unusable(cls, LOSS, "returned a loss that does not depend on the trained networks: use self.actor")
    return loss.view(()), None if errors is None else errors.detach().abs()


@contextlib.contextmanager
def calls_user_code(cls: type[Any], method: str) -> Iterator[None]:
    """Turns any exception of a user-defined method into one line with the class and the line that raised.

    Raises:
        InvalidArgument: The block raised (UNUSABLE_ALGORITHM).
    """
    try:
        yield
    except PodraceError:
        raise
    except Exception as error:
        raise unusable(cls, method, f"raised {describe_exception(error)}", _line_of(error, cls)) from error


def unusable(cls: type[Any], method: str, problem: str, place: str = "") -> InvalidArgument:
    """Creates the error of a class whose method is wrong; the place is that of the method if none is given."""
    where = place or place_of(getattr(cls, method)).rpartition(", ")[2]
    text = " ".join(f"{cls.__module__}.{cls.__qualname__}.{method} ({where}) {problem}".split())
    return InvalidArgument(text, reason=UNUSABLE_ALGORITHM)


def _line_of(error: BaseException, cls: type[Any]) -> str:
    """Returns the last line of the class's file that an exception came through: `mine.py:31`."""
    try:
        file = inspect.getsourcefile(cls)
    except TypeError:
        return ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{str(file).rpartition('/')[2]}:{lines[-1]}" if lines else ""
