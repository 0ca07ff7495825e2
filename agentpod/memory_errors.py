"""Reports exhausted memory, of a GPU or of the host, as an error that names the settings to change."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from podrace.errors import ResourceExhausted

SIGNS = ("out of memory", "can't allocate memory", "Failed to allocate", "CUBLAS_STATUS_ALLOC_FAILED")
"""Parts of the messages by which CUDA, PyTorch, Warp and cuBLAS report exhausted memory."""
GENERAL = "environment.count, the minibatch_size or batch_size, or replay_capacity"
"""Settings that need memory, for functions that name none."""
GIB = 1 << 30
_SETTINGS = "__needs_memory_for__"

Function = TypeVar("Function", bound=Callable[..., Any])


def needs_memory_for(settings: str) -> Callable[[Function], Function]:
    """Names the settings that the memory of a function depends on, for the error when there is not enough."""

    def named(function: Function) -> Function:
        setattr(function, _SETTINGS, settings)
        return function

    return named


def settings_of(function: Callable[..., Any]) -> str:
    """Returns the settings that a function was marked with."""
    named: str = getattr(function, _SETTINGS, GENERAL)
    return named


def exhausted(error: Exception, device: str, settings: str) -> ResourceExhausted | None:
    """Returns the error to report if memory is exhausted, otherwise None.

    Args:
        error: What a computation raised.
        device: Where it computed.
        settings: Settings that need less memory if they are lowered.
    """
    message = str(error)
    if not isinstance(error, torch.OutOfMemoryError | MemoryError) and not any(sign in message for sign in SIGNS):
        return None
    free = free_bytes(device)
    left = "" if free is None else f" ({free / GIB:.1f} GiB free)"
    reason = message.splitlines()[0].rstrip(".") if message else type(error).__name__
    return ResourceExhausted(f"the memory of {device} is exhausted{left}: lower {settings}: {reason}")


def free_bytes(device: str | torch.device) -> int | None:
    """Returns the free memory of a GPU, with what torch keeps for reuse and without that of other processes.

    None for the host, and if it is unknown.
    """
    if torch.device(device).type != "cuda":
        return None
    try:
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    except (RuntimeError, AssertionError):
        return None
