"""The overlay `local` on the cluster of KUBECONFIG, which the tests of several files share."""

import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import container_spy
import pytest
from k8s_mesh import (
    ADDRESSES,
    KUBECTL,
    Mesh,
    build_images,
    deployed,
    make_certificates,
    make_data,
    until,
    write_overlay,
)

from podrace import rpc, tls
from podrace.errors import PodraceError
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc

ADDRESS = ADDRESSES["orchestrator"]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of certificates; calls of the tests present that of the operator."""
    folder = tmp_path_factory.mktemp("tls") / "certs"
    make_certificates(folder, {name: ADDRESSES[name] for name in ("orchestrator", "leaderboard", "policy-server")})
    with pytest.MonkeyPatch.context() as patched:
        for name, file in ((tls.CERTIFICATE, "tls.crt"), (tls.KEY, "tls.key"), (tls.AUTHORITY, "ca.crt")):
            patched.setenv(name, str(folder / "operator/operator" / file))
        yield folder


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the node: databases, and what user code of the tests reports."""
    folder = tmp_path_factory.mktemp("data")
    make_data(folder)
    return folder


@pytest.fixture(scope="session")
def cluster() -> None:
    """Skips the test if there is no cluster with images of this engine; builds the images."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("no cluster: set KUBECONFIG")
    if subprocess.run([KUBECTL, "get", "--raw", "/readyz"], capture_output=True).returncode:
        pytest.skip("the cluster of KUBECONFIG does not answer")
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("no Docker Engine answers: set DOCKER_HOST to the one of the cluster's nodes")
    build_images()


@pytest.fixture(scope="session")
def namespace(tmp_path_factory: pytest.TempPathFactory, cluster: None, certificates: Path, data: Path) -> Iterator[str]:
    name = f"podrace-test-{os.getpid()}"
    folder = tmp_path_factory.mktemp("k8s")
    write_overlay(folder, name, data, container_spy.FILES)
    with deployed(name, folder, certificates):
        if socket.socket().connect_ex((ADDRESS, 50051)):
            pytest.skip(f"service addresses of the cluster ({ADDRESS}) cannot be reached from here")
        yield name


@pytest.fixture
async def mesh(namespace: str, data: Path) -> AsyncIterator[Mesh]:
    channel = rpc.connect(f"{ADDRESS}:50051", pb.DESCRIPTOR)
    made = Mesh(namespace, pb_grpc.OrchestratorServiceStub(channel), data / "reports")
    try:
        yield made
    finally:
        await until(made.cancel_all, "the orchestrator to answer")
        # pytest shows them if the test fails. A tournament that the test deleted has none.
        with suppress(PodraceError):
            await made.print_events()
        await until(lambda: not made.names("jobs", "podrace/scope=podrace"), "the Jobs to be gone")
        await channel.close()
