"""A watch sends nothing after the credentials of its caller became invalid, and continues with new ones."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from podrace import rpc
from podrace.access.authenticators.certificate import PEM, CertificateAuthenticator
from podrace.access.authenticators.signed import SignedTokenAuthenticator
from podrace.access.credentials import Credentials
from podrace.access.guard import Guard
from podrace.access.interceptor import is_watch
from podrace.access.mesh_key import MeshKey, PublicKeys, make_pem
from podrace.access.rules import rule_of
from podrace.access.tokens import claims_of
from podrace.access.v1 import access_pb2
from podrace.certificates.folder import CertificateFolder
from podrace.certificates.names import SpiffeName
from podrace.client import reconnect
from podrace.client.reconnect import resumed
from podrace.errors import Unauthenticated, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as pb_grpc

WATCH = "/podrace.leaderboard.v1.LeaderboardService/WatchCandidates"
LIFE_SECONDS, LEEWAY_SECONDS = 60.0, 5.0
"""Of a token, and the time for which it is accepted afterwards, because clocks differ."""
NOW = datetime(2026, 6, 1, tzinfo=UTC)


class Board(pb_grpc.LeaderboardServiceServicer):
    """Sends a message for each candidate after `resume_token`."""

    def __init__(self) -> None:
        self.begun, self.candidates, self.submitted = asyncio.Semaphore(0), 0, asyncio.Condition()

    async def WatchCandidates(self, request: Any, context: Any) -> AsyncIterator[pb.WatchCandidatesResponse]:
        self.begun.release()
        sent = request.resume_token
        while True:
            async with self.submitted:
                while self.candidates <= sent:
                    await self.submitted.wait()
            sent += 1
            yield pb.WatchCandidatesResponse(resume_token=sent)

    async def submit(self) -> None:
        async with self.submitted:
            self.candidates += 1
            self.submitted.notify_all()


class World:
    """A board on a server that verifies tokens by a clock of the test, and a client with a token."""

    def __init__(self) -> None:
        self.now, self.board, self.key = NOW.timestamp(), Board(), MeshKey(make_pem())
        self.renew()

    def renew(self) -> None:
        claims = claims_of("alice", {access_pb2.ROLE_VIEWER}, expire_time=self.now + LIFE_SECONDS)
        self.token = self.key.sign(claims)

    def expire(self) -> None:
        self.now += LIFE_SECONDS + LEEWAY_SECONDS + 1.0

    async def start(self) -> None:
        keys = PublicKeys(self.key.public.pems, now=lambda: self.now)
        guard = Guard([SignedTokenAuthenticator(keys, ["podrace"])], now=lambda: self.now)
        name, add = "LeaderboardService", pb_grpc.add_LeaderboardServiceServicer_to_server
        service = rpc.Service(pb.DESCRIPTOR.services_by_name[name], add, self.board)
        self.server = await rpc.Server.start(rpc.ServerConfig(grace_seconds=0.0), [service], guard=guard)
        self.channel = rpc.connect(self.server.address, pb.DESCRIPTOR, token=lambda: self.token)

    async def close(self) -> None:
        await self.channel.close()
        await self.server.drain()

    def watch(self, resume_token: int) -> AsyncIterator[pb.WatchCandidatesResponse]:
        request = pb.WatchCandidatesRequest(tournament_id="t-1", resume_token=resume_token)
        return rpc.stream(pb_grpc.LeaderboardServiceStub(self.channel).WatchCandidates, request, deadline_seconds=60.0)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(reconnect, "RETRY_SECONDS", 0.01)
    made = World()
    await made.start()
    async with asyncio.timeout(30.0):
        yield made
    await made.close()


def test_watches_are_the_streams_that_clients_resume():
    assert is_watch(WATCH)
    assert is_watch("/podrace.orchestrator.v1.OrchestratorService/WatchTournament")
    assert not is_watch("/podrace.simulator.v1.SimulatorService/StreamSteps")
    assert not is_watch("/grpc.health.v1.Health/Watch")


@pytest.mark.parametrize("before", [0, 1], ids=["before the first message", "after a message"])
async def test_nothing_is_sent_after_the_token_has_expired(world, before):
    watch = world.watch(0)
    if before:
        await world.board.submit()
        assert (await anext(watch)).resume_token == 1
    waiting = asyncio.ensure_future(anext(watch))
    await world.board.begun.acquire()
    world.expire()
    await world.board.submit()
    with pytest.raises(Unavailable, match="have expired or were revoked"):
        await waiting


async def test_a_client_with_a_renewed_token_misses_nothing(world):
    watch = resumed(world.watch, 0)
    for number in range(1, 4):
        waiting = asyncio.ensure_future(anext(watch))
        await world.board.begun.acquire()
        world.expire()
        world.renew()
        await world.board.submit()
        assert (await waiting).resume_token == number


async def test_a_client_without_a_new_token_learns_that_its_token_has_expired(world):
    waiting = asyncio.ensure_future(anext(resumed(world.watch, 0)))
    await world.board.begun.acquire()
    world.expire()
    await world.board.submit()
    with pytest.raises(Unauthenticated, match="expired"):
        await waiting


async def test_a_revoked_certificate_is_noticed(tmp_path):
    folder = CertificateFolder.create(tmp_path / "certs", NOW)
    serial = folder.add(SpiffeName("user", "alice"), [], NOW, timedelta(days=365)).serial
    revoked: set[int] = set()
    guard = Guard([CertificateAuthenticator(revoked=revoked, now=NOW.timestamp)])
    credentials = Credentials("", "", {PEM: [(folder.path / "user/alice/tls.crt").read_bytes()]})
    assert await guard.still_admits(credentials, rule_of(WATCH))
    revoked.add(serial)
    assert not await guard.still_admits(credentials, rule_of(WATCH))


async def test_a_watch_continues_while_the_issuer_of_a_token_does_not_answer():
    async def fails(credentials: Credentials) -> None:
        raise Unavailable("the API server does not answer")

    guard = Guard([SimpleNamespace(authenticate=fails)])
    assert await guard.still_admits(Credentials("t"), rule_of(WATCH))
