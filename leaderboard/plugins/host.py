"""Runs plugin functions for a leaderboard that cannot change user ids: `python -m leaderboard.plugins.host`.

A separate container runs this program, as another user and without keys, databases and certificates. The leaderboard
finds it by `plugins.host`. Only its group may call: the container has the group id of the leaderboard.
"""

import itertools
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from leaderboard.plugins.function_process import function_connection
from leaderboard.plugins.runtime_folder import RuntimeFolder
from podrace import service, telemetry
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.evolution.v1 import evolution_pb2 as pb
from podrace.limits.config import Allowed
from podrace.limits.names import plugin_problem
from podrace.ownership import make_own_folder
from podrace.plugins.address import PythonFunction, parse
from podrace.plugins.child import ChildConnection
from podrace.plugins.host import NamedPlugin, PluginHost, hosted_service
from podrace.processes import lifeline
from podrace.rpc import Server, ServerConfig, shutdown_requested
from podrace.telemetry import TelemetryConfig

GROUP_ENTERS, GROUP_CALLS = 0o710, 0o660
"""Modes of the folder and of the socket."""
KINDS = ("generator", "updater")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class HostConfig:
    """The configuration of a plugin host."""

    socket: Path = Path("/run/podrace/plugins/host/host.sock")
    """Socket of the plugin host, in a folder that this program makes. `plugins.host` of the leaderboard has its
    address."""
    memory_bytes: int = 4 << 30
    """Data memory of each process that runs a function; 0: no limit."""
    runtime_folder: Path = Path(tempfile.gettempdir()) / "podrace-plugins"
    """Folder of the sockets of these processes."""
    allow: Allowed = field(default_factory=Allowed)
    """Which functions may run, whatever the leaderboard allows."""
    telemetry: TelemetryConfig = field(default_factory=lambda: TelemetryConfig(metrics_listen=""))
    """Logs."""
    lifeline: str = ""
    """The program stops when the holder of this lifeline is gone; empty: it is not watched."""


class _Functions:
    """Makes the connections to the processes of functions."""

    def __init__(self, config: HostConfig, folder: RuntimeFolder) -> None:
        self._config, self._folder, self._numbers = config, folder, itertools.count(1)

    def __call__(self, plugin: NamedPlugin) -> ChildConnection:
        """Returns the connection to a function that is allowed here; raises InvalidArgument otherwise."""
        if problem := plugin_problem(plugin.address, self._config.allow):
            raise InvalidArgument(f"plugin host: {problem}")
        if plugin.kind not in KINDS or not isinstance(parse(plugin.address), PythonFunction):
            raise InvalidArgument(f"plugin host: {plugin.kind} {plugin.address!r}: expected a function of a generator")
        held = self._folder.hold_lifeline()
        return function_connection(
            plugin.address,
            plugin.kind,
            memory_bytes=self._config.memory_bytes,
            lifeline=held,
            socket_prefix=held.with_name(f"{held.stem}-{plugin.kind}-{next(self._numbers)}"),
            allowed=self._config.allow,
        )


async def serve(config: HostConfig) -> None:
    """Serves until a signal arrives or the lifeline is lost.

    Raises:
        PodraceError: The program cannot start.
    """
    telemetry.start(config.telemetry, service="plugin-host")
    _make_folder(config.socket.parent)
    folder = RuntimeFolder(config.runtime_folder)
    host = PluginHost(_Functions(config, folder))
    settings = ServerConfig(listen=f"unix:{config.socket}", grace_seconds=0.0)
    server = await Server.start(settings, [hosted_service(pb.DESCRIPTOR.services_by_name["EvolutionService"], host)])
    # From here on the group may call.
    config.socket.chmod(GROUP_CALLS)
    config.socket.parent.chmod(GROUP_ENTERS)
    _log.info("plugin host serves", address=server.address, user=os.geteuid(), group=os.getegid())
    reason = await shutdown_requested(*([lifeline.lost(config.lifeline)] if config.lifeline else []))
    _log.info("plugin host stops", reason=reason)
    await server.drain()
    await host.close()
    folder.release()


def _make_folder(folder: Path) -> None:
    """Makes the folder of the socket, which only this user may enter at first.

    Raises:
        FailedPrecondition: It belongs to another user, or cannot be made.
    """
    make_own_folder(folder, "choose another folder", key="socket", mode=0o700)
    try:
        # A previous run may have given the group access.
        folder.chmod(0o700)
    except OSError as error:
        raise FailedPrecondition(f"socket: {folder}: {error.strerror}; choose another folder") from None


if __name__ == "__main__":
    sys.exit(service.run("plugin-host", HostConfig, serve, sys.argv[1:]))
