"""Provides the checkpoint stores, and the servers that tests share: of S3 and of PostgreSQL."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import weed
from postgresql_server import MISSING, PostgresqlServer, programs, running_server
from store_harness import Harness, folder_harness, minio_harness

from podrace.checkpoint_store.store import CheckpointStore


@pytest.fixture(scope="session")
def running_s3() -> Iterator[weed.S3Server]:
    """Runs a server from the first test that needs it to the end of the session."""
    if weed.binary() is None:
        pytest.skip(weed.MISSING)
    with weed.running_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """Runs a server from the first test that needs it to the end of the session."""
    if programs() is None:
        pytest.skip(MISSING)
    with running_server() as server:
        yield server


@pytest.fixture
def s3_server(running_s3: weed.S3Server, monkeypatch: pytest.MonkeyPatch) -> weed.S3Server:
    """Returns the server, with its credentials in the environment of the test and of the processes it starts."""
    for name, value in running_s3.environ.items():
        monkeypatch.setenv(name, value)
    return running_s3


@pytest.fixture
def new_uri(s3_server: weed.S3Server) -> Callable[[], str]:
    """Returns the URI of a new store on the server at each call."""
    return lambda: s3_server.uri(f"test/{uuid.uuid4().hex[:12]}")


@pytest.fixture(params=["folder", "minio"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Harness:
    if request.param == "folder":
        return folder_harness(tmp_path / "store")
    return minio_harness(request.getfixturevalue("new_uri")())


@pytest.fixture
def store(harness: Harness) -> CheckpointStore:
    return harness.store
