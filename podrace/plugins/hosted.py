"""Connects to a function that a plugin host runs (podrace.plugins.host), instead of starting a child process itself.

    plugin = NamedPlugin("python:mine:propose", "generator")
    connection = HostedConnection("unix:/run/podrace/plugins/host/host.sock", plugin)

It is a PluginConnection of podrace.plugins.child. The process of the function belongs to the host, which starts it with
the first call and kills it if it does not answer in time.
"""

import grpc.aio

from podrace import rpc
from podrace.access.sending import MetadataChannel
from podrace.errors import FailedPrecondition, PodraceError, Unavailable
from podrace.ownership import check_socket
from podrace.plugins.child import describe_failure
from podrace.plugins.host import PLUGIN_KEY, NamedPlugin


class HostedConnection:
    """A connection to one function of a plugin host.

    Attributes:
        plugin: The function; a change takes effect with the next call.
    """

    def __init__(self, host: str, plugin: NamedPlugin, *, owner: int | None = None) -> None:
        """Connects to nothing yet.

        Args:
            host: Address of the host, `unix:/path`.
            plugin: The function.
            owner: User who must own the socket of the host; None: the user of this process.
        """
        self.plugin = plugin
        self._host, self._owner = host, owner
        self._channel: grpc.aio.Channel | None = None

    def start(self) -> None:
        """As PluginConnection; the host starts the process with the first call."""

    async def ready(self, seconds: float) -> grpc.aio.Channel:
        """As PluginConnection. The process of the function may still have to be started by the call that follows."""
        try:
            if self._channel is None:
                channel = rpc.connect(self._host, owner=self._owner)
                self._channel = MetadataChannel(channel, lambda: ((PLUGIN_KEY, self.plugin.encode()),))
            await rpc.wait_until_ready(self._channel, seconds)
            # The socket may not have existed before.
            check_socket(self._host, self._owner)
        except Unavailable:
            raise Unavailable(
                f"no plugin host serves at {self._host} (waited {seconds:.1f} s); start it, or name a service"
                " (grpc://) instead of a function"
            ) from None
        except FailedPrecondition as error:
            await self.close()
            raise FailedPrecondition(f"plugin host: {error.message}") from None
        return self._channel

    async def failed(self, error: PodraceError) -> str:
        """As PluginConnection; the host has killed a process that cannot be used any more."""
        return describe_failure(error)

    async def close(self) -> None:
        """Closes the channel; the host kills the process when it has been idle for a while."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
