"""Runs a PostgreSQL server for tests: the package of Debian, as an unprivileged user, on a Unix socket alone."""

import os
import shutil
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

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def url(self, database: str) -> str:
        """Returns the URL of a database."""
        return f"postgresql://podrace@/{database}?host={self._folder}"

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
def running_server() -> Iterator[PostgresqlServer]:
    """Runs a server with an empty cluster while the block runs."""
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
        control = [found / "pg_ctl", "-D", data, "-w", "-l", folder / "log"]
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off -c shared_buffers=16MB"
        subprocess.run([*control, "-o", options, "start"], check=True, cwd=folder, **quiet)
        try:
            yield PostgresqlServer(folder)
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, cwd=folder, **quiet)
