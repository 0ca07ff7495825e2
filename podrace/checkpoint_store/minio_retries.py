"""Retries requests to an S3 server whose failure may pass."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from podrace.backoff import exponential
from podrace.checkpoint_store.minio_errors import CLIENT_ERRORS, Failure
from podrace.errors import PodraceError, Unavailable

_log = structlog.get_logger(__name__)
Result = TypeVar("Result")


@dataclass(frozen=True)
class RetryPolicy:
    """How long, and with which pauses, a request is retried."""

    deadline_seconds: float
    """No attempt starts after this time."""
    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 5.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = random.uniform
    """Draws each pause between half and all of it, so that many pods do not retry at the same moment."""

    def pause_seconds(self, failures: int) -> float:
        """Returns the pause after this many failures: doubled each time, up to the longest."""
        longest = exponential(failures, self.first_pause_seconds, self.longest_pause_seconds)
        return self.uniform(longest / 2, longest)


@dataclass
class Attempts:
    """Failed attempts of one call so far."""

    failures: int = 0
    uncertain: bool = False
    """Whether the server may have carried out an attempt that failed."""


def retried(
    policy: RetryPolicy,
    call: Callable[[], Result],
    failure_of: Callable[[Exception], Failure],
    attempts: Attempts | None = None,
) -> Result:
    """Calls until the call succeeds, fails in a way that cannot pass, or the deadline is reached.

    Args:
        policy: How long to retry.
        call: Makes one request.
        failure_of: Classifies an error of the client.
        attempts: Counts the failed attempts.

    Raises:
        PodraceError: The error of the last attempt.
    """
    attempts = attempts or Attempts()
    give_up = policy.clock() + policy.deadline_seconds
    while True:
        try:
            return call()
        except CLIENT_ERRORS as error:
            failure = failure_of(error)
            attempts.failures += 1
            pause = policy.pause_seconds(attempts.failures)
            if not failure.transient:
                raise failure.error from error
            attempts.uncertain = True
            if policy.clock() + pause > give_up:
                raise _given_up(policy, failure, attempts.failures) from error
        if attempts.failures == 1:
            _log.warning("a request to the checkpoint store failed; retrying", error=failure.error.message)
        policy.sleep(pause)


def _given_up(policy: RetryPolicy, failure: Failure, tries: int) -> PodraceError:
    if not isinstance(failure.error, Unavailable) or tries == 1:
        return failure.error
    return Unavailable(f"{failure.error.message} ({tries} tries in {policy.deadline_seconds:g} s)")
