"""The S3 server that the tests of stores share."""

import uuid
from collections.abc import Callable, Iterator

import pytest
import weed


@pytest.fixture(scope="session")
def running_s3() -> Iterator[weed.S3Server]:
    """Runs for the whole session, once a test has asked for it."""
    if weed.binary() is None:
        pytest.skip(weed.MISSING)
    with weed.running_server() as server:
        yield server


@pytest.fixture
def s3_server(running_s3: weed.S3Server, monkeypatch: pytest.MonkeyPatch) -> weed.S3Server:
    """The server, and its credentials in the environment of this test and of the processes it starts."""
    for name, value in running_s3.environ.items():
        monkeypatch.setenv(name, value)
    return running_s3


@pytest.fixture
def new_uri(s3_server: weed.S3Server) -> Callable[[], str]:
    """Names a store on the server that nobody else uses."""
    return lambda: s3_server.uri(f"test/{uuid.uuid4().hex[:12]}")
