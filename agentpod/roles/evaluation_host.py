"""Starts the process of an evaluation function: as a child of the leader, or of the process of the evaluator.

Where user code runs apart from the leader, which has the token, the function is a child of the process of the
evaluator: it has the user id, and in a container the container, of the environments that the specification names. The
leader then calls it through that process (podrace.plugins.host).
"""

import itertools
import sys
from typing import Any

from agentpod.config import PodConfig
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import InvalidArgument
from podrace.limits.config import command_settings
from podrace.limits.specification import plugin_refusal
from podrace.plugins.address import PythonFunction, parse
from podrace.plugins.child import ChildConnection
from podrace.plugins.host import NamedPlugin, PluginHost, hosted_service
from podrace.rpc import Server, ServerConfig

KIND = "evaluator"
START_SECONDS = 120.0
"""Time limit of a child process to serve: it imports torch."""


def host_address(config: PodConfig) -> str:
    """Returns the address at which the process of the evaluator serves evaluation functions."""
    return f"unix:{config.code_folder / 'functions.sock'}"


def function_connection(
    config: PodConfig, address: str, device: str = "cpu", socket_name: str = "function"
) -> tuple[ChildConnection, dict[str, Any]]:
    """Returns the connection to a process of a function, which is not started yet, and the settings of its next start.

    Args:
        config: Settings of the pod.
        address: `python:module:function`.
        device: Device that it computes on.
        socket_name: What the names of its sockets begin with; no other connection of the pod uses it.
    """
    settings: dict[str, Any] = {
        "address": address,
        "kind": KIND,
        "threads": config.threads,
        "device": device,
        "telemetry.log_format": config.telemetry.log_format,
        "telemetry.log_level": config.telemetry.log_level,
        **command_settings(config.allow),
    }
    connection = ChildConnection(
        [sys.executable, "-m", "agentpod", "evaluation-function"],
        settings,
        lifeline=config.leader_lifeline,
        socket_prefix=config.code_folder / socket_name,
        start_seconds=START_SECONDS,
        allowed=config.allow,
    )
    return connection, settings


class _Functions:
    """Makes the connections to the processes of functions."""

    def __init__(self, config: PodConfig) -> None:
        self._config, self._numbers = config, itertools.count(1)

    def __call__(self, plugin: NamedPlugin) -> ChildConnection:
        """Returns the connection to a function that is allowed here; raises InvalidArgument otherwise."""
        if problem := plugin_refusal("evaluation.evaluator", plugin.address, self._config.allow):
            raise InvalidArgument(problem)
        if plugin.kind != KIND or not isinstance(parse(plugin.address), PythonFunction):
            raise InvalidArgument(f"{plugin.kind} {plugin.address!r}: expected a function of an evaluator")
        device = self._config.device(KIND) if plugin.on_gpu else "cpu"
        # Short, because the path of a socket is limited; its own, because two functions may run at the same time.
        return function_connection(self._config, plugin.address, device, f"eval-{next(self._numbers)}")[0]


class EvaluationHost:
    """Serves evaluation functions to the leader, from the process of the evaluator.

    host = await EvaluationHost.start(config)
    ...
    await host.close()
    """

    def __init__(self, server: Server, host: PluginHost) -> None:
        self._server, self._host = server, host

    @classmethod
    async def start(cls, config: PodConfig) -> "EvaluationHost":
        """Listens; starts no function before the leader calls it.

        Raises:
            PodraceError: It cannot listen.
        """
        host = PluginHost(_Functions(config))
        service = hosted_service(pb.DESCRIPTOR.services_by_name["EvaluatorService"], host)
        settings = ServerConfig(listen=host_address(config), grace_seconds=0.0)
        return cls(await Server.start(settings, [service]), host)

    async def close(self) -> None:
        """Stops serving and kills the processes of functions."""
        await self._server.drain()
        await self._host.close()
