"""Standing services on one machine: they make the token and the key, and only their own user gets in.

Before, each of these calls was answered for every caller: the ports of standing services were open to every user of the
machine, and a pod could create and cancel tournaments.
"""

import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from podrace import rpc
from podrace.access.mesh_key import MeshKey
from podrace.access.token_file import listener_owners, operator_token
from podrace.access.tokens import claims_of, pod_token
from podrace.access.v1 import access_pb2
from podrace.client import Client
from podrace.errors import NotFound, PermissionDenied, PodraceError, Unauthenticated
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as board_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1 import tournament_pb2

SECONDS = 60.0
FOREVER = 4_000_000_000.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Machine:
    """A folder with standing services, as the documentation starts them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.orchestrator, self.leaderboard = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.token_file = folder / "access" / "token"

    def start(self, program: str, **settings: Any) -> "subprocess.Popen[bytes]":
        common = {"store": f"folder://{self.folder}/store", "access__audit_log": self.folder / f"{program}.audit"}
        pairs = [f"{key.replace('__', '.')}={value}" for key, value in (common | settings).items()]
        arguments = [argument for pair in pairs for argument in ("--set", pair)]
        environment = os.environ | {"PODRACE_TOKEN_FILE": str(self.token_file)}
        log = self._stack.enter_context((self.folder / f"{program}.log").open("wb"))
        process = subprocess.Popen([sys.executable, "-m", program, *arguments], stderr=log, env=environment)
        self._stack.callback(process.wait, SECONDS)
        self._stack.callback(process.terminate)
        return process

    @property
    def key(self) -> MeshKey:
        return MeshKey.load_or_make(self.token_file.with_name("mesh.key"))

    def audited(self, program: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / f"{program}.audit").read_text().splitlines()]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name, ExitStack() as stack:
        made = Machine(Path(name), stack)
        monkeypatch.setenv("PODRACE_TOKEN_FILE", str(made.token_file))
        yield made


async def serve(machine: Machine, launcher: str) -> None:
    machine.start("leaderboard", server__listen=machine.leaderboard, database=machine.folder / "l.sqlite")
    machine.start(
        "orchestrator",
        server__listen=machine.orchestrator,
        leaderboard=machine.leaderboard,
        database=machine.folder / "o.sqlite",
        runtime_folder=machine.folder / "run",
        log_folder=machine.folder / "logs",
        launcher=launcher,
    )
    for address in (machine.orchestrator, machine.leaderboard):
        await rpc.wait_until_serving(address, deadline_seconds=SECONDS)


def spec() -> tournament_pb2.TournamentSpec:
    values = {
        "environment": {"id": "cartpole", "count": 8},
        "algorithms": {"ppo": {}},
        "objective": {"environment_steps": 4_000},
        "assignment": {"environment_steps": 4_000},
        "evaluation": {"episodes": 2},
        "pool": {"maximum_pods": 1},
    }
    return resolve(parse(values, source="test"))


async def refused(address: str, token: str, method: str, request: Any, kind: type[PodraceError]) -> None:
    """Makes a call that must be refused."""
    async with rpc.connect(address, token=lambda: token) as channel:
        stubs = (
            pb_grpc.OrchestratorServiceStub(channel),
            board_grpc.UpdaterServiceStub(channel),
            board_grpc.GeneratorServiceStub(channel),
        )
        callable_ = next(getattr(stub, method) for stub in stubs if hasattr(stub, method))
        with pytest.raises(kind):
            await rpc.call(callable_, request, deadline_seconds=5.0)


async def test_the_command_works_with_no_new_step_and_other_callers_are_refused(machine: Machine) -> None:
    await serve(machine, "external")
    assert machine.token_file.stat().st_mode & 0o777 == 0o600
    assert machine.token_file.with_name("mesh.key").stat().st_mode & 0o777 == 0o600
    async with Client(machine.orchestrator) as client:
        created = await client.create_tournament(spec())
        assert await client.list_board(created) == []

    request = pb.CreateTournamentRequest(request_id="other", spec=spec())
    own = created.tournament_id
    foreign_pod = pod_token(machine.key, "other-p1", "other", FOREVER)
    expired = machine.key.sign(claims_of("eve", {access_pb2.ROLE_OPERATOR}, expire_time=1.0))
    for token in ("", "guess", expired):
        await refused(machine.orchestrator, token, "CreateTournament", request, Unauthenticated)
    call = functools.partial(refused, machine.orchestrator, foreign_pod)
    await call("CreateTournament", request, PermissionDenied)
    await call("CancelTournament", pb.CancelTournamentRequest(tournament_id=own), PermissionDenied)
    await call("AcquireAssignment", pb.AcquireAssignmentRequest(pod_id=f"{own}-p0"), PermissionDenied)
    complete = pb.CompleteAssignmentRequest(request_id="c", assignment_id=f"{own}-a0.1", lease_epoch=1)
    await call("CompleteAssignment", complete, NotFound)
    call = functools.partial(refused, machine.leaderboard, foreign_pod)
    submit = board_pb.SubmitCandidateRequest(request_id="s", checkpoint={"agent_id": f"{own}-a0"})
    await call("SubmitCandidate", submit, NotFound)
    await call("GenerateAgent", board_pb.GenerateAgentRequest(tournament_id=own), PermissionDenied)

    records = machine.audited("orchestrator")
    kept = [
        (record["principal"], record["method"].rpartition("/")[2], record["resource"], record["allowed"])
        for record in records
    ]
    assert kept[0] == ("operator", "CreateTournament", "", True)
    assert ("pod/other-p1", "CancelTournament", f"tournament/{own}", False) in kept
    assert ("pod/other-p1", "CompleteAssignment", f"assignment/{own}-a0.1", False) in kept
    assert [record["principal"] for record in records if record["method"].endswith("CreateTournament")][1:4] == [""] * 3
    assert all(record["peer"].startswith("ipv4:127.0.0.1:") for record in records)


@pytest.mark.e2e
async def test_pods_get_tokens_of_their_own_and_train(machine: Machine) -> None:
    await serve(machine, "process")
    async with Client(machine.orchestrator) as client:
        created = await client.create_tournament(spec())
        async for update in client.follow(created):
            ended = update.tournament
        assert ended.state == tournament_pb2.TOURNAMENT_STATE_COMPLETED, ended.reason
    callers = {record["principal"] for record in machine.audited("leaderboard") if record["allowed"]}
    assert {"orchestrator", f"pod/{created.tournament_id}-p0"} <= callers
    assert all(record["allowed"] for record in machine.audited("leaderboard"))


@pytest.mark.parametrize("uid", [os.geteuid(), 0])
def test_the_default_token_is_sent_to_a_listener_of_the_own_user_or_of_root(tmp_path, monkeypatch, uid):
    assert read_default_token(tmp_path, monkeypatch, uid) == "secret"


def test_the_default_token_is_not_sent_to_a_listener_of_another_user(tmp_path, monkeypatch):
    # Another user of a shared machine has bound the port first, to collect tokens.
    assert read_default_token(tmp_path, monkeypatch, 65534) == ""


def read_default_token(folder: Path, monkeypatch: pytest.MonkeyPatch, uid: int) -> str:
    (folder / ".config" / "podrace").mkdir(parents=True)
    path = folder / ".config" / "podrace" / "token"
    path.touch(mode=0o600)
    path.write_text("secret\n")
    monkeypatch.setattr(Path, "home", lambda: folder)
    monkeypatch.setattr("podrace.access.token_file.listener_owners", lambda port: frozenset({uid}))
    source = operator_token("127.0.0.1:50051", {})
    assert source is not None
    return source()


def test_the_owner_of_a_listener_is_read_from_the_tables_of_the_kernel():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert listener_owners(port) == {os.geteuid()}
    assert listener_owners(port) == frozenset()


@pytest.mark.parametrize("address", ["192.0.2.1:50051", "orchestrator:50051", "unix:/run/o.sock"])
def test_the_default_token_stays_on_this_machine(address):
    assert operator_token(address, {}) is None
