"""A store `minio` before a server whose faults are data, with a time that goes by in pauses alone."""

from collections.abc import Iterator

import pytest
from scripted_s3 import ScriptedS3, Time, opened, running

from podrace.checkpoint_store.minio import MinioStore
from podrace.checkpoint_store.minio_client import Patience


@pytest.fixture
def time_() -> Time:
    return Time()


@pytest.fixture
def patience(time_: Time) -> Patience:
    return Patience(60.0, clock=lambda: time_.now, sleep=time_.sleep, uniform=lambda low, high: high)


@pytest.fixture
def script() -> Iterator[ScriptedS3]:
    with running(ScriptedS3()) as script:
        yield script


@pytest.fixture
def store(script: ScriptedS3, patience: Patience) -> MinioStore:
    return opened(script.uri, patience)
