"""HTTP servers close connections for which there is no room, and serve again when others have ended."""

import asyncio
import contextlib
import errno
import resource
import socket
import ssl
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from podrace import http_server

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.fixture
async def address(monkeypatch) -> AsyncIterator[tuple[str, int]]:
    """A server that may have eight connections."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 64))
    async with serving() as found:
        yield found


@contextlib.asynccontextmanager
async def serving(**options) -> AsyncIterator[tuple[str, int]]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="served")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = http_server.app_runner(app)
    await runner.setup()
    await http_server.listen(runner, "127.0.0.1", 0, share=0.125, **options)
    yield runner.addresses[0][:2]
    await runner.cleanup()


async def answer_of(address) -> bytes:
    """Answer to a request; empty if the connection was closed at once."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(REQUEST)
        return await asyncio.wait_for(reader.read(), 20.0)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_connections_beyond_the_limit_are_closed_at_once_and_the_others_stay(address):
    idle = [await asyncio.open_connection(*address) for _ in range(8)]
    for _ in range(300):
        reader, writer = await asyncio.open_connection(*address)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 20.0) == b""
        writer.close()
    reader, writer = idle[0]
    writer.write(REQUEST)
    assert b"served" in await asyncio.wait_for(reader.read(), 20.0)
    for _, writer in idle:
        writer.close()
    while not await answer_of(address):
        pass


async def test_many_requests_one_after_another_are_served(address):
    for _ in range(50):
        while b"served" not in (found := await answer_of(address)):
            assert found == b"", "the connection before occupies its place for a moment"


async def test_a_connection_without_a_handshake_of_tls_is_counted(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 64))
    async with serving(ssl_context=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)) as address:
        idle = [await asyncio.open_connection(*address) for _ in range(8)]
        assert await answer_of(address) == b""
        for _, writer in idle:
            writer.close()


async def test_a_missing_file_descriptor_is_logged_once_for_all_connections_that_wait(monkeypatch, address, caplog):
    monkeypatch.setattr(asyncio.constants, "ACCEPT_RETRY_DELAY", 0.05)
    monkeypatch.setattr(http_server, "EXHAUSTED_SECONDS", 0.04)
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]

    def failing(listener):
        if failures:
            raise failures.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    answers = await asyncio.gather(*(answer_of(address) for _ in range(4)))
    assert all(b"served" in answer for answer in answers)
    assert sum("out of system resource" in record.message for record in caplog.records) == 1
