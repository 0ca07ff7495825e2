"""One owner gets as many tournaments and calls as the operator allows, and a pool and a priority within the limits.

Before there were quotas, a user created tournaments until the disk was full, and each of them started its minimum of
pods.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from fuzz.worlds import OwnLeaderboard, StillClock, given_spec
from google.rpc import error_details_pb2, status_pb2

from orchestrator.assignments.evaluation_epochs import EvaluationEpochs
from orchestrator.assignments.service import Assignments
from orchestrator.decisions.quotas import OwnerQuota, Quotas
from orchestrator.service import OrchestratorServicer
from orchestrator.state.database import StateDatabase
from orchestrator.state.runtime import RuntimeState
from orchestrator.state.saved_state import load_saved_state
from orchestrator.tournaments.evaluations import Evaluations
from orchestrator.tournaments.lifecycle import Tournaments
from orchestrator.tournaments.queries import SCOPED_METHODS, Queries
from podrace import rpc
from podrace.access.authenticators.signed import SignedTokenAuthenticator
from podrace.access.call_rates import CallRates
from podrace.access.guard import Guard
from podrace.access.mesh_key import MeshKey, make_pem
from podrace.access.open_streams import OpenStreams
from podrace.access.principal import ROLES_BY_NAME
from podrace.access.tokens import AUDIENCE, claims_of
from podrace.errors import InvalidArgument, ResourceExhausted
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.tournament.v1.tournament_pb2 import PoolSpec

NOW = 1_800_000_000.0
KEY = MeshKey(make_pem(), lambda: NOW)
QUOTAS = Quotas(tournaments=3, pods=8, gpus=4, owners={"bob": OwnerQuota(tournaments=1, priority=5)})
CALLS_PER_SECOND = 20.0
STREAMS = 3


def token_of(name: str, role: str = "user") -> str:
    return KEY.sign(claims_of(name, {ROLES_BY_NAME[role]}, expire_time=NOW + 600))


ALICE, BOB, OPERATOR = token_of("alice"), token_of("bob"), token_of("root", "operator")


@dataclass
class Running:
    address: str

    async def call(self, token: str, method: str, request: Any) -> Any:
        async with rpc.connect(self.address, token=lambda: token) as channel:
            stub = pb_grpc.OrchestratorServiceStub(channel)
            return await rpc.call(getattr(stub, method), request, deadline_seconds=30.0)

    async def create(self, token: str, request_id: str, **pool: int) -> str:
        request = pb.CreateTournamentRequest(request_id=request_id, spec=given_spec())
        request.spec.pool.maximum_pods = 20
        for key, value in pool.items():
            setattr(request.spec.pod if key == "gpus" else request.spec.pool, key, value)
        return str((await self.call(token, "CreateTournament", request)).tournament.tournament_id)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    clock = StillClock()
    state = StateDatabase.open(tmp_path / "orchestrator.sqlite", clock)
    runtime = RuntimeState(10.0)
    runtime.restore(await state.transact(load_saved_state), clock.monotonic())
    state.on_saved(runtime.cache.apply_saved)
    leaderboard: Any = OwnLeaderboard()
    servicer = OrchestratorServicer(
        Tournaments(state, runtime, mesh_id="", start_pods=True, random_bytes=Random(1).randbytes, limits=QUOTAS),
        Queries(state, runtime),
        Assignments(state, runtime, leaderboard, clock),
        runtime,
        clock,
        leaderboard_address="unix:/nowhere",
        evaluations=Evaluations(state, runtime, clock),
        evaluation_epochs=EvaluationEpochs(state, runtime, clock),
    )
    described = pb.DESCRIPTOR.services_by_name["OrchestratorService"]
    served = rpc.Service(described, pb_grpc.add_OrchestratorServiceServicer_to_server, servicer)
    guard = Guard(
        [SignedTokenAuthenticator(KEY.public, AUDIENCE)],
        owners=runtime.cache,
        scoped=SCOPED_METHODS,
        now=lambda: NOW,
        rates=CallRates(CALLS_PER_SECOND, {}, lambda: NOW),
        streams=OpenStreams(STREAMS, {}),
    )
    server = await rpc.Server.start(rpc.ServerConfig(grace_seconds=0.0), [served], guard=guard)
    yield Running(server.address)
    servicer.close()
    await server.drain()
    state.close()


def cancel(name: str) -> pb.CancelTournamentRequest:
    return pb.CancelTournamentRequest(request_id=f"stop {name}", tournament_id=name)


async def test_a_person_gets_a_limited_number_of_tournaments_at_a_time(running: Running) -> None:
    names = [await running.create(ALICE, f"r{number}") for number in range(3)]
    with pytest.raises(ResourceExhausted, match=r"alice has 3 tournaments .* the limit of quota.tournaments is 3"):
        await running.create(ALICE, "one too many")
    assert await running.create(ALICE, "r0") == names[0], "a repeated request is answered as before"
    await running.create(BOB, "others are not concerned")
    await running.call(ALICE, "CancelTournament", cancel(names[0]))
    await running.create(ALICE, "one too many")


async def test_an_ended_tournament_is_resumed_only_within_the_quota_of_its_owner(running: Running) -> None:
    first = await running.create(BOB, "first")
    await running.call(BOB, "CancelTournament", cancel(first))
    second = await running.create(BOB, "second")
    resume = pb.ResumeTournamentRequest(request_id="resume", tournament_id=first)
    for caller in (BOB, OPERATOR):
        with pytest.raises(ResourceExhausted, match=r"quota.owners.bob.tournaments is 1"):
            await running.call(caller, "ResumeTournament", resume)
    await running.call(BOB, "CancelTournament", cancel(second))
    await running.call(BOB, "ResumeTournament", resume)


async def test_a_refusal_names_the_setting_and_when_to_repeat_the_call(running: Running) -> None:
    await running.create(BOB, "first")
    async with rpc.connect(running.address, token=lambda: BOB) as channel:
        stub: Any = pb_grpc.OrchestratorServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.CreateTournament(pb.CreateTournamentRequest(request_id="second", spec=given_spec()), timeout=30)
    trailing = dict(refused.value.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert any(detail.Unpack(info) for detail in status.details)
    assert any(detail.Unpack(retry) for detail in status.details)
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert info.reason == "ERROR_REASON_QUOTA_EXCEEDED"
    assert info.metadata["setting"] == "quota.owners.bob.tournaments"
    assert (info.metadata["limit"], info.metadata["owner"]) == ("1", "bob")
    assert retry.retry_delay.seconds == 60


async def test_a_pool_or_a_priority_beyond_the_limits_is_refused_when_it_is_created_or_changed(
    running: Running,
) -> None:
    for token, pool, problem in (
        (ALICE, {"minimum_pods": 9}, r"quota.pods is 8"),
        (ALICE, {"gpus": 1, "minimum_pods": 5}, r"quota.gpus is 4"),
        (ALICE, {"priority": 1}, r"pool.priority = 1: expected at most 0"),
        (BOB, {"priority": 6}, r"quota.owners.bob.priority"),
        (OPERATOR, {"priority": 101}, r"quota.operator_priority"),
    ):
        with pytest.raises((ResourceExhausted, InvalidArgument), match=problem):
            await running.create(token, "refused", **pool)
    name = await running.create(BOB, "accepted", priority=5, minimum_pods=8)
    for key, value in (("priority", 6), ("minimum_pods", 9)):
        change = pb.UpdateTournamentRequest(request_id=f"more {key}", tournament_id=name)
        setattr(change.pool, key, value)
        with pytest.raises((ResourceExhausted, InvalidArgument), match=r"the operator sets"):
            await running.call(BOB, "UpdateTournament", change)
    change = pb.UpdateTournamentRequest(request_id="raise", tournament_id=name)
    change.pool.priority = 50
    await running.call(OPERATOR, "UpdateTournament", change)


async def test_an_owner_changes_the_pool_of_a_tournament_whose_priority_an_operator_has_raised(
    running: Running,
) -> None:
    name = await running.create(ALICE, "created")

    async def change(token: str, request_id: str, **pool: int) -> Any:
        request = pb.UpdateTournamentRequest(request_id=request_id, tournament_id=name, pool=PoolSpec(**pool))
        return (await running.call(token, "UpdateTournament", request)).tournament.spec.pool

    await change(OPERATOR, "raise", priority=50)
    changed = await change(ALICE, "fewer", maximum_pods=2)
    assert (changed.maximum_pods, changed.priority) == (2, 50)
    with pytest.raises(InvalidArgument, match=r"pool.priority = 51: expected at most 0"):
        await change(ALICE, "raise further", priority=51)
    assert (await change(ALICE, "lower", priority=10)).priority == 10
    with pytest.raises(InvalidArgument, match=r"pool.priority = 50: expected at most 0"):
        await change(ALICE, "raise again", priority=50)


async def test_a_person_makes_a_limited_number_of_calls_and_others_are_answered_meanwhile(running: Running) -> None:
    listing = pb.ListTournamentsRequest()
    async with rpc.connect(running.address, token=lambda: ALICE) as channel:
        stub: Any = pb_grpc.OrchestratorServiceStub(channel)
        answered = 0
        while answered < 5 * CALLS_PER_SECOND:
            await rpc.call(stub.ListTournaments, listing, deadline_seconds=30.0)
            answered += 1
        with pytest.raises(ResourceExhausted, match=r"access.calls_per_second = 20") as refused:
            await rpc.call(stub.ListTournaments, listing, deadline_seconds=30.0)
    assert refused.value.retry_seconds == pytest.approx(0.05)
    await running.call(BOB, "ListTournaments", listing)
    await running.call(OPERATOR, "ListTournaments", listing)


async def test_a_person_has_a_limited_number_of_open_streams_and_one_that_ends_makes_room(running: Running) -> None:
    request = pb.WatchTournamentRequest(tournament_id=await running.create(ALICE, "watched"))

    async def watch(stub: Any) -> AsyncIterator[Any]:
        messages = rpc.stream(stub.WatchTournament, request, deadline_seconds=30.0)
        await anext(messages)
        return messages

    async with (
        rpc.connect(running.address, token=lambda: ALICE) as own,
        rpc.connect(running.address, token=lambda: OPERATOR) as others,
    ):
        alice, operator = pb_grpc.OrchestratorServiceStub(own), pb_grpc.OrchestratorServiceStub(others)
        watches = [await watch(alice) for _ in range(STREAMS)]
        with pytest.raises(ResourceExhausted, match=r"alice has 3 streams open.*access\.open_streams = 3") as refused:
            await watch(alice)
        assert refused.value.metadata["owner"] == "alice"
        more = [await watch(operator) for _ in range(2 * STREAMS)]
        await watches.pop().aclose()
        async with asyncio.timeout(30.0):
            while True:
                # The server learns of the end a moment later.
                try:
                    watches.append(await watch(alice))
                except ResourceExhausted:
                    continue
                break
        for each in (*watches, *more):
            await each.aclose()
