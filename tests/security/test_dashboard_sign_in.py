"""A dashboard as a service, with real services: persons act in it with their own rights and under their own names.

Before, everyone who could open the dashboard acted as its operator certificate.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import aiohttp
import json_schemas
import pytest
from test_one_machine import SECONDS, Machine, machine, serve
from test_several_machines import Network, become, network

from podrace import rpc
from podrace.access.mesh_key import MeshKey
from podrace.access.principal import ROLES_BY_NAME
from podrace.access.tokens import claims_of

__all__ = ["become", "machine", "network"]
FOREVER = 4_000_000_000.0
SPECIFICATION = """name = "x"
[environment]
id = "cartpole"
[algorithms.ppo]
[objective]
environment_steps = 4000
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def dashboard(stack: ExitStack, orchestrator: str, *options: str, **environ: str) -> str:
    """Starts the command; returns its URL."""
    command = [sys.executable, "-m", "podrace.cli", "dashboard", "--sign-in", "--listen", "127.0.0.1:0", "--json"]
    command += ["--orchestrator", orchestrator, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environ})
    stack.callback(process.communicate)
    stack.callback(process.terminate)
    assert process.stdout is not None
    printed = json.loads(process.stdout.readline())
    json_schemas.check(["dashboard"], printed)
    url: str = printed["url"]
    return url.rstrip("/")


def token(key: MeshKey, name: str, role: str) -> str:
    return key.sign(claims_of(name, {ROLES_BY_NAME[role]}, expire_time=FOREVER))


class Person:
    """A browser of a person."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url, self._session, self._change = url, session, ""

    async def sign_in(self, token: str) -> int:
        status, _ = await self.post("sign-in", {"token": token})
        if status == 200:
            self._change = (await self.get("session"))[1]["change"]
        return status

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._session.get(f"{self._url}/api/{path}") as response:
            return response.status, await response.json()

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        headers = {"Origin": self._url, "X-Podrace-Change": self._change}
        async with self._session.post(f"{self._url}/api/{path}", json=body, headers=headers) as response:
            return response.status, await response.json()


def browser(**options: Any) -> aiohttp.ClientSession:
    jar = aiohttp.CookieJar(unsafe=True)
    return aiohttp.ClientSession(cookie_jar=jar, **options)


async def test_persons_of_one_gateway_have_their_own_rights_and_the_audit_log_names_them(
    machine: Machine, stack: ExitStack
) -> None:
    await serve(machine, "external")
    url = dashboard(stack, machine.orchestrator)
    async with browser() as first, browser() as second, browser() as third:
        alice, eve, viewer = (Person(url, each) for each in (first, second, third))
        assert await alice.sign_in(token(machine.key, "alice", "user")) == 200
        assert await eve.sign_in(token(machine.key, "eve", "user")) == 200
        assert await viewer.sign_in(token(machine.key, "victor", "viewer")) == 200
        status, created = await alice.post("tournaments", {"specification": SPECIFICATION, "request_id": "one"})
        assert status == 200, created
        assert created["owner"] == "alice"
        name = created["tournament_id"]
        assert (await alice.get(f"tournaments/{name}/board"))[0] == 200
        for other in (eve, viewer):
            assert (await other.get("tournaments"))[1]["total"] == 0
            assert (await other.get(f"tournaments/{name}/board"))[0] == 404
            status, refusal = await other.post(f"tournaments/{name}/stop", {})
            assert status in (403, 404), refusal
        status, _ = await viewer.post("tournaments", {"specification": SPECIFICATION, "request_id": "two"})
        assert status == 403
        assert (await alice.post(f"tournaments/{name}/stop", {}))[0] == 200
        # The gateway runs as the user of the services, whose token makes everyone an operator on this machine.
        assert await eve.sign_in("guessed") == 403

    kept = [
        (record["principal"], record["method"].rpartition("/")[2], record["allowed"])
        for record in machine.audited("orchestrator")
    ]
    assert ("alice", "CreateTournament", True) in kept
    assert ("alice", "CancelTournament", True) in kept
    assert ("victor", "CreateTournament", False) in kept
    assert "operator" not in {principal for principal, _, _ in kept}, "nothing was done with the rights of the gateway"
    text = "".join(path.read_text(errors="replace") for path in machine.folder.rglob("*.log"))
    text += json.dumps(machine.audited("orchestrator"))
    for who, role in (("alice", "user"), ("eve", "user"), ("victor", "viewer")):
        assert token(machine.key, who, role) not in text


async def test_over_tls_the_certificate_of_the_gateway_only_lets_it_connect(
    network: Network, become: Callable[[str], None], stack: ExitStack
) -> None:
    network.serve()
    become("viewer/dashboard")
    await rpc.wait_until_serving(network.address("orchestrator"), deadline_seconds=SECONDS)
    key = MeshKey.load_or_make(network.certificates.path / "orchestrator/mesh.key")
    files = network.environment("viewer/dashboard")
    certificate, private = files["PODRACE_TLS_CERTIFICATE_FILE"], files["PODRACE_TLS_KEY_FILE"]
    options = ("--tls-certificate", certificate, "--tls-key", private)
    url = dashboard(stack, network.address("orchestrator"), *options, **files)
    assert url.startswith("https://")
    async with browser(connector=aiohttp.TCPConnector(ssl=False)) as session:
        alice = Person(url, session)
        assert await alice.sign_in("guessed") == 403
        assert (await alice.get("tournaments"))[0] == 401
        assert await alice.sign_in(token(key, "alice", "user")) == 200
        (cookie,) = session.cookie_jar
        assert cookie.key.startswith("__Host-")
        assert cookie["secure"]
        status, created = await alice.post("tournaments", {"specification": SPECIFICATION, "request_id": "one"})
        assert status == 200, created
        assert created["owner"] == "alice"
        assert (await alice.get(f"tournaments/{created['tournament_id']}/board"))[0] == 200
        assert (await alice.post(f"tournaments/{created['tournament_id']}/stop", {}))[0] == 200
