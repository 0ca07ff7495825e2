"""Provides a scripted mesh, a gateway that serves it, and a browser session of the gateway."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from gateway_page import NAME, Page
from scripted_mesh import ScriptedMesh, fill

from podrace.dashboard import feed
from podrace.dashboard.gateway import serving
from podrace.dashboard.settings import DashboardSettings


@pytest.fixture
def folder() -> Iterator[Path]:
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="podrace-dash-") as found:
        yield Path(found)


@pytest.fixture
async def mesh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedMesh]:
    """A mesh with one tournament of 6 agents and 60 submissions."""
    monkeypatch.setattr(feed, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(feed, "BOARD_SECONDS", 0.05)
    monkeypatch.setattr(feed, "ENDED_SECONDS", 0.05)
    async with ScriptedMesh(folder) as scripted:
        fill(scripted.add(NAME), agents=6, points=60)
        yield scripted


@pytest.fixture
async def page(folder: Path, mesh: ScriptedMesh) -> AsyncIterator[Page]:
    settings = DashboardSettings("127.0.0.1:0", token_file=folder / "token", logs=folder / "logs")
    jar = aiohttp.CookieJar(unsafe=True)
    async with (
        serving(settings, mesh.address) as url,
        aiohttp.ClientSession(cookie_jar=jar) as session,
    ):
        async with session.get(url) as response:
            assert response.status == 200
        yield Page(session, url, url.partition("/?")[0])
