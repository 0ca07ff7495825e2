"""A `python:` environment looks for the token, the keys of the store, and other processes of its pod.

Before, it found all of them: in a fused pod it ran in the leader, in other pods it had the user id of the leader and a
copy of the memory of the fork server, which had received token and keys.
"""

import asyncio
import json
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from scripted import ScriptedLeaderboard, ScriptedOrchestrator

from orchestrator.launchers.base import NewPod, PodEnvironment
from orchestrator.launchers.options import ProcessOptions
from orchestrator.launchers.process.launcher import ProcessLauncher
from orchestrator.launchers.process.local_gpus import LocalGpus
from podrace.access.credentials import Credentials
from podrace.access.guard import Guard
from podrace.access.principal import ALL_ROLES, Principal
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.limits.config import Allowed
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.processes import user_ids
from podrace.rpc import Server, ServerConfig, Service
from podrace.specification.resolve import parse, resolve
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

UIDS = ProcessOptions(user_code_uid=61_300, user_code_uids=20)
READABLE = all(folder.stat().st_mode & 0o001 for folder in Path(os.__file__).parents)
"""Whether other users can read the folder of Python."""
ALLOWED = Allowed(modules=("spying",), variables=("SPY_*",))


class HoldersOfTheToken:
    """Lets callers in that present the token of the pod."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        return Principal("pod", ALL_ROLES) if credentials.token == self._token else None


@dataclass
class OneToken:
    """Gives every pod the same token; in place of podrace.access.tokens.PodTokens."""

    token: str

    def first(self, pod_id: str, tournament_id: str, lifetime_seconds: float) -> str:
        return self.token


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, directly under /tmp, because Linux limits socket paths to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name:
        path = Path(name)
        path.chmod(0o755)
        (path / "m").mkdir(mode=0o700)
        (path / "report").touch()
        (path / "report").chmod(0o666)
        yield path


@pytest.fixture
def token(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The token of the pod; the store has another secret."""
    monkeypatch.setenv("PODRACE_STORE_SECRET_KEY", f"secret-{secrets.token_hex(16)}")
    monkeypatch.setenv("SPY_REPORT", str(folder / "report"))
    monkeypatch.setenv("SPY_STORE", str(folder / "m/store"))
    monkeypatch.setenv("SPY_LEADER", str(folder / "m/r/pods/spied/learner.sock"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)]))
    return f"secret-{secrets.token_hex(16)}"


@pytest.fixture
async def orchestrator(folder: Path, token: str) -> AsyncIterator[ScriptedOrchestrator]:
    """An orchestrator and a leaderboard that only holders of the token may call."""
    scripted, leaderboard = ScriptedOrchestrator(), ScriptedLeaderboard(f"folder://{folder}/m/store")
    descriptors = pb.DESCRIPTOR.services_by_name, leaderboard_pb2.DESCRIPTOR.services_by_name
    services = {
        "o": Service(
            descriptors[0]["OrchestratorService"], pb_grpc.add_OrchestratorServiceServicer_to_server, scripted
        ),
        "l": Service(
            descriptors[1]["UpdaterService"], leaderboard_pb2_grpc.add_UpdaterServiceServicer_to_server, leaderboard
        ),
    }
    guard = Guard([HoldersOfTheToken(token)])
    servers = [
        await Server.start(ServerConfig(listen=f"unix:{folder}/m/{name}.sock", grace_seconds=0), [each], guard=guard)
        for name, each in services.items()
    ]
    yield scripted
    for server in servers:
        await server.drain()


