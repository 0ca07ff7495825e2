"""The wheel works in a clean environment: without extras the services and the command, with extras a training.

Installs packages, PyTorch among them, so it takes minutes and needs an index.
`make test-slow TESTS=tests/integration/test_wheel.py` runs it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SECONDS = 1200
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
KEPT = (
    "PATH",
    "LANG",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "NO_PROXY",
    "SSL_CERT_FILE",
)


def run(*command: str | Path, folder: Path, code: int = 0) -> str:
    """Runs a command as a user without any setting of podrace or Python does; returns what it printed on stdout."""
    pip = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_"))}
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | pip | {"HOME": str(folder)}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr if code else done.stdout


@pytest.fixture(scope="module")
def wheel() -> Iterator[Path]:
    """The wheel, built from the files that git knows, so that nothing else of this folder is in it."""
    with tempfile.TemporaryDirectory(prefix="podrace-wheel-") as name:
        source = Path(name, "source")
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        for file in filter(None, listed.stdout.split("\0")):
            if file.startswith(("podrace", "orchestrator", "leaderboard", "agentpod", "simulators")) or "/" not in file:
                (source / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(REPOSITORY / file, source / file)
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", name, source, folder=Path(name))
        (built,) = Path(name).glob("*.whl")
        yield built


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, because sockets have short paths."""
    with tempfile.TemporaryDirectory(prefix="pw-") as name:
        yield Path(name)


def install(wheel: Path, extras: str, folder: Path) -> Path:
    """Installs the wheel in a new environment, and returns the folder of its commands."""
    run(sys.executable, "-m", "venv", folder / "venv", folder=folder)
    commands = folder / "venv/bin"
    what = f"podrace{extras} @ {wheel.as_uri()}"
    run(commands / "pip", "install", "--quiet", "--constraint", REPOSITORY / "constraints.txt", what, folder=folder)
    run(commands / "pip", "check", folder=folder)
    return commands


def test_without_extras_the_command_works_and_says_what_is_missing(wheel: Path, folder: Path) -> None:
    podrace = install(wheel, "", folder) / "podrace"
    assert "podrace train examples/cartpole.toml" in run(podrace, "--help", folder=folder)
    assert "cartpole" in run(podrace, "simulators", folder=folder)
    specification = ("init", "tiny.toml", "--environment", "cartpole", "--algorithm", "ppo", "--duration", "1m")
    run(podrace, *specification, folder=folder)
    findings = json.loads(run(podrace, "doctor", "--json", folder=folder, code=1).partition("\n\n")[0].splitlines()[0])
    text = json.dumps(findings)
    assert "podrace[agentpod]" in text
    assert "podrace[agentpod]" in run(podrace, "train", "tiny.toml", folder=folder, code=1)
    assert "podrace[dashboard]" in run(podrace, "dashboard", folder=folder, code=1)


def test_with_extras_a_first_tournament_has_a_champion_that_acts(wheel: Path, folder: Path) -> None:
    commands = install(wheel, "[agentpod,policy,dashboard]", folder)
    podrace = commands / "podrace"
    run(podrace, "doctor", folder=folder)
    run(
        podrace,
        "init",
        "tiny.toml",
        "--environment",
        "cartpole",
        "--algorithm",
        "ppo",
        "--duration",
        "20s",
        folder=folder,
    )
    trained = json.loads(run(podrace, "train", "tiny.toml", "--set", "pool.maximum_pods=1", "--json", folder=folder))
    assert trained["state"] == "COMPLETED"
    run(podrace, "export", "latest", "--folder", "policy", folder=folder)
    acting = "import podrace; print(podrace.load_policy('policy/policy.onnx').act([0.0, 0.0, 0.0, 0.0]))"
    assert run(commands / "python", "-c", acting, folder=folder).strip() in ("0", "1")
    served = "from podrace.dashboard.gateway import ASSETS; print((ASSETS / 'index.html').is_file())"
    assert run(commands / "python", "-c", served, folder=folder).strip() == "True"


def test_uv_installs_it_as_a_tool(wheel: Path, folder: Path) -> None:
    run(sys.executable, "-m", "venv", folder / "uv", folder=folder)
    run(folder / "uv/bin/pip", "install", "--quiet", "uv", folder=folder)
    what = f"podrace @ {wheel.as_uri()}"
    uv = folder / "uv/bin/uv"
    run(uv, "tool", "install", "--quiet", "--constraints", REPOSITORY / "constraints.txt", what, folder=folder)
    assert "podrace" in run(folder / ".local/bin/podrace", "--version", folder=folder)
