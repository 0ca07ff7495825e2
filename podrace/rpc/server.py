"""Runs gRPC servers with health checks, optional reflection and graceful shutdown."""

import asyncio
import contextlib
import errno
import functools
import resource
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from podrace import tls
from podrace.access.authenticators.unix_socket import check_folder
from podrace.access.guard import Guard
from podrace.access.interceptor import AccessInterceptor
from podrace.errors import InvalidArgument, PodraceError, Unavailable
from podrace.rpc.descriptors import report_exhaustion
from podrace.rpc.interceptor import ErrorTranslator, checked_request
from podrace.rpc.listening import NAMED, check_local
from podrace.rpc.receiving import ReceivingInterceptor
from podrace.rpc.reflection import enable_reflection
from podrace.tasks import first_finished

SHORTEST_PING_MILLISECONDS = 2000
"""Time between two probes of a client without calls; a client that probes more often is disconnected."""
KEEPALIVE_MILLISECONDS = 10_000
"""Silence of a connection after which the server probes it, and time that the probe may take, so that calls of a client
that is gone end soon."""
LARGEST_MESSAGE_BYTES = 4 << 20
"""Larger requests are refused with RESOURCE_EXHAUSTED; the default of gRPC, for answers as well."""
LARGEST_HEALTH_MESSAGE_BYTES = 4 << 10
"""The same at `health_listen`, where a request holds the name of a service."""
MOST_HEALTH_CONNECTIONS = 256
"""Most connections to `health_listen` at a time."""
MOST_HEALTH_STREAMS = 100
"""Most calls at a time of one connection to `health_listen`."""
LARGEST_HEADERS_BYTES = 16 << 10
"""Most bytes of the metadata of a call, which may hold a token of an identity provider."""
HANDSHAKE_MILLISECONDS = 5_000
"""Time that a new connection has for its handshakes; one that sends nothing keeps its place so long."""
LIVENESS = "liveness"
"""Name of a health check that reports SERVING as long as the process runs, whether or not it can do its work. The empty
name, and the names of the services, report whether it can."""


@dataclass(frozen=True)
class ServerConfig:
    """Addresses and shutdown times of a server."""

    listen: str = "127.0.0.1:0"
    """Address: `host:port` (port 0: any free one) or `unix:/path`."""
    reflection: bool = False
    """Serve gRPC reflection, for grpcurl and similar tools."""
    drain_seconds: float = 0.0
    """Time between reporting NOT_SERVING and refusing new calls, for load balancers to notice."""
    grace_seconds: float = 5.0
    """Time that running calls may take to finish when the service stops."""
    health_listen: str = ""
    """Second address that serves health checks without TLS, because probes of Kubernetes present no certificate."""
    maximum_connections: int = 20_000
    """Most connections at a time; further ones are closed at once. Never more than three quarters of the file
    descriptors that the process may open."""
    maximum_streams: int = 1000
    """Most calls at a time of one connection; further ones wait at the client."""
    idle_seconds: float = 900.0
    """Time after which a connection without calls is closed. Clients open another one when they call again."""
    age_seconds: float = 3600.0
    """Age at which a connection gets no more calls, so that clients connect again, with renewed certificates. Running
    calls are completed."""
    token_listen: str = ""
    """Second address, `host:port`, for callers that present a token and no certificate; with TLS."""
    insecure: bool = False
    """Allow an address that other machines reach without TLS. Every caller that reaches it has all roles, and what is
    sent can be read and changed on its way. The option `--insecure` of a service sets this key."""


@dataclass(frozen=True)
class Service:
    """One gRPC service of a server."""

    descriptor: ServiceDescriptor
    add: Callable[[Any, Any], None]
    """The generated function `add_...Servicer_to_server`."""
    servicer: object


