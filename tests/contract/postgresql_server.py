"""Runs a PostgreSQL server for tests: the package of Debian, as an unprivileged user, on a Unix socket alone."""

import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MISSING = "PostgreSQL is not installed: apt-get install -y postgresql"
UNPRIVILEGED = 65534
"""Id of a user without rights: the server refuses to run as root."""


def programs() -> Path | None:
    """Returns the folder of the newest installed version; None if there is none."""
    found = shutil.which("initdb")
    installed = [*Path("/usr/lib/postgresql").glob("*/bin/initdb"), *([Path(found)] if found else [])]
    return max(installed, key=lambda path: path.parts[-3]).parent if installed else None


class PostgresqlServer:
    """A running server."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self.port = folder, port

    def url(self, database: str) -> str:
        """Returns the URL of a database."""
        return f"postgresql://podrace@/{database}?host={self._folder}&port={self.port}"

    def new_url(self) -> str:
        """Creates a database and returns its URL."""
        name = f"t{uuid.uuid4().hex[:12]}"
        self.execute(self.url("postgres"), f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, url: str, statement: str) -> list[tuple[Any, ...]]:
        """Executes a statement and returns its rows."""
        import psycopg  # not installed everywhere

        with psycopg.connect(url, autocommit=True) as link:
            cursor = link.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@contextmanager
def running_server(listen: str = "") -> Iterator[PostgresqlServer]:
    """Runs a server with an empty cluster while the block runs.

    Args:
        listen: Address on which it listens as well, on a free port; empty: on its socket alone.
    """
    found = programs()
    assert found, MISSING
    user: dict[str, Any] = {"user": UNPRIVILEGED, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="podrace-pg-") as name:
        folder = Path(name)
        if user:
            os.chown(folder, UNPRIVILEGED, -1)
        data = folder / "data"
        initialize = [found / "initdb", "-D", data, "-U", "podrace", "--auth=trust", "--no-sync", "-E", "UTF8"]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **user}
        subprocess.run([*initialize, "--locale=C.UTF-8"], check=True, cwd=folder, **quiet)
        port = _free_port() if listen else 5432
        control = [found / "pg_ctl", "-D", data, "-w", "-l", folder / "log"]
        options = f"-c listen_addresses={listen} -c port={port} -c unix_socket_directories={folder}"
        options += " -c fsync=off -c shared_buffers=16MB"
        subprocess.run([*control, "-o", options, "start"], check=True, cwd=folder, **quiet)
        try:
            yield PostgresqlServer(folder, port)
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, cwd=folder, **quiet)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
