"""Serves the descriptors of a server's contracts, under the names of both versions of the reflection protocol."""

from collections.abc import Sequence

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

SERVICES = "grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection"
"""Version 1 has the messages of version 1alpha under other names; grpcio-reflection has classes for 1alpha only."""


def enable_reflection(names: Sequence[str], server: grpc.aio.Server) -> None:
    """Adds the reflection services to a server.

    Args:
        names: Full names of the services that are listed.
        server: A server that has not been started.
    """
    servicer = reflection.aio.ReflectionServicer([*names, reflection.SERVICE_NAME])
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for service in SERVICES:
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": method}),)
        )