class Server:
    """A listening gRPC server.

    server = await Server.start(config, [Service(...), ...])
    reason = await shutdown_requested(...)
    await server.drain()
    """

    def __init__(
        self,
        config: ServerConfig,
        server: "_Bound",
        health_servicer: health.aio.HealthServicer,
        *,
        token_server: "_Bound | None" = None,
        health_server: "_Bound | None" = None,
        names: Sequence[str] = (),
    ) -> None:
        self._config = config
        self._servers = [each.server for each in (server, token_server) if each]
        self._health = health_servicer
        self._health_server = health_server
        self._names = names
        self._reporting = asyncio.create_task(report_exhaustion())
        self.address = server.address
        self.token_address = token_server.address if token_server else ""
        """Address for callers that present a token and no certificate; empty if there is no such address."""

    @classmethod
    async def start(
        cls,
        config: ServerConfig,
        services: Sequence[Service],
        *,
        guard: Guard | None = None,
        check_leads: Callable[[], None] = lambda: None,
        ready: bool = True,
    ) -> "Server":
        """Binds and serves.

        Args:
            config: Addresses and shutdown times.
            services: What it serves.
            guard: Decides about every call except health checks. None: a Unix socket answers its own user, and any
                other address answers no one.
            check_leads: Raises Unavailable unless this replica of the service leads, called with each call; clients
                then find the leader.
            ready: What health checks report until `report_ready` is called.

        Raises:
            Unavailable: The address cannot be bound, or another server listens on it; the message names it.
            InvalidArgument, FailedPrecondition: The files of podrace.tls cannot be used, other machines reach the
                address and there are no such files, or others can enter the folder of a Unix socket.
        """
        check_folder(config.listen)
        identity = tls.identity_for(config.listen)
        if identity is None and not config.insecure:
            check_local(config.listen)
        guard = guard or (Guard.of_unix_socket() if config.listen.startswith("unix:") else Guard([]))
        server = await _bound(config.listen, identity, guard, config, check_leads)
        try:
            token_server = await _bound_for_tokens(identity, guard, config, check_leads)
        except PodraceError:
            await server.server.stop(None)
            raise
        health_servicer = health.aio.HealthServicer()
        names = [service.descriptor.full_name for service in services]
        for each in filter(None, (server, token_server)):
            for service in services:
                service.add(service.servicer, each.server)
            if config.reflection:
                enable_reflection([*names, health.SERVICE_NAME], each.server)
        health_server = await _bound_health(config) if config.health_listen else None
        for each in filter(None, (server, token_server, health_server)):
            health_pb2_grpc.add_HealthServicer_to_server(health_servicer, each.server)
            await each.server.start()
        started = cls(
            config, server, health_servicer, token_server=token_server, health_server=health_server, names=["", *names]
        )
        await started.report_ready(ready)
        await health_servicer.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        return started

    async def report_ready(self, ready: bool) -> None:
        """Reports to health checks whether the services can do their work; calls are answered either way."""
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self._health.set(name, status)

    @property
    def health_address(self) -> str:
        """Address that serves health checks without TLS; empty if there is no such address."""
        return self._health_server.address if self._health_server else ""

    async def drain(self) -> None:
        """Reports NOT_SERVING, waits, refuses new calls, and lets running calls finish within the grace time."""
        self._reporting.cancel()
        await self._health.enter_graceful_shutdown()
        if self._config.drain_seconds:
            await asyncio.sleep(self._config.drain_seconds)
        await asyncio.gather(*(server.stop(self._config.grace_seconds) for server in self._servers))
        if self._health_server:
            await self._health_server.server.stop(None)


def server_options(config: ServerConfig) -> list[tuple[str, int]]:
    """Returns the gRPC options of a server: what one client, or many, may use of it."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = min(config.maximum_connections, max(1, descriptors * 3 // 4))
    return [
        # so_reuseport would let a second server bind the same port and share its calls: a port in use must be an error.
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.max_concurrent_streams", config.maximum_streams),
        ("grpc.max_connection_idle_ms", round(config.idle_seconds * 1000)),
        ("grpc.max_connection_age_ms", round(config.age_seconds * 1000)),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MILLISECONDS),
        # Clients of podrace probe their connections (podrace.rpc.channel); more frequent probes end a connection.
        ("grpc.http2.min_ping_interval_without_data_ms", SHORTEST_PING_MILLISECONDS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", KEEPALIVE_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_MILLISECONDS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_MILLISECONDS),
        ("grpc.max_metadata_size", LARGEST_HEADERS_BYTES),
        ("grpc.absolute_max_metadata_size", LARGEST_HEADERS_BYTES),
        ("grpc.max_receive_message_length", LARGEST_MESSAGE_BYTES),
        # gRPC would otherwise accept more than 64 KiB of a request that nothing reads, up to the whole request.
        ("grpc.http2.bdp_probe", 0),
    ]


def health_options(config: ServerConfig) -> list[tuple[str, int]]:
    """Returns the gRPC options of a server that anyone may call and that answers health checks only."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = {
        "grpc.max_allowed_incoming_connections": min(MOST_HEALTH_CONNECTIONS, max(1, descriptors // 16)),
        "grpc.max_concurrent_streams": MOST_HEALTH_STREAMS,
        # gRPC ends a call as soon as it has read that its request is larger.
        "grpc.max_receive_message_length": LARGEST_HEALTH_MESSAGE_BYTES,
    }
    return list((dict(server_options(config)) | limits).items())


class _Bound(NamedTuple):
    server: grpc.aio.Server
    address: str


@contextlib.asynccontextmanager
async def standby_health(config: ServerConfig, *, ready: bool) -> AsyncIterator[None]:
    """Answers health checks at `health_listen`, if it is set, while a service starts or a replica waits.

    Args:
        config: Addresses of the service.
        ready: Whether the process does all that is expected of it: a replica that waits until it leads, but not a
            service that opens its database. The check LIVENESS passes either way.
    """
    if not config.health_listen:
        yield
        return
    bound = await _bound_health(config)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, bound.server)
    # The names of the services are unknown here.
    status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
    await servicer.set("", status)
    await servicer.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
    await bound.server.start()
    try:
        yield
    finally:
        await bound.server.stop(None)


