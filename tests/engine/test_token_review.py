"""Callers with tokens of Kubernetes, at an orchestrator that asks a real API server who their holders are.

Needs KUBECONFIG with administrator rights. The orchestrator is a process of this machine with the rights of its service
account, which are those of the component `token-review`. Run by `make test-k8s`.
"""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from k8s_mesh import KUBECTL, REPOSITORY
from test_one_machine import SECONDS, free_port, spec
from test_several_machines import Network

from podrace import rpc
from podrace.errors import NotFound, PermissionDenied, Unauthenticated, Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
ACCESS = REPOSITORY / "deploy/k8s/components/token-review/access.yaml"
AUDIENCE = "podrace"


def kubectl(*arguments: str, stdin: str = "", check: bool = True) -> str:
    done = subprocess.run([KUBECTL, *arguments], capture_output=True, text=True, input=stdin, timeout=120)
    assert done.returncode == 0 or not check, f"kubectl {' '.join(arguments)}: {done.stderr[-2000:]}"
    return done.stdout


@dataclass
class Cluster:
    """Namespaces of this test on a cluster, with service accounts."""

    name: str

    def namespace(self, name: str) -> str:
        return f"{self.name}-{name}"

    def user(self, namespace: str, account: str) -> str:
        return f"system:serviceaccount:{self.namespace(namespace)}:{account}"

    def token(self, namespace: str, account: str, audience: str = AUDIENCE) -> str:
        options = ("--audience", audience) if audience else ()
        return kubectl("-n", self.namespace(namespace), "create", "token", account, *options).strip()

    def add(self, namespace: str, account: str) -> None:
        kubectl("-n", self.namespace(namespace), "create", "serviceaccount", account)

    def binding(self) -> tuple[str, str]:
        """The rights that the component gives, for the service account of this test's namespace; and their names."""
        made = list(yaml.safe_load_all(ACCESS.read_text()))
        for each in made:
            each["metadata"]["name"] = self.name
        made[1]["roleRef"]["name"] = self.name
        for subject in made[1]["subjects"]:
            subject["namespace"] = self.namespace("mesh")
        return yaml.safe_dump_all(made), self.name


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("no cluster: set KUBECONFIG")
    if subprocess.run([KUBECTL, "get", "--raw", "/readyz"], capture_output=True).returncode:
        pytest.skip("the cluster of KUBECONFIG does not answer")
    made = Cluster(f"podrace-review-{os.getpid()}")
    namespaces = [made.namespace(name) for name in ("mesh", "team-a", "team-b")]
    rights, name = made.binding()
    try:
        for namespace in namespaces:
            kubectl("create", "namespace", namespace)
        made.add("mesh", "podrace-orchestrator")
        for account in ("trainer", "auditor"):
            made.add("team-a", account)
        made.add("team-b", "trainer")
        kubectl("apply", "-f", "-", stdin=rights)
        yield made
    finally:
        kubectl("delete", "namespace", "--wait=false", *namespaces, check=False)
        kubectl("delete", "clusterrolebinding,clusterrole", name, check=False)


def kubeconfig(cluster: Cluster, folder: Path) -> Path:
    """Writes a configuration with the token of the orchestrator's service account."""
    config = yaml.safe_load(kubectl("config", "view", "--raw", "--minify"))
    config["users"][0]["user"] = {"token": cluster.token("mesh", "podrace-orchestrator", audience="")}
    path = folder / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config))
    return path


@dataclass
class Mesh:
    """An orchestrator that asks the API server about tokens of its callers."""

    cluster: Cluster
    address: str

    async def call(self, token: str, method: str, **fields: Any) -> Any:
        async with rpc.connect(self.address, token=lambda: token) as channel:
            stub = pb_grpc.OrchestratorServiceStub(channel)
            request = getattr(pb, f"{method}Request")(**fields)
            return await rpc.call(getattr(stub, method), request, deadline_seconds=20.0)

    async def create(self, token: str, request_id: str) -> str:
        created = await self.call(token, "CreateTournament", request_id=request_id, spec=spec())
        return str(created.tournament.tournament_id)


@pytest.fixture(scope="module")
def running(cluster: Cluster) -> Iterator[Network]:
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name, ExitStack() as stack:
        network = Network(Path(name), stack)
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("KUBECONFIG", str(kubeconfig(cluster, Path(name))))
            network.tokens = f"127.0.0.1:{free_port()}"
            network.serve(
                server__token_listen=network.tokens,
                access__kubernetes__audience=AUDIENCE,
                access__kubernetes__roles=",".join(
                    (
                        f"{cluster.user('team-a', 'trainer')}=user",
                        f"{cluster.user('team-b', 'trainer')}=user",
                        f"group:system:serviceaccounts:{cluster.namespace('team-a')}=viewer",
                    )
                ),
            )
        yield network


