"""Wraps gRPC: servers with health checks and graceful shutdown, channels with retries, one error model.

Servicers raise PodraceError and callers catch PodraceError; only this package uses grpc.StatusCode. Every call states
its deadline.
"""

from podrace.access.sending import is_local
from podrace.rpc.channel import call, connect, send, service_config, stream, wait_until_ready, wait_until_serving
from podrace.rpc.server import (
    LARGEST_MESSAGE_BYTES,
    LIVENESS,
    Server,
    ServerConfig,
    Service,
    shutdown_requested,
    standby_health,
)
from podrace.rpc.status import LONGEST_MESSAGE_BYTES, from_rpc_error

__all__ = [
    "LARGEST_MESSAGE_BYTES",
    "LIVENESS",
    "LONGEST_MESSAGE_BYTES",
    "Server",
    "ServerConfig",
    "Service",
    "call",
    "connect",
    "from_rpc_error",
    "is_local",
    "send",
    "service_config",
    "shutdown_requested",
    "standby_health",
    "stream",
    "wait_until_ready",
    "wait_until_serving",
]