async def _bound(
    listen: str,
    identity: tls.TlsIdentity | None,
    guard: Guard,
    config: ServerConfig,
    check_leads: Callable[[], None] = lambda: None,
    options: list[tuple[str, int]] | None = None,
    *,
    client_certificates: bool = True,
) -> _Bound:
    """Creates a server bound to an address, by default with the gRPC options of a service; raises as Server.start."""
    credentials = identity.of_server(client_certificates=client_certificates) if identity else None
    if _has_listener(listen):
        raise Unavailable(f"cannot listen on {listen}: another server does; choose another or stop that one")
    check = functools.partial(_checked_by_leader, check_leads)
    access = AccessInterceptor(guard, check)
    interceptors: list[grpc.aio.ServerInterceptor] = [ErrorTranslator(), access]
    known_callers = listen.startswith("unix:") or (credentials and client_certificates)
    if options is None and not known_callers:
        # Anyone can begin a call: no permissions of a folder and no handshake of mutual TLS prevent it.
        interceptors.insert(0, ReceivingInterceptor(access))
    server = grpc.aio.server(interceptors=interceptors, options=options or server_options(config))
    try:
        port = server.add_secure_port(listen, credentials) if credentials else server.add_insecure_port(listen)
    except RuntimeError:
        port = 0
    if port:
        return _Bound(server, listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}")
    await server.stop(None)
    # The traceback of the error would keep the server alive beyond its event loop.
    del server
    raise Unavailable(
        f"cannot listen on {listen}: the address is in use or does not belong to this machine;"
        " choose another or stop the process that uses it"
    )


async def _bound_health(config: ServerConfig) -> _Bound:
    """Creates the server of `health_listen`; raises as Server.start does."""
    return await _bound(config.health_listen, None, Guard([]), config, options=health_options(config))


def _checked_by_leader(check_leads: Callable[[], None], request: Any, method: str) -> Any:
    """As `checked_request`; raises Unavailable if another replica may lead."""
    check_leads()
    return checked_request(request, method)


async def _bound_for_tokens(
    identity: tls.TlsIdentity | None, guard: Guard, config: ServerConfig, check_leads: Callable[[], None]
) -> _Bound | None:
    """Creates the server of `token_listen`, at which callers need no certificate; None: there is no such address.

    Raises:
        InvalidArgument: There is no TLS, so that a token could be read on its way.
        Unavailable: The address cannot be bound.
    """
    if not config.token_listen:
        return None
    if not identity:
        raise InvalidArgument(
            f"server.token_listen = {config.token_listen!r}: needs TLS, because tokens are secret: set {NAMED}"
        )
    return await _bound(config.token_listen, identity, guard, config, check_leads, client_certificates=False)


def _has_listener(address: str) -> bool:
    """Whether a live server listens on a Unix socket. gRPC would silently replace its socket file."""
    if not address.startswith("unix:"):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            # EAGAIN: the server listens, but its queue is full.
            return probe.connect_ex(address.removeprefix("unix:").removeprefix("//")) in (0, errno.EAGAIN)
        except OSError:
            # Not a valid socket path: binding it fails as well, and reports why.
            return False


async def shutdown_requested(*others: Awaitable[str]) -> str:
    """Waits for SIGTERM, SIGINT, or the first of `others` (a lifeline, for example).

    Returns:
        The reason: the name of the signal, or the result of the awaitable that finished first.
    """
    loop = asyncio.get_running_loop()
    signalled: asyncio.Future[str] = loop.create_future()

    def on_signal(name: str) -> None:
        if not signalled.done():
            signalled.set_result(name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    done = await first_finished(signalled, *map(asyncio.ensure_future, others))
    reason: str = next(iter(done)).result()
    return reason
