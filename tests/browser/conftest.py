"""Provides a scripted mesh, the gateway of a dashboard, and a page in headless Chromium."""

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from gateway_process import GatewayProcess
from scripted_mesh import ScriptedMesh, fill

from podrace.access.mesh_key import MeshKey

RUN = "run-abc123"
AXE = "axe-core@4.14.1"
INSTALL_SECONDS = 120


class MeshThread:
    """A scripted mesh in a thread; `call` runs a function in its event loop."""

    def __init__(self, folder: Path, key: MeshKey | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.mesh = ScriptedMesh(folder, key)
        self.wait(self.mesh.start())

    def wait(self, coroutine: Any) -> Any:
        """Runs a coroutine to its end."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function, which may change tournaments."""
        done: Future[Any] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(function(*arguments)))
        return done.result(20)

    def close(self) -> None:
        self.wait(self.mesh.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="podrace-web-") as found:
        yield Path(found)


@pytest.fixture
def thread(folder: Path) -> Iterator[MeshThread]:
    """A mesh with one tournament of 12 agents and 240 submissions, and an empty one."""
    found = MeshThread(folder)
    found.call(found.mesh.add, "empty-abc123")
    fill(found.call(found.mesh.add, RUN), agents=12, points=240)
    yield found
    found.close()


@pytest.fixture
def gateway(folder: Path, thread: MeshThread, request: pytest.FixtureRequest) -> Iterator[GatewayProcess]:
    """The dashboard of a home with a log of pod p0; with the parameter `elsewhere`, of a mesh elsewhere."""
    (folder / "logs").mkdir()
    (folder / "logs" / f"{RUN}-p0.log").write_text("".join(f"line {number} of p0\n" for number in range(300)))
    found = GatewayProcess(folder, thread.mesh.address, elsewhere=getattr(request, "param", "") == "elsewhere")
    found.start()
    yield found
    found.kill()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless Chromium; skips where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-browser")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium: make test-browser, or apt-get install chromium")
    with api.sync_playwright() as playwright:
        # The sandbox of Chromium needs a user namespace, which containers often refuse.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def opened_page(chromium: Any, url: str) -> Iterator[Any]:
    """A page that has opened an address. Fails at the end on any error in the console, but those of broken requests."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB", timezone_id="UTC")
    found = context.new_page()
    found.set_default_timeout(15_000)
    problems: list[str] = []
    found.on("pageerror", lambda error: problems.append(str(error)))
    found.on("console", lambda line: problems.append(line.text) if is_problem(line) else None)
    found.goto(url)
    yield found
    context.close()
    assert problems == []


@pytest.fixture
def page(chromium: Any, gateway: GatewayProcess) -> Iterator[Any]:
    """A page that has opened the dashboard."""
    with opened_page(chromium, gateway.url) as found:
        found.wait_for_selector("#connection[data-state=live]")
        yield found


def is_problem(line: Any) -> bool:
    """Whether a line of the console is an error of the page; Chromium also writes each refused request there."""
    return line.type == "error" and not line.text.startswith("Failed to load resource")


@pytest.fixture(scope="session")
def axe() -> Iterator[str]:
    """The program of axe-core, fetched once with npm; skips where it cannot be had."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    with tempfile.TemporaryDirectory(prefix="podrace-axe-") as folder:
        install = [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", AXE]
        done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        if done.returncode:
            pytest.skip(f"{AXE} cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
        yield (Path(folder) / "node_modules/axe-core/axe.min.js").read_text()
