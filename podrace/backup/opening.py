"""Opens the database of a service, and answers health checks meanwhile. With PostgreSQL, one of the replicas leads."""

import os
import socket
from collections.abc import Callable

import prometheus_client
import structlog

from podrace import rpc
from podrace.backup.config import BackupConfig
from podrace.backup.database import BackedUpDatabase, OpenStore
from podrace.database import DatabaseLocation, Format

LEADS = prometheus_client.Gauge(
    "podrace_replica_leads", "Whether this replica of a service leads (1) or waits until it can take over (0)"
)
_log = structlog.get_logger(__name__)


class _Standby:
    """Logs which replica leads, each time that it is another one."""

    def __init__(self) -> None:
        self._leader: str | None = None

    def __call__(self, leader: str) -> None:
        if leader != self._leader:
            _log.info("waiting as a standby replica", leader=leader)
        self._leader = leader


async def open_when_leading(
    location: DatabaseLocation,
    format: Format,
    clock: Callable[[], float],
    config: BackupConfig,
    store: str,
    server: rpc.ServerConfig,
    *,
    granted: OpenStore | None = None,
) -> BackedUpDatabase:
    """Opens the database as soon as this replica leads; answers health checks at `health_listen` until then.

    Waits also while the server of the database cannot be used.

    Args:
        location: Where the database is. For a file there is one replica, which leads at once.
        format: Its format.
        clock: Returns wall time, seconds since 1970.
        config: When backups are made.
        store: URI of the checkpoint store.
        server: Addresses of the service.
        granted: As BackedUpDatabase.open.

    Raises:
        PodraceError: The database cannot be opened, for a reason that waiting does not solve.
    """
    LEADS.set(0)
    # A file may be restored, migrated and checked first, which takes long if it is large.
    async with rpc.standby_health(server, ready=location.file is None):
        opened = await BackedUpDatabase.open(
            *(location, format, clock, config, store), address=_own_name(), on_standby=_Standby(), granted=granted
        )
    LEADS.set(1)
    return opened


def _own_name() -> str:
    """Returns a name of this process for the logs of other replicas."""
    return f"{socket.gethostname()}/{os.getpid()}"
