"""What holds for all tests."""

import os
from collections.abc import Iterator

import pytest
import structlog

# Before anything imports torch: small operations on two threads take many times as long as soon as another process
# wants one of the processors.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def logs_as_they_come() -> Iterator[None]:
    """What a test configures for its logs ends with it."""
    yield
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()
