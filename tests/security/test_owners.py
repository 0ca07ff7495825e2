"""What a caller gets about the tournaments of others: exactly what it gets about tournaments that do not exist.

Before tournaments had owners, every user read, changed, cancelled and listed the tournaments of all users, and a
misspelt id was answered with the id of a foreign tournament.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from fuzz.worlds import OwnLeaderboard, StillClock, given_spec, published

from leaderboard.generator import Generator
from leaderboard.service import services as leaderboard_services
from leaderboard.snapshots import SnapshotRecorder
from leaderboard.store.owners import TournamentOwners
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.store.snapshot_records import add_snapshot
from leaderboard.store_access.access import StoreAccess
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from orchestrator.assignments.evaluation_epochs import EvaluationEpochs
from orchestrator.assignments.external_pods import ExternalPods
from orchestrator.assignments.service import Assignments
from orchestrator.service import OrchestratorServicer
from orchestrator.state.database import StateDatabase
from orchestrator.state.ownership_records import assign_owner
from orchestrator.state.runtime import RuntimeState
from orchestrator.state.saved_state import load_saved_state
from orchestrator.tournaments.deletion import Deletion
from orchestrator.tournaments.evaluations import Evaluations
from orchestrator.tournaments.lifecycle import Tournaments
from orchestrator.tournaments.queries import SCOPED_METHODS as SCOPED_BY_ORCHESTRATOR
from orchestrator.tournaments.queries import Queries
from podrace import rpc
from podrace.access.authenticators.signed import SignedTokenAuthenticator
from podrace.access.authenticators.unix_socket import local_user
from podrace.access.guard import Guard
from podrace.access.mesh_key import MeshKey, make_pem
from podrace.access.ownership import Ownership
from podrace.access.principal import ROLES_BY_NAME
from podrace.access.tokens import AUDIENCE, claims_of
from podrace.checkpoint_store.folder import FolderStore
from podrace.database import Database
from podrace.errors import InvalidArgument, NamedResource, NotFound, PermissionDenied, PodraceError
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as board_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.specification.resolve import resolve

NOW = 1_800_000_000.0
KEY = MeshKey(make_pem(), lambda: NOW)
DIGEST = "0" * 64
BOARD_METHODS = {method.name for method in board_pb.DESCRIPTOR.services_by_name["LeaderboardService"].methods}
MISSING = "race-missng"
"""No tournament; as long as the id of one, so that answers have the same length."""


def token_of(name: str, role: str = "user", namespace: str = "", tournament_id: str = "") -> str:
    claims = claims_of(
        name, {ROLES_BY_NAME[role]}, expire_time=NOW + 600, namespace=namespace, tournament_id=tournament_id
    )
    return KEY.sign(claims)


ALICE, BOB, CAROL = token_of("alice"), token_of("bob"), token_of("carol", namespace="vision")
DAVE = token_of("dave", namespace="vision")
OPERATOR = token_of("root", "operator")


def guard(owners: Any, scoped: Any) -> Guard:
    return Guard([SignedTokenAuthenticator(KEY.public, AUDIENCE)], owners=owners, scoped=scoped, now=lambda: NOW)


@dataclass
class Services:
    """An orchestrator and a leaderboard on ports, with tournaments of alice (default namespace) and carol (vision)."""

    orchestrator: str
    leaderboard: str
    alices: str = ""
    carols: str = ""

    async def call(self, token: str, method: str, request: Any) -> Any:
        board = method in BOARD_METHODS
        address = self.leaderboard if board else self.orchestrator
        stub = board_grpc.LeaderboardServiceStub if board else pb_grpc.OrchestratorServiceStub
        async with rpc.connect(address, token=lambda: token) as channel:
            return await rpc.call(getattr(stub(channel), method), request, deadline_seconds=30.0)

    async def answer(self, token: str, method: str, request: Any) -> str:
        """The answer or the error as text."""
        try:
            return str(await self.call(token, method, request))
        except PodraceError as error:
            return f"{type(error).__name__}: {error.message}"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Services]:
    clock = StillClock()
    state = StateDatabase.open(tmp_path / "orchestrator.sqlite", clock)
    runtime = RuntimeState(10.0)
    runtime.restore(await state.transact(load_saved_state), clock.monotonic())
    state.on_saved(runtime.cache.apply_saved)
    tournaments = Tournaments(state, runtime, mesh_id="", start_pods=True, random_bytes=Random(1).randbytes)
    pods: Any = ExternalPods(state, runtime, clock)
    fake: Any = OwnLeaderboard()
    servicer = OrchestratorServicer(
        tournaments,
        Queries(state, runtime),
        Assignments(state, runtime, fake, clock, external_pods=pods),
        runtime,
        clock,
        leaderboard_address="unix:/nowhere",
        watch_pause_seconds=0.0,
        evaluations=Evaluations(state, runtime, clock),
        evaluation_epochs=EvaluationEpochs(state, runtime, clock),
        deletion=Deletion(state, runtime, fake, clock, log_folder=tmp_path),
    )
    described = pb.DESCRIPTOR.services_by_name["OrchestratorService"]
    served = rpc.Service(described, pb_grpc.add_OrchestratorServiceServicer_to_server, servicer)
    config = rpc.ServerConfig(grace_seconds=0.0)
    server = await rpc.Server.start(config, [served], guard=guard(runtime.cache, SCOPED_BY_ORCHESTRATOR))

    board = Database.open(tmp_path / "leaderboard.sqlite", DATABASE_FORMAT, lambda: NOW)
    store, watch, owners = FolderStore(tmp_path / "store"), SubmissionWatch(), TournamentOwners()
    updater, generator = Updater(board, store, watch), Generator(board, owners=owners)
    kept, access = SnapshotRecorder(board, store), StoreAccess(board, store, renew_after_seconds=1800.0)
    offered = leaderboard_services(board, watch, updater, generator, kept, access, owners=owners)
    board_server = await rpc.Server.start(config, offered, guard=guard(owners, ()))

    services = Services(server.address, board_server.address)
    for owner, token, namespace in (("alice", ALICE, ""), ("carol", CAROL, "vision")):
        name = await created(services, token)
        setattr(services, f"{owner}s", name)
        evaluation = pb.CreateEvaluationRequest(request_id="e", tournament_id=name, episodes=4)
        evaluation.checkpoint.agent_id, evaluation.checkpoint.manifest_digest = f"{name}-a0", DIGEST
        await services.call(token, "CreateEvaluation", evaluation)
        request = board_pb.GenerateAgentRequest(
            request_id=f"{name}-a0", tournament_id=name, spec=resolve(given_spec()), owner=owner, namespace=namespace
        )
        agent: Any = await generator.generate(request)
        await updater.submit(published(store, agent, 1.0))
        await board.transact(add_snapshot, board_pb.Snapshot(tournament_id=name, agent_id=f"{name}-a0", number=1))
    yield services
    servicer.close()
    await watch.close()
    for each in (server, board_server):
        await each.drain()
    state.close()
    board.close()


async def created(services: Services, token: str, request_id: str = "same for all") -> str:
    request = pb.CreateTournamentRequest(request_id=request_id, spec=given_spec())
    return str((await services.call(token, "CreateTournament", request)).tournament.tournament_id)


def requests(name: str) -> dict[str, Any]:
    """A request of each method that names a tournament or something in one."""
    agent = f"{name}-a0"
    evaluation = pb.CreateEvaluationRequest(request_id="f", tournament_id=name)
    evaluation.checkpoint.agent_id, evaluation.checkpoint.manifest_digest = agent, DIGEST
    return {
        "GetTournament": pb.GetTournamentRequest(tournament_id=name),
        "WatchTournament": pb.WatchTournamentRequest(tournament_id=name),
        "UpdateTournament": pb.UpdateTournamentRequest(request_id="u", tournament_id=name),
        "CancelTournament": pb.CancelTournamentRequest(request_id="c", tournament_id=name),
        "PauseTournament": pb.PauseTournamentRequest(request_id="p", tournament_id=name),
        "ResumeTournament": pb.ResumeTournamentRequest(request_id="r", tournament_id=name),
        "DeleteTournament": pb.DeleteTournamentRequest(tournament_id=name),
        "CreateEvaluation": evaluation,
        "GetEvaluation": pb.GetEvaluationRequest(evaluation_id=f"{name}-e0"),
        "WaitEvaluation": pb.WaitEvaluationRequest(evaluation_id=f"{name}-e0"),
        "CancelEvaluation": pb.CancelEvaluationRequest(request_id="x", evaluation_id=f"{name}-e0"),
        "ListEvaluations": pb.ListEvaluationsRequest(tournament_id=name),
        "ListPods": pb.ListPodsRequest(tournament_id=name),
        "ListEvents": pb.ListEventsRequest(tournament_id=name),
        "GetAgent": board_pb.GetAgentRequest(agent_id=agent),
        "ListCandidates": board_pb.ListCandidatesRequest(tournament_id=name, all_submissions=True),
        "GetLineage": board_pb.GetLineageRequest(tournament_id=name),
        "GetLineage of an agent": board_pb.GetLineageRequest(agent_id=agent),
        "WatchCandidates": board_pb.WatchCandidatesRequest(tournament_id=name),
        "GetStatistics": board_pb.GetStatisticsRequest(tournament_id=name),
        "ReplayTournament": board_pb.ReplayTournamentRequest(tournament_id=name),
        "ListSnapshots": board_pb.ListSnapshotsRequest(tournament_id=name),
        "a bad page": board_pb.ListCandidatesRequest(tournament_id=name, page_token="WyJ0Iiw0XQ=="),
        "ListEvents, a bad page": pb.ListEventsRequest(tournament_id=name, page_token="x"),
    }


METHODS = {
    "GetLineage of an agent": "GetLineage",
    "a bad page": "ListCandidates",
    "ListEvents, a bad page": "ListEvents",
}
STREAMS = ("WatchTournament", "WatchCandidates")


def test_every_method_about_a_tournament_is_tried():
    """Methods of people; those of the services and of pods are in test_method_matrix."""
    files = {"OrchestratorService": pb, "LeaderboardService": board_pb}
    services = [file.DESCRIPTOR.services_by_name[name] for name, file in files.items()]
    tried = {METHODS.get(name, name) for name in requests("t")}
    named = {
        method.name
        for service in services
        for method in service.methods
        if {"tournament_id", "agent_id", "evaluation_id"} & {one.name for one in method.input_type.fields}
    }
    assert named - tried == {"NameChampion"}


@pytest.mark.parametrize("what", [name for name in requests("t") if name not in STREAMS])
async def test_a_foreign_tournament_is_answered_like_none(running: Services, what: str) -> None:
    method = METHODS.get(what, what)
    for foreign in (running.alices, running.carols):
        answers = {
            name: (await running.answer(BOB, method, requests(name)[what])).replace(name, "ID")
            for name in (foreign, MISSING)
        }
        assert answers[foreign] == answers[MISSING]
        assert not re.search(f"{running.alices}|{running.carols}", str(list(answers.values())))


@pytest.mark.parametrize("what", [name for name in requests("t") if name not in STREAMS and "bad" not in name])
async def test_the_owner_and_an_operator_are_answered(running: Services, what: str) -> None:
    method, request = METHODS.get(what, what), requests(running.alices)[what]
    for token in (ALICE, OPERATOR):
        assert not (await running.answer(token, method, request)).startswith("NotFound")
    if what.startswith(("List", "Get")) and what not in ("ListPods", "GetEvaluation"):
        assert (await running.call(ALICE, method, request)).ByteSize()


@pytest.mark.parametrize("what", STREAMS)
async def test_a_watch_of_a_foreign_tournament_is_answered_like_one_of_none(running: Services, what: str) -> None:
    async def first(token: str, name: str) -> str:
        board = what in BOARD_METHODS
        stub: Any = board_grpc.LeaderboardServiceStub if board else pb_grpc.OrchestratorServiceStub
        async with rpc.connect(running.leaderboard if board else running.orchestrator, token=lambda: token) as channel:
            try:
                answer = await getattr(stub(channel), what)(requests(name)[what], timeout=30.0).read()
            except grpc.aio.AioRpcError as error:
                return f"{error.code()} {error.details()}".replace(name, "ID")
        return str(answer)

    assert "NOT_FOUND" in (hidden := await first(BOB, running.alices))
    assert hidden == await first(BOB, MISSING)
    assert running.alices in await first(ALICE, running.alices)


async def test_lists_leave_out_what_is_foreign(running: Services) -> None:
    async def seen(token: str) -> set[str]:
        listed = (await running.call(token, "ListTournaments", pb.ListTournamentsRequest())).tournaments
        events = (await running.call(token, "ListEvents", pb.ListEventsRequest())).events
        found = {one.tournament_id for one in listed}
        assert {one.tournament_id for one in events} == found
        return found

    assert await seen(ALICE) == {running.alices}
    assert await seen(BOB) == set()
    assert await seen(CAROL) == await seen(DAVE) == {running.carols}
    assert await seen(OPERATOR) == await seen(token_of("board", "viewer", "*")) == {running.alices, running.carols}
    assert await seen(token_of("guest", "viewer", tournament_id=running.alices)) == {running.alices}


async def test_a_page_of_tournaments_is_full_although_foreign_ones_lie_between(running: Services) -> None:
    second = await created(running, ALICE, "second")
    await created(running, CAROL, "second")
    third = await created(running, ALICE, "third")
    found, token = [], ""
    while True:
        page = await running.call(ALICE, "ListTournaments", pb.ListTournamentsRequest(page_size=1, page_token=token))
        found += [one.tournament_id for one in page.tournaments]
        token = page.next_page_token
        if not token:
            break
    assert found == [third, second, running.alices]


async def test_a_tournament_states_its_owner(running: Services) -> None:
    found = await running.call(DAVE, "GetTournament", pb.GetTournamentRequest(tournament_id=running.carols))
    assert (found.tournament.owner, found.tournament.namespace) == ("carol", "vision")


async def test_a_member_of_the_namespace_reads_and_does_not_change(running: Services) -> None:
    for what, request in requests(running.carols).items():
        if what in STREAMS or "bad" in what:
            continue
        changes = what.startswith(("Update", "Cancel", "Pause", "Resume", "Create", "Delete"))
        answer = await running.answer(DAVE, METHODS.get(what, what), request)
        assert answer.startswith("PermissionDenied: tournament") == changes, (what, answer)
        assert not answer.startswith("NotFound")


async def test_an_unknown_tournament_is_answered_with_ones_own(running: Services) -> None:
    near = running.alices[:-1] + "0"
    with pytest.raises(NotFound, match=f"did you mean '{running.alices}'"):
        await running.call(ALICE, "GetTournament", pb.GetTournamentRequest(tournament_id=near))
    with pytest.raises(NotFound, match="known: none"):
        await running.call(BOB, "GetTournament", pb.GetTournamentRequest(tournament_id=near))


async def test_the_request_id_of_another_caller_does_not_return_its_tournament(running: Services) -> None:
    # The fixture has created alice's and carol's with this id and the same specification.
    assert await created(running, ALICE) == running.alices
    assert await created(running, BOB) not in (running.alices, running.carols)


async def test_a_tournament_does_not_start_from_a_foreign_agent(running: Services) -> None:
    def request(agent_id: str) -> pb.CreateTournamentRequest:
        spec = given_spec()
        spec.evolution.ancestor_agent_id = agent_id
        return pb.CreateTournamentRequest(request_id="child", spec=spec)

    answers = [await running.answer(BOB, "CreateTournament", request(f"{n}-a0")) for n in (running.alices, MISSING)]
    assert answers[0].replace(running.alices, MISSING) == answers[1]
    with pytest.raises(InvalidArgument, match="no other tournament has such an agent"):
        await running.call(BOB, "CreateTournament", request(f"{running.alices}-a0"))
    # A member of the namespace reads the agent, so it may start from it.
    await running.call(DAVE, "CreateTournament", request(f"{running.carols}-a0"))


async def test_a_foreign_checkpoint_is_not_evaluated(running: Services) -> None:
    own = await created(running, BOB)
    for field in ("checkpoint", "members"):
        answers = []
        for name in (running.alices, MISSING):
            request = requests(own)["CreateEvaluation"]
            named = request.members.add() if field == "members" else request.checkpoint
            named.agent_id, named.manifest_digest = f"{name}-a0", DIGEST
            answers.append((await running.answer(BOB, "CreateEvaluation", request)).replace(name, "ID"))
        assert answers == ["NotFound: agent 'ID-a0': there is no such agent"] * 2
    with pytest.raises(NotFound) as refusal:
        await running.call(BOB, "CreateEvaluation", request)
    assert refusal.value.resource == NamedResource("agent", f"{MISSING}-a0")


async def test_a_token_bound_to_a_tournament_reaches_it_alone(running: Services) -> None:
    bound = token_of("helper", "user", tournament_id=running.alices)
    await running.call(bound, "CancelTournament", requests(running.alices)["CancelTournament"])
    with pytest.raises(NotFound):
        await running.call(bound, "GetTournament", pb.GetTournamentRequest(tournament_id=running.carols))
    reading = token_of("guest", "viewer", tournament_id=running.alices)
    with pytest.raises(PermissionDenied):
        await running.call(reading, "CancelTournament", requests(running.alices)["CancelTournament"])


async def test_tournaments_of_earlier_versions_get_the_default_owner(tmp_path: Path) -> None:
    state = StateDatabase.open(tmp_path / "orchestrator.sqlite", StillClock())
    runtime = RuntimeState(10.0)
    tournaments = Tournaments(state, runtime, mesh_id="", start_pods=True, random_bytes=Random(1).randbytes)
    old = await tournaments.create(pb.CreateTournamentRequest(request_id="r", spec=given_spec()))
    kept = await tournaments.create(pb.CreateTournamentRequest(request_id="s", spec=given_spec()))
    forget = "DELETE FROM ownerships WHERE tournament_id = ?"
    await state.transact(lambda transaction: transaction.execute(forget, old.tournament_id))
    await state.transact(assign_owner, "the default")
    saved = {one.tournament_id: one.owner for one in (await state.transact(load_saved_state)).ownerships}
    assert saved.pop(old.tournament_id) == "the default"
    assert saved.keys() == {kept.tournament_id}
    assert "the default" not in saved.values()
    state.close()


async def test_the_leaderboard_remembers_owners_over_a_restart(tmp_path: Path) -> None:
    state = Database.open(tmp_path / "leaderboard.sqlite", DATABASE_FORMAT, lambda: NOW)
    spec = resolve(given_spec())
    for name, owner, namespace in (("old-abcdef", "", ""), ("new-abcdef", "alice", "vision")):
        request = board_pb.GenerateAgentRequest(request_id=f"{name}-a0", tournament_id=name, spec=spec)
        request.owner, request.namespace = owner, namespace
        await Generator(state).generate(request)
    await state.transact(lambda transaction: transaction.execute("DELETE FROM owners WHERE owner != 'alice'"))
    owners = await TournamentOwners.load(state)
    assert owners.ownership_of("new-abcdef") == Ownership("alice", "vision")
    assert owners.ownership_of("old-abcdef") == Ownership(local_user().name)
    assert owners.ownership_of("missing") is None
    state.close()
