"""User code that looks for secrets from inside a container of a pod: `python:container_spy:make` and `:score`.

It appends what it found to a file below REPORTS, one JSON object a line. It uses `spying` of tests/security, which is
mounted with it.
"""

import json
import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import gymnasium
from spying import Walk, link, regions, works

REPORTS = Path("/reports")
FILES = (Path(__file__), Path(__file__).parents[1] / "security/spying.py")
"""Modules to mount into the containers of pods."""
SECTIONS = {
    "environment": {"id": "python:container_spy:make", "count": 2},
    "algorithms": {"ppo": {"hyperparameters": {"horizon": 16, "minibatch_size": 32, "hidden_sizes": [8]}}},
    "assignment": {"environment_steps": 256},
    "evaluation": {"episodes": 2, "evaluator": "python:container_spy:score"},
    "evolution": {"initial_agents": 1},
}
"""Sections of a specification that runs this code."""
PORTS = {"orchestrator": 50051, "leaderboard": 50052, "store": 9000}
PLACES = REPORTS / "places.json"
"""Where the services are, if not at the names that Compose gives them."""
SECRET = re.compile(rb"(?:test|local)-(?:access|secret)-ke[y]|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{40,}")
"""The keys of the store that the tests give it, and tokens that are signed."""
FOLDERS = ("/run", "/etc/podrace", "/var/lib/podrace", "/tmp", "/home")
LARGEST_FILE = 1 << 20
ATTEMPTS = 20
_REPORTED: set[str] = set()
METHODS = {
    "orchestrator": (
        "podrace.orchestrator.v1.OrchestratorService/ListTournaments",
        "podrace.orchestrator.v1.OrchestratorService/CancelTournament",
        "podrace.orchestrator.v1.OrchestratorService/AcquireAssignment",
    ),
    "leaderboard": (
        "podrace.leaderboard.v1.LeaderboardService/ListCandidates",
        "podrace.leaderboard.v1.UpdaterService/SubmitCandidate",
        "podrace.checkpoint.v1.StoreService/GrantUploads",
    ),
}


def make() -> gymnasium.Env[Any, Any]:
    report("environment")
    return Walk()


def score(*arguments: object) -> object:
    """An evaluation function that looks around and fails, so that the built-in one is used."""
    report("evaluator")
    raise RuntimeError("seen enough")


def report(part: str) -> None:
    """Reports once in each process: an evaluation makes many environments."""
    if part in _REPORTED:
        return
    _REPORTED.add(part)
    found = {"part": part, "host": socket.gethostname(), **look()}
    with (REPORTS / "found").open("a") as file:
        file.write(json.dumps(found) + "\n")


def look() -> dict[str, object]:
    others = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    others.remove(os.getpid())
    places = json.loads(PLACES.read_text()) if PLACES.exists() else {name: f"{name}:{PORTS[name]}" for name in PORTS}
    return {
        "uid": os.getuid(),
        "commands": sorted(filter(None, map(command, others))),
        "secret in": sorted({*own_secrets(), *secrets_of(others), *files_with_secrets()}),
        "memory of": [command(pid) for pid in others if works(Path(f"/proc/{pid}/mem").open, "rb")],
        "root": works(os.setuid, 0),
        "writes to the image": works(Path("/opt/own/changed").touch),
        "engine": Path("/var/run/docker.sock").exists(),
        "service account": Path("/var/run/secrets/kubernetes.io").exists(),
        "store": {method: request(places["store"], method) for method in ("GET", "PUT", "DELETE")},
        "calls": {name: call(places[service], name) for service, names in METHODS.items() for name in names},
    }


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def own_secrets() -> Iterator[str]:
    if SECRET.search("\n".join(f"{name}={value}" for name, value in os.environ.items()).encode()):
        yield "own environment"
    with Path("/proc/self/mem").open("rb") as memory:
        for start, size in regions():
            memory.seek(start)
            if SECRET.search(memory.read(size)):
                yield "own memory"
    yield from (f"own file {name}" for name in map(link, Path("/proc/self/fd").iterdir()) if "token" in name)


def secrets_of(others: list[int]) -> Iterator[str]:
    for pid in others:
        try:
            if SECRET.search(Path(f"/proc/{pid}/environ").read_bytes()):
                yield f"environment of {command(pid)}"
        except OSError:
            continue


def files_with_secrets() -> Iterator[str]:
    for folder in FOLDERS:
        for place, _, names in os.walk(folder):
            for name in names:
                path = Path(place, name)
                try:
                    if path.is_file() and path.stat().st_size <= LARGEST_FILE and SECRET.search(path.read_bytes()):
                        yield str(path)
                except OSError:
                    continue


def request(store: str, method: str) -> int:
    """Sends a request without credentials to the store; returns the status, 0 if it does not answer."""
    data = b"x" if method == "PUT" else None
    asked = urllib.request.Request(f"http://{store}/podrace/stolen", method=method, data=data)
    for _ in range(ATTEMPTS):
        try:
            return int(urllib.request.urlopen(asked, timeout=10).status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            # The networks of the engine are being changed.
            time.sleep(0.2)
    return 0


def call(address: str, name: str) -> str:
    """Calls a service with the certificate that the container has; returns the status."""
    files = (Path("/etc/podrace/tls", file).read_bytes() for file in ("ca.crt", "tls.key", "tls.crt"))
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(*files)) as channel:
        try:
            # A service that a busy machine does not report as ready has no address for a moment.
            channel.unary_unary(f"/{name}")(b"", timeout=30, wait_for_ready=True)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def check(found: list[dict[str, Any]]) -> None:
    """Checks reports of an environment and of an evaluation function, neither in the container of the leader."""
    # The evaluation function's process makes an environment as well.
    with_leader = [any("agentpod learner" in command for command in each["commands"]) for each in found]
    seen = {(each["part"], there) for each, there in zip(found, with_leader, strict=True)}
    assert seen == {("environment", False), ("evaluator", False)}, seen
    for each in found:
        assert each["uid"] == 10001
        assert each["secret in"] == [], each
        assert not any(each[way] for way in ("root", "writes to the image", "engine", "service account")), each
        assert set(each["store"].values()) <= {401, 403}, each
        assert set(each["calls"].values()) == {"PERMISSION_DENIED"}, each
        # A copy of the evaluation function's process waits for it; other processes and process 1 are hidden.
        assert not any("agentpod learner" in command for command in each["memory of"]), each
