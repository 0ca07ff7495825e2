"""Answers DiscoveryService: what this server is, and what a specification may name."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc.aio

from orchestrator.config import Config
from orchestrator.messages import duration
from orchestrator.state.database import REQUEST_RECORD_SECONDS
from orchestrator.tournaments.queries import DEFAULT_PAGE_SIZE, MAXIMUM_PAGE_SIZE
from podrace import __version__, rpc
from podrace.access.principal import Principal, current_principal
from podrace.access.v1 import access_pb2
from podrace.discovery import catalog_messages
from podrace.discovery.features import FEATURES
from podrace.discovery.v1 import discovery_pb2 as pb
from podrace.discovery.v1 import discovery_pb2_grpc as pb_grpc
from podrace.page_bytes import PAGE_BYTES

Context = grpc.aio.ServicerContext[Any, Any]
SERVICE = pb.DESCRIPTOR.services_by_name["DiscoveryService"]


def with_discovery(config: Config, services: Sequence[rpc.Service]) -> list[rpc.Service]:
    """Returns the services of an orchestrator together with the one that describes them."""
    names = [service.descriptor.full_name for service in services]
    servicer = DiscoveryServicer(describe_server(config, [*names, SERVICE.full_name]))
    return [*services, rpc.Service(SERVICE, pb_grpc.add_DiscoveryServiceServicer_to_server, servicer)]


def describe_server(config: Config, services: Sequence[str]) -> pb.GetServerResponse:
    """Returns version, features and limits of an orchestrator.

    Args:
        config: Its configuration.
        services: Full names of the services that it serves.
    """
    return pb.GetServerResponse(
        version=__version__,
        services=services,
        features=FEATURES,
        limits=pb.Limits(
            request_bytes=rpc.LARGEST_MESSAGE_BYTES,
            page_bytes=PAGE_BYTES,
            page_entries=MAXIMUM_PAGE_SIZE,
            default_page_entries=DEFAULT_PAGE_SIZE,
            streams=config.server.maximum_streams,
            request_id_duration=duration(REQUEST_RECORD_SECONDS),
        ),
        launcher=config.launcher,
        starts_pods=config.start_pods,
    )


def describe_caller(principal: Principal | None) -> pb.GetCallerResponse:
    """Returns who a caller is; nothing for None, a call that no server answers."""
    if principal is None:
        return pb.GetCallerResponse()
    found = pb.GetCallerResponse(
        name=principal.name,
        namespace=principal.namespace,
        roles=[access_pb2.Role.ValueType(role) for role in sorted(principal.roles)],
        tournament_id=principal.tournament_id,
    )
    if math.isfinite(principal.expire_time):
        found.expire_time.FromNanoseconds(round(principal.expire_time * 1e9))
    return found


class DiscoveryServicer(pb_grpc.DiscoveryServiceServicer):
    """Implements DiscoveryService; the contract describes each method."""

    def __init__(self, server: pb.GetServerResponse, clock: Callable[[], int] = time.time_ns) -> None:
        self._server = server
        self._clock = clock

    async def GetServer(self, request: pb.GetServerRequest, context: Context) -> pb.GetServerResponse:
        """Returns what this server is."""
        answer = pb.GetServerResponse()
        answer.CopyFrom(self._server)
        answer.time.FromNanoseconds(self._clock())
        return answer

    async def ListAlgorithms(self, request: pb.ListAlgorithmsRequest, context: Context) -> pb.ListAlgorithmsResponse:
        """Returns all algorithms."""
        return catalog_messages.list_algorithms()

    async def ListSimulators(self, request: pb.ListSimulatorsRequest, context: Context) -> pb.ListSimulatorsResponse:
        """Returns all simulators."""
        return catalog_messages.list_simulators()

    async def ListStrategies(self, request: pb.ListStrategiesRequest, context: Context) -> pb.ListStrategiesResponse:
        """Returns all strategies."""
        return catalog_messages.list_strategies()

    async def ListEventKinds(self, request: pb.ListEventKindsRequest, context: Context) -> pb.ListEventKindsResponse:
        """Returns all kinds of events."""
        return catalog_messages.list_event_kinds()

    async def GetCaller(self, request: pb.GetCallerRequest, context: Context) -> pb.GetCallerResponse:
        """Returns who calls."""
        return describe_caller(current_principal())