@pytest.fixture
async def mesh(cluster: Cluster, running: Network, become: Callable[[str], None]) -> Mesh:
    become("operator/operator")
    await rpc.wait_until_serving(running.address("orchestrator"), deadline_seconds=SECONDS)
    # From here on, callers have no certificate: the API server says who they are.
    become("")
    return Mesh(cluster, running.tokens)


@pytest.fixture
def become(running: Network, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def chosen(path: str) -> None:
        for name, file in running.environment(path or "operator/operator").items():
            shown = path or name.endswith(("AUTHORITY_FILE", "REVOCATION_FILE"))
            monkeypatch.setenv(name, file if shown else "")

    return chosen


async def test_a_service_account_is_the_owner_of_its_tournaments_in_its_namespace(mesh: Mesh) -> None:
    token = mesh.cluster.token("team-a", "trainer")
    tournament_id = await mesh.create(token, "first")
    found = (await mesh.call(token, "GetTournament", tournament_id=tournament_id)).tournament
    assert (found.owner, found.namespace) == (
        mesh.cluster.user("team-a", "trainer"),
        mesh.cluster.namespace("team-a"),
    )
    # The group of its namespace may read it, and not change it; another namespace finds nothing.
    auditor, outsider = mesh.cluster.token("team-a", "auditor"), mesh.cluster.token("team-b", "trainer")
    assert (await mesh.call(auditor, "GetTournament", tournament_id=tournament_id)).tournament == found
    with pytest.raises(PermissionDenied):
        await mesh.call(auditor, "CancelTournament", request_id="c", tournament_id=tournament_id)
    with pytest.raises(NotFound):
        await mesh.call(outsider, "CancelTournament", request_id="c", tournament_id=tournament_id)
    assert not (await mesh.call(outsider, "ListTournaments", page_size=10)).tournaments


async def test_tokens_for_others_and_of_accounts_without_a_role_are_refused(mesh: Mesh) -> None:
    own = mesh.cluster.token("team-a", "trainer")
    refused = [
        ("presented no token", ""),
        # Not even sent to the API server, which would accept them.
        ("a token that is not known here", mesh.cluster.token("team-a", "trainer", audience="elsewhere")),
        ("a token that is not known here", mesh.cluster.token("team-a", "trainer", audience="")),
        ("is not accepted by the Kubernetes API server", f"{own[:-8]}AAAAAAAA"),
        ("has no role here", mesh.cluster.token("mesh", "podrace-orchestrator")),
    ]
    for message, token in refused:
        with pytest.raises(Unauthenticated, match=message):
            await mesh.call(token, "ListTournaments", page_size=10)


async def test_the_token_of_a_deleted_service_account_is_refused(mesh: Mesh) -> None:
    mesh.cluster.add("team-a", "leaver")
    token = mesh.cluster.token("team-a", "leaver")
    kubectl("-n", mesh.cluster.namespace("team-a"), "delete", "serviceaccount", "leaver")
    with pytest.raises(Unauthenticated, match="is not accepted by the Kubernetes API server"):
        await mesh.call(token, "ListTournaments", page_size=10)


def test_the_component_gives_the_right_to_review_tokens_and_no_other(cluster: Cluster) -> None:
    who = f"--as={cluster.user('mesh', 'podrace-orchestrator')}"
    answers = {
        what: kubectl("auth", "can-i", *what.split(), who, check=False).strip()
        for what in (
            "create tokenreviews",
            "get tokenreviews",
            "create subjectaccessreviews",
            "get secrets",
            "list pods",
        )
    }
    assert answers == dict.fromkeys(answers, "no") | {"create tokenreviews": "yes"}


async def until_reviews_are_refused(cluster: Cluster) -> None:
    """Waits until the API server, which caches rights, has noticed that the binding is gone."""
    who = f"--as={cluster.user('mesh', 'podrace-orchestrator')}"
    async with asyncio.timeout(30.0):
        while kubectl("auth", "can-i", "create", "tokenreviews", who, check=False).strip() != "no":
            await asyncio.sleep(0.1)


async def test_without_that_right_a_caller_learns_what_is_missing(mesh: Mesh) -> None:
    # Two tokens of one account that are made within a second are equal, so the orchestrator may know it already.
    mesh.cluster.add("team-b", "applicant")
    token = mesh.cluster.token("team-b", "applicant")
    rights, name = mesh.cluster.binding()
    kubectl("delete", "clusterrolebinding", name)
    try:
        await until_reviews_are_refused(mesh.cluster)
        with pytest.raises(Unavailable, match="needs the right to create tokenreviews"):
            await mesh.call(token, "ListTournaments", page_size=10)
    finally:
        kubectl("apply", "-f", "-", stdin=rights)