@pytest.fixture
async def launcher(folder: Path, token: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ProcessLauncher]:
    """A launcher of pods that may import the environment."""
    # The machine may be busy, and the fork server imports torch.
    monkeypatch.setattr("orchestrator.launchers.process.forkserver_client.APPEAR_SECONDS", 300.0)
    (folder / "m/logs").mkdir()
    (folder / "m/r").mkdir(mode=0o700)
    pod_environment = PodEnvironment(
        orchestrator=f"unix:{folder}/m/o.sock",
        leaderboard=f"unix:{folder}/m/l.sock",
        store=f"folder://{folder}/m/store",
        runtime_folder=folder / "m/r",
        log_folder=folder / "m/logs",
        lifeline="",
        orphan_seconds=300.0,
        telemetry=TelemetryConfig(metrics_listen="", log_level="info"),
        pod_tokens=OneToken(token),  # type: ignore[arg-type]
        allow=ALLOWED,
    )
    async with ProcessLauncher(pod_environment, lambda: None, gpus=LocalGpus(environ={}), options=UIDS) as launcher:
        yield launcher


async def run_pod(launcher: ProcessLauncher, folder: Path, spec: TournamentSpec) -> None:
    """Runs a pod until it has exited and nothing is left of it."""
    await launcher.start(NewPod("spied", "t", spec.pod, user_code=True))
    assert [pod.pod_id for pod in await launcher.list()] == ["spied"]
    try:
        async with asyncio.timeout(300.0):
            while await launcher.list() or (folder / "m/r/pods/spied").exists():
                await asyncio.sleep(0.05)
    finally:
        await launcher.stop("spied", kill=True)


def assignment(spec: TournamentSpec) -> pb.Assignment:
    agent = leaderboard_pb2.Agent(agent_id="t-a0", tournament_id="t", algorithm="ppo", seed=7)
    for name, searched in spec.algorithms["ppo"].hyperparameters.items():
        agent.hyperparameters.fields[name].CopyFrom(searched.value)
    return pb.Assignment(
        assignment_id="t-a0.1", tournament_id="t", spec=spec, lease_epoch=1, lease_duration=Duration(seconds=60),
        train=agent,
    )  # fmt: skip


def spying_spec(layout: str) -> TournamentSpec:
    hyperparameters = {"horizon": 16, "minibatch_size": 32, "hidden_sizes": [8]}
    values: dict[str, Any] = {
        "environment": {"id": "python:spying:make", "count": 2},
        "algorithms": {"ppo": {"hyperparameters": hyperparameters}},
        "objective": {"environment_steps": 10**9},
        "assignment": {"environment_steps": 128},
        "evaluation": {"episodes": 2, "evaluator": "python:spying:score"},
        "pod": {"layout": layout, "cores": 1},
    }
    return resolve(parse(values, source="test"))


@pytest.mark.skipif(not user_ids.may_change((61_300, 61_319)), reason="only root may run processes as other users")
async def test_user_code_finds_no_secret_and_reaches_no_other_process(
    folder: Path, launcher: ProcessLauncher, orchestrator: ScriptedOrchestrator
) -> None:
    for layout in ("fused", "separate"):
        spec = spying_spec(layout)
        orchestrator.assignments.append(assignment(spec))
        await run_pod(launcher, folder, spec)
        log = (folder / "m/logs/spied.log").read_text()
        assert orchestrator.completed.pop().outcome == pb.OUTCOME_FINISHED, log
        reports = [json.loads(line) for line in (folder / "report").read_text().splitlines()]
        (folder / "report").write_text("")
        # The process of the evaluator imports more of Python after it has become another user.
        required = {"environment", "evaluator"} if READABLE else {"environment"}
        assert required <= {each["part"] for each in reports}, log
        for found in reports:
            check(found)
            assert found["uid"] not in user_ids.in_use()
        assert not (launcher._user_ids._folder / "spied").exists()


def check(found: dict[str, Any]) -> None:
    assert 61_300 <= found["uid"] < 61_320
    assert found["groups"] == []
    for place in ("environ", "memory", "files", "store", "leader", "root"):
        assert not found[place], (place, found)
    # The leader and the fork server at least. A process of the same pod with user code is within reach.
    within_reach = set(found["signals"])
    assert len(within_reach) <= found["others"] - 2, found
    assert set(found["environ of others"]) | set(found["memory of others"]) <= within_reach
