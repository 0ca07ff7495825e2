"""Provides a store `minio` on a scripted S3 server, with a clock that only retry pauses advance."""

from collections.abc import Iterator

import pytest
from scripted_s3 import ScriptedS3, Time, opened, running

from podrace.checkpoint_store.minio import MinioStore
from podrace.checkpoint_store.minio_retries import RetryPolicy


@pytest.fixture
def time_() -> Time:
    return Time()


@pytest.fixture
def retries(time_: Time) -> RetryPolicy:
    return RetryPolicy(60.0, clock=lambda: time_.now, sleep=time_.sleep, uniform=lambda low, high: high)


@pytest.fixture
def script() -> Iterator[ScriptedS3]:
    with running(ScriptedS3()) as script:
        yield script


@pytest.fixture
def store(script: ScriptedS3, retries: RetryPolicy) -> MinioStore:
    return opened(script.uri, retries)
