"""Translates between CheckpointService and the delivery of checkpoints; decides nothing."""

import asyncio
import contextlib
from typing import Any

import grpc.aio

from leaderboard.delivery.checkpoint_delivery import CheckpointDelivery
from podrace.access.ownership import Ownership, is_restricted, ownership_for
from podrace.access.principal import current_principal
from podrace.access.v1 import access_pb2
from podrace.checkpoint.v1 import delivery_pb2 as pb
from podrace.checkpoint.v1 import delivery_pb2_grpc as pb_grpc
from podrace.errors import Cancelled
from podrace.rpc import Service

CHUNK_SECONDS = 60.0
"""Time that a caller has to receive a chunk."""
STREAM_SECONDS = 600.0
"""Time that a caller has to receive a part."""

Context = grpc.aio.ServicerContext[Any, Any]


def delivery_service(delivery: CheckpointDelivery) -> Service:
    """Returns the service to serve."""
    contract = pb.DESCRIPTOR.services_by_name["CheckpointService"]
    return Service(contract, pb_grpc.add_CheckpointServiceServicer_to_server, CheckpointServicer(delivery))


class CheckpointServicer(pb_grpc.CheckpointServiceServicer):
    """Delivers checkpoints; the contract describes the methods."""

    def __init__(
        self,
        delivery: CheckpointDelivery,
        *,
        chunk_seconds: float = CHUNK_SECONDS,
        stream_seconds: float = STREAM_SECONDS,
    ) -> None:
        self._delivery, self._chunk_seconds, self._stream_seconds = delivery, chunk_seconds, stream_seconds

    async def GetManifest(self, request: pb.GetManifestRequest, context: Context) -> pb.GetManifestResponse:
        """Reads a manifest; see the contract."""
        return await self._delivery.get_manifest(request)

    async def ListParts(self, request: pb.ListPartsRequest, context: Context) -> pb.ListPartsResponse:
        """Lists parts; see the contract."""
        return await self._delivery.list_parts(request, every_part=_may_read_every_part())

    async def ReadPart(  # type: ignore[override]  # the stub knows only generators
        self, request: pb.ReadPartRequest, context: Context
    ) -> None:
        """Streams a part. Writes to the context, because only then the time of a slow reader can be limited."""
        chunks = self._delivery.chunks(request, every_part=_may_read_every_part(), owner=_limited_owner())
        try:
            async with asyncio.timeout(self._stream_seconds), contextlib.aclosing(chunks):
                async for chunk in chunks:
                    async with asyncio.timeout(self._chunk_seconds):
                        await context.write(chunk)
        except TimeoutError:
            raise Cancelled(
                f"part {request.digest[:12]} was read too slowly: a chunk in {self._chunk_seconds:g} s and all of it in"
                f" {self._stream_seconds:g} s are required; continue with `offset`"
            ) from None


def _may_read_every_part() -> bool:
    principal = current_principal()
    return principal is not None and access_pb2.ROLE_USER in principal.roles


def _limited_owner() -> Ownership | None:
    """Returns the user or viewer that calls; None for services and operators, as in podrace.access.open_streams."""
    principal = current_principal()
    return ownership_for(principal) if principal and is_restricted(principal) else None
