"""One of several endpoints of a store that hangs delays a few requests, and the others do the work."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from scripted_s3 import AGENT, ScriptedS3, opened, running
from urllib3.util import Timeout

from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store import minio_endpoints
from podrace.checkpoint_store.minio import MinioStore
from podrace.checkpoint_store.minio_endpoints import AVOID_SECONDS, Endpoints
from podrace.checkpoint_store.minio_retries import RetryPolicy
from podrace.errors import Unavailable

HOST = "store.test"
ANSWER_SECONDS = 0.5
BOUND_SECONDS = 10.0


class Hanging:
    """An endpoint that accepts connections, and reads and sends nothing."""

    def __init__(self, address: str, port: int) -> None:
        self._listener = socket.create_server((address, port), backlog=64)
        self.address = (address, port)

    def accepted(self) -> int:
        """Number of connections so far."""
        self._listener.setblocking(False)
        count = 0
        while True:
            try:
                self._listener.accept()
            except BlockingIOError:
                return count
            count += 1

    def close(self) -> None:
        self._listener.close()


@dataclass
class Servers:
    """Three endpoints of one bucket at one port, and the order in which the name is resolved."""

    script: ScriptedS3
    port: int
    hanging: Hanging
    order: list[str] = field(default_factory=lambda: ["127.0.0.3", "127.0.0.1", "127.0.0.2"])

    def store(self) -> MinioStore:
        return opened(f"minio+http://{HOST}:{self.port}/checkpoints/p", RetryPolicy(60.0, first_pause_seconds=0.01))


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    monkeypatch.setattr(minio_endpoints, "ANSWER_SECONDS", ANSWER_SECONDS)
    with ExitStack() as stack:
        script = ScriptedS3()
        first = stack.enter_context(running(script))
        port = int(first.endpoint.rpartition(":")[2])
        stack.enter_context(running(script, listen=("127.0.0.2", port)))
        hanging = Hanging("127.0.0.3", port)
        stack.callback(hanging.close)
        found = Servers(script, port, hanging)
        resolve = socket.getaddrinfo

        def resolved(host: Any, number: Any, *arguments: Any, **options: Any) -> Any:
            if host != HOST:
                return resolve(host, number, *arguments, **options)
            return [entry for name in found.order for entry in resolve(name, number, *arguments, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", resolved)
        yield found


@pytest.mark.parametrize("position", range(3))
def test_uploads_and_downloads_go_through_the_others(servers: Servers, position: int) -> None:
    servers.order.insert(position, servers.order.pop(0))
    store, begin = servers.store(), time.monotonic()
    names = [store.put_object(f"object {number}".encode()) for number in range(20)]
    assert [store.get_object(name) for name in names] == [f"object {number}".encode() for number in range(20)]
    store.swap_pointer(AGENT, Pointer(agent_id=AGENT, lease_epoch=1), None)
    assert [found.digest for found in store.list_objects()] == sorted(names)
    assert time.monotonic() - begin < BOUND_SECONDS
    assert servers.hanging.accepted() <= 1, "it is not asked again"


def test_uploads_in_parts_go_through_the_others(servers: Servers) -> None:
    store, begin = servers.store(), time.monotonic()
    store._bucket.part_bytes = 1 << 20
    data = bytes(6 << 20)
    name = store.put_object(data)
    assert store.get_object(name) == data
    assert time.monotonic() - begin < BOUND_SECONDS


def test_an_endpoint_that_begins_to_hang_is_left(servers: Servers) -> None:
    servers.order = ["127.0.0.1", "127.0.0.2"]
    store = servers.store()
    name = store.put_object(b"data")
    store._bucket._connections.endpoints.avoid(("127.0.0.1", servers.port))
    before = servers.script.connections
    assert store.get_object(name) == b"data"
    assert servers.script.connections == before + 1, "a new connection, to the other endpoint"


def test_if_all_endpoints_hang_the_store_is_unavailable_in_a_bounded_time(servers: Servers) -> None:
    servers.order = ["127.0.0.3"]
    store = opened(f"minio+http://{HOST}:{servers.port}/checkpoints/p", RetryPolicy(1.0, first_pause_seconds=0.01))
    store._bucket._connections.connection_pool_kw["timeout"] = Timeout(connect=1.0, read=1.0)
    begin = time.monotonic()
    with pytest.raises(Unavailable):
        store.put_object(b"data")
    assert time.monotonic() - begin < BOUND_SECONDS


def test_requests_of_several_threads_leave_the_hanging_endpoint_together(servers: Servers) -> None:
    store, begin = servers.store(), time.monotonic()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            assert store.get_object(store.put_object(f"{number}".encode())) == f"{number}".encode()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert time.monotonic() - begin < BOUND_SECONDS


def test_an_address_that_did_not_answer_is_tried_last_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    endpoints = Endpoints(lambda: now[0])
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"10.0.0.{number}", 9000)) for number in (1, 2, 3)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    one, two, three = endpoints.ordered("s", 9000)
    endpoints.avoid(one)
    now[0] = 1.0
    endpoints.avoid(two)
    assert list(endpoints.ordered("s", 9000)) == [three, one, two]
    assert endpoints.has_another("s", 9000, one)
    assert not endpoints.has_another("s", 9000, three)
    now[0] = AVOID_SECONDS
    assert list(endpoints.ordered("s", 9000)) == [one, three, two]
    assert not endpoints.is_avoided(one)
