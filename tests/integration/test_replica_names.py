"""A name that stands for the replicas of a service: clients find the one that listens, also one with a new address."""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from podrace import rpc
from podrace.access.guard import Guard
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as pb_grpc

ADDRESS, HEADER_BYTES = 1, 12
LIFETIME_SECONDS = 1
ANSWER = 0x8180


class NameServer(asyncio.DatagramProtocol):
    """A name server that gives the same addresses for every name.

    Attributes:
        addresses: The addresses.
    """

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, client: Any) -> None:
        end = HEADER_BYTES
        while data[end]:
            end += data[end] + 1
        end += 5
        (kind,) = struct.unpack(">H", data[end - 4 : end - 2])
        found = self.addresses if kind == ADDRESS else []
        records = [
            struct.pack(">HHHIH", 0xC000 + HEADER_BYTES, ADDRESS, 1, LIFETIME_SECONDS, 4) + socket.inet_aton(address)
            for address in found
        ]
        header = data[:2] + struct.pack(">HHHHH", ANSWER, 1, len(found), 0, 0)
        self._transport.sendto(header + data[HEADER_BYTES:end] + b"".join(records), client)


@pytest.fixture
async def names() -> AsyncIterator[tuple[NameServer, str]]:
    """A name server, and the beginning of addresses that are resolved by it."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    yield server, f"dns://127.0.0.1:{transport.get_extra_info('sockname')[1]}/"
    transport.close()


class Board(pb_grpc.LeaderboardServiceServicer):
    async def GetAgent(self, request: Any, context: Any) -> pb.GetAgentResponse:
        return pb.GetAgentResponse()


async def started(address: str) -> rpc.Server:
    add = pb_grpc.add_LeaderboardServiceServicer_to_server
    service = rpc.Service(pb.DESCRIPTOR.services_by_name["LeaderboardService"], add, Board())
    config = rpc.ServerConfig(listen=address, grace_seconds=0.0)
    return await rpc.Server.start(config, [service], guard=Guard.of_anyone())


async def test_clients_follow_the_leader_to_the_other_replica_and_to_addresses_that_are_new(
    names: tuple[NameServer, str],
) -> None:
    server, scheme = names
    server.addresses = ["127.0.0.2", "127.0.0.3"]
    leader = await started("127.0.0.3:0")
    port = leader.address.rpartition(":")[2]
    async with rpc.connect(f"{scheme}podrace-leaderboard:{port}", pb.DESCRIPTOR) as channel:
        stub: Any = pb_grpc.LeaderboardServiceStub(channel)
        await rpc.call(stub.GetAgent, pb.GetAgentRequest(agent_id="a"), deadline_seconds=5.0)
        # Each leader stops, and a replica with an address that was not known before takes over, as Kubernetes gives it.
        for addresses in (["127.0.0.2", "127.0.0.4"], ["127.0.0.5", "127.0.0.4"], ["127.0.0.5", "127.0.0.6"]):
            (new,) = set(addresses) - set(server.addresses)
            await leader.drain()
            server.addresses = addresses
            leader = await started(f"{new}:{port}")
            begin = time.monotonic()
            await rpc.call(stub.GetAgent, pb.GetAgentRequest(agent_id="a"), deadline_seconds=20.0)
            assert time.monotonic() - begin < 10.0
    await leader.drain()
