"""Every method of every service, called by every role on a port of a live server, on own and on foreign resources.

The table is written here by hand, and not read from the contracts: who may call a method changes in two places or not
at all. Before there were rules, every cell of it was allowed.
"""

import importlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from leaderboard.store.owners import TournamentOwners
from orchestrator.tournaments.queries import SCOPED_METHODS as SCOPED_BY_ORCHESTRATOR
from podrace import rpc
from podrace.access.authenticators.pod_key import PodKeyAuthenticator
from podrace.access.authenticators.signed import SignedTokenAuthenticator
from podrace.access.authenticators.unix_socket import UnixSocketAuthenticator
from podrace.access.guard import Guard
from podrace.access.mesh_key import MeshKey, make_pem
from podrace.access.ownership import Ownership
from podrace.access.principal import ROLES_BY_NAME
from podrace.access.tokens import AUDIENCE, claims_of
from podrace.errors import Unimplemented

FILES = {
    name: name for name in ("orchestrator", "leaderboard", "agentpod", "evolution", "simulator", "tensor", "discovery")
}
FILES |= {"store": "checkpoint", "delivery": "checkpoint", "policy_service": "policy"}
"""Packages of the files with services."""
FOLDERS = {name: f"podrace.{package}.v1" for name, package in FILES.items()} | {
    "open_inference": "podrace.inference.v2"
}
MODULES = {name: importlib.import_module(f"{folder}.{name}_pb2") for name, folder in FOLDERS.items()}
GRPC = {name: importlib.import_module(f"{folder}.{name}_pb2_grpc") for name, folder in FOLDERS.items()}
SERVICES: dict[str, tuple[ServiceDescriptor, Any]] = {
    service.name: (service, GRPC[name])
    for name, module in MODULES.items()
    for service in module.DESCRIPTOR.services_by_name.values()
}

READERS = {"viewer", "user", "operator", "policy-server"}
WRITERS = {"user", "operator"}
POD = {"pod-leader", "pod-role"}
MATRIX: dict[str, dict[str, tuple[set[str], str]]] = {
    "OrchestratorService": {
        "CreateTournament": (WRITERS, ""),
        "GetTournament": (READERS, "tournament_id"),
        "ListTournaments": (READERS, ""),
        "WatchTournament": (READERS, "tournament_id"),
        "UpdateTournament": (WRITERS, "tournament_id"),
        "CancelTournament": (WRITERS, "tournament_id"),
        "PauseTournament": (WRITERS, "tournament_id"),
        "ResumeTournament": (WRITERS, "tournament_id"),
        "DeleteTournament": (WRITERS, "tournament_id"),
        "CreateEvaluation": (WRITERS | {"policy-server"}, "tournament_id"),
        "GetEvaluation": (READERS, "evaluation_id"),
        "WaitEvaluation": (READERS, "evaluation_id"),
        "CancelEvaluation": (WRITERS | {"policy-server"}, "evaluation_id"),
        "ListEvaluations": (READERS, "tournament_id"),
        "ListPods": (READERS, "tournament_id"),
        "ListEvents": (READERS, "tournament_id"),
        "AcquireAssignment": ({"pod-leader"}, "pod_id"),
        "RenewAssignment": ({"pod-leader"}, "assignment_id"),
        "CompleteAssignment": ({"pod-leader"}, "assignment_id"),
        "BackUp": ({"operator"}, ""),
    },
    "DiscoveryService": dict.fromkeys(
        ("GetServer", "ListAlgorithms", "ListSimulators", "ListStrategies", "ListEventKinds", "GetCaller"),
        (READERS, ""),
    ),
    "LeaderboardService": {
        "GetAgent": (READERS, "agent_id"),
        "ListCandidates": (READERS | {"orchestrator"}, "tournament_id"),
        "GetLineage": (READERS | {"orchestrator"}, "agent_id"),
        "WatchCandidates": (READERS, "tournament_id"),
        "GetStatistics": (READERS, "tournament_id"),
        "ReplayTournament": (WRITERS, "tournament_id"),
        "NameChampion": ({"orchestrator"}, "tournament_id"),
        "ListSnapshots": (READERS, "tournament_id"),
    },
    "UpdaterService": {
        "SubmitCandidate": ({"pod-leader"}, "checkpoint.agent_id"),
        "PlanEvaluation": ({"pod-leader"}, "agent_id"),
        "ListExperience": ({"pod-leader"}, "agent_id"),
        "SubmitSnapshot": ({"pod-leader"}, "checkpoint.agent_id"),
        "SnapshotChampion": ({"orchestrator"}, "tournament_id"),
        "RecordVerification": ({"orchestrator"}, "tournament_id"),
        "RegisterTournaments": ({"orchestrator"}, ""),
        "ArchiveTournament": ({"orchestrator"}, ""),
        "DeleteTournament": ({"orchestrator"}, "tournament_id"),
        "ListKnownTournaments": ({"orchestrator"}, ""),
        "BackUp": ({"orchestrator"}, ""),
    },
    "GeneratorService": {
        "GenerateAgent": ({"orchestrator"}, "tournament_id"),
        "ReviewAgents": ({"orchestrator"}, "tournament_id"),
    },
    "EvolutionService": {
        "ProposeAgent": ({"leaderboard"}, "tournament_id"),
        "JudgeCandidate": ({"leaderboard"}, "tournament_id"),
    },
    "WorkerService": dict.fromkeys(("OpenWorker", "CollectRollout", "GetWorker", "CloseWorker"), (POD, "pod")),
    "EvaluatorService": {
        name: ({"pod-leader"}, "pod") for name in ("OpenEvaluator", "EvaluatePolicy", "GetEvaluator", "CloseEvaluator")
    },
    "LearnerService": {
        "GetLearner": (POD | {"operator"}, "pod"),
        "GetTraining": ({"pod-role"}, "pod"),
        "JoinFusion": ({"pod-role"}, "pod"),
        "CommitFusion": ({"pod-role"}, "pod"),
    },
    "TensorService": {"ReadTensors": (POD | {"plugin"}, "pod"), "WriteTensors": (POD, "pod")},
    "TransferService": dict.fromkeys(("JoinTransfer", "SendTensors", "ReceiveTensors"), (POD, "pod")),
    "StoreService": {
        "GetPointer": ({"pod-leader"}, "agent_id"),
        "SwapPointer": ({"pod-leader"}, "agent_id"),
        "GrantUploads": ({"pod-leader"}, "agent_id"),
        "GrantReads": ({"pod-leader"}, "tournament_id"),
        "RenewObjects": ({"pod-leader"}, "agent_id"),
        "ListBackupPointers": ({"orchestrator"}, ""),
        "SwapBackupPointer": ({"orchestrator"}, ""),
        "GrantBackupTransfers": ({"orchestrator"}, ""),
    },
    "CheckpointService": dict.fromkeys(("GetManifest", "ListParts", "ReadPart"), (READERS, "tournament_id")),
    "PolicyService": dict.fromkeys(("DescribePolicy", "Act", "EndSession", "GetServing"), (READERS, ""))
    | dict.fromkeys(("PinVersion", "FollowSource", "RollBack", "StartComparison", "EndComparison"), ({"operator"}, "")),
    "GRPCInferenceService": dict.fromkeys(
        ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer"), (READERS, "")
    ),
    "SimulatorService": dict.fromkeys(("GetSimulator", "StreamSteps"), (POD | WRITERS, "")),
}
"""Roles that may call each method, and the field that names what the call concerns; `pod`: the pod that serves it."""
METHODS = [(service, method) for service, methods in MATRIX.items() for method in methods]

OWN = {"tournament_id": "t", "agent_id": "t-a1", "evaluation_id": "t-e1", "assignment_id": "t-a1.1", "pod_id": "t-p1"}
FOREIGN = {field: f"u{value[1:]}" for field, value in OWN.items()}
SCOPED = SCOPED_BY_ORCHESTRATOR
"""Methods that are reached whatever the tournament; test_owners tries what they answer."""
OWNERS = {"t": Ownership("user", "lab"), "u": Ownership("outsider"), "v": Ownership("colleague", "lab")}
"""The owners of the tournaments: `t` is in the callers' namespace and owned by the role `user`, `u` is foreign."""
PEOPLE = {"viewer", "user"}
"""Roles of callers that depend on the owner of a tournament."""
HOLDERS = {"t-a1.1": "t-p1", "t-a2.1": "t-p2", "u-a1.1": "u-p1"}
NOW, LATER = 1_800_000_000.0, 1_800_000_600.0
REACHED = "the method was reached"
KEY = MeshKey(make_pem(), lambda: NOW)
OTHER_MESH = MeshKey(make_pem(), lambda: NOW)
POD_KEY = "the key that the hosts of a pod share"

OK, DENIED, HIDDEN, UNKNOWN = (
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAUTHENTICATED,
)


def token_of(role: str, pod: str = "t-p1", key: MeshKey = KEY, **changes: Any) -> str:
    """A token of a role; that of a pod is bound to the pod and its tournament."""
    person = {"name": role, "namespace": "" if role == "policy-server" else "lab"}
    bound = {"name": f"pod/{pod}", "tournament_id": pod.rpartition("-")[0]} if role in POD else person
    return key.sign(claims_of(**{**bound, "roles": {ROLES_BY_NAME[role]}, "expire_time": LATER, **changes}))


def stand_in(service: ServiceDescriptor) -> object:
    """A servicer whose methods all raise UNIMPLEMENTED with a message: reaching one proves that access was granted."""

    async def unary(self: object, request: Any, context: Any) -> Any:
        raise Unimplemented(REACHED)

    async def stream(self: object, request: Any, context: Any) -> AsyncIterator[Any]:
        raise Unimplemented(REACHED)
        yield

    methods = {method.name: stream if method.server_streaming else unary for method in service.methods}
    return type(f"StandIn{service.name}", (), methods)()


@pytest.fixture
async def server() -> AsyncIterator[rpc.Server]:
    """All services on a port, with the authenticators of services and of pods."""
    authenticators = [
        UnixSocketAuthenticator(),
        SignedTokenAuthenticator(KEY.public, [AUDIENCE]),
        PodKeyAuthenticator(POD_KEY, "t-p1"),
    ]
    guard = Guard(
        authenticators,
        pod_id="t-p1",
        holder_of=lambda name: HOLDERS.get(name, ""),
        owners=TournamentOwners(OWNERS),
        scoped=SCOPED,
        now=lambda: NOW,
    )
    served = [
        rpc.Service(service, getattr(module, f"add_{service.name}Servicer_to_server"), stand_in(service))
        for service, module in SERVICES.values()
    ]
    started = await rpc.Server.start(rpc.ServerConfig(grace_seconds=0.0), served, guard=guard)
    yield started
    await started.drain()


def request_of(method: MethodDescriptor, path: str, ids: dict[str, str]) -> Any:
    """A valid request that names one of these ids."""
    request = message_factory.GetMessageClass(method.input_type)()
    # What a request must have besides.
    others = {"request_id": "r", "tournament_id": ids["tournament_id"], "manifest_digest": "0" * 64}
    others |= dict.fromkeys(("digest", "version", "from_version"), others["manifest_digest"])
    others |= {"session_id": "s", "name": "main", "pointer_id": "p"}
    for name in others.keys() & method.input_type.fields_by_name.keys():
        setattr(request, name, others[name])
    if "episodes" in method.input_type.fields_by_name:
        request.episodes = 1
    if "observations" in method.input_type.fields_by_name:
        request.observations = b"1"
    if "pointer" in method.input_type.fields_by_name:
        request.pointer.SetInParent()
    if path and path != "pod":
        *parents, last = path.split(".")
        part = request
        for parent in parents:
            part = getattr(part, parent)
        setattr(part, last, ids[last])
    return request


async def answer(address: str, service: str, method: str, token: str, ids: dict[str, str]) -> grpc.StatusCode:
    """Makes a call, and returns its status; a granted one is UNIMPLEMENTED.

    A client that still writes to a stream when the server has ended it may see INTERNAL from its own library instead of
    the status; then the call is repeated.
    """
    for _ in range(5):
        code = await _answer_once(address, service, method, token, ids)
        if code != grpc.StatusCode.INTERNAL:
            break
    return code


async def _answer_once(address: str, service: str, method: str, token: str, ids: dict[str, str]) -> grpc.StatusCode:
    described = SERVICES[service][0].methods_by_name[method]
    request = request_of(described, MATRIX[service][method][1], ids)
    response = message_factory.GetMessageClass(described.output_type)
    kind = "_".join("stream" if many else "unary" for many in (described.client_streaming, described.server_streaming))
    async with rpc.connect(address, token=lambda: token) as channel:
        call = getattr(channel, kind)(
            f"/{described.containing_service.full_name}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )(iter([request]) if described.client_streaming else request, timeout=10.0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (call.read() if described.server_streaming else call)
    assert (caught.value.code() == OK) == (caught.value.details() == REACHED), caught.value.details()
    return caught.value.code()


def foreign_code(role: str, path: str, method: str) -> grpc.StatusCode:
    """What a caller gets for something of a foreign tournament: as if it did not exist; to act for a pod is refused."""
    if role in PEOPLE and path not in ("", "pod", "pod_id", "assignment_id"):
        return OK if method in SCOPED else HIDDEN
    if role not in POD or not path:
        return OK
    return DENIED if path in ("pod", "pod_id") else HIDDEN


def test_the_matrix_has_every_method_of_every_service():
    assert {(service.name, method.name) for service, _ in SERVICES.values() for method in service.methods} == set(
        METHODS
    )


@pytest.mark.parametrize(("service", "method"), METHODS)
async def test_only_the_roles_of_the_table_may_call_a_method(server: rpc.Server, service: str, method: str) -> None:
    allowed, path = MATRIX[service][method]
    found, expected = {}, {}
    for role in ROLES_BY_NAME:
        granted = role in allowed
        found[role] = await answer(server.address, service, method, token_of(role), OWN)
        expected[role] = OK if granted else DENIED
        if role in POD and path == "pod":
            # Another pod calls the pod that serves the method.
            found[f"{role} of another pod"] = await answer(server.address, service, method, token_of(role, "u-p1"), OWN)
        else:
            found[f"{role} of another pod"] = await answer(server.address, service, method, token_of(role), FOREIGN)
        full_name = f"/{SERVICES[service][0].full_name}/{method}"
        expected[f"{role} of another pod"] = foreign_code(role, path, full_name) if granted else DENIED
    assert found == expected


@pytest.mark.parametrize(("service", "method"), METHODS)
async def test_a_member_of_the_namespace_may_read_a_tournament_and_not_change_it(
    server: rpc.Server, service: str, method: str
) -> None:
    allowed, path = MATRIX[service][method]
    if "user" not in allowed or path in ("", "pod"):
        return
    described = SERVICES[service][0].methods_by_name[method]
    reads = described.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS
    of_colleague = {field: f"v{value[1:]}" for field, value in OWN.items()}
    found = {role: await answer(server.address, service, method, token_of(role), of_colleague) for role in allowed}
    expected = {role: OK if reads or role not in PEOPLE else DENIED for role in allowed}
    assert found == expected


@pytest.mark.parametrize(("service", "method"), METHODS)
async def test_a_method_answers_no_caller_without_valid_credentials(
    server: rpc.Server, service: str, method: str
) -> None:
    allowed, _ = MATRIX[service][method]
    role = sorted(allowed)[0]
    tokens = {
        "none": "",
        "guess": "guess",
        "expired": token_of(role, expire_time=NOW - 60.0),
        "of another audience": token_of(role, audience="grpc://127.0.0.1:1"),
        "of another mesh": token_of(role, key=OTHER_MESH),
        "cut": token_of(role)[:-4],
    }
    found = {name: await answer(server.address, service, method, token, OWN) for name, token in tokens.items()}
    assert found == dict.fromkeys(tokens, UNKNOWN)


@pytest.mark.parametrize(("service", "method"), METHODS)
async def test_the_key_of_a_pod_opens_only_what_its_roles_may_call(
    server: rpc.Server, service: str, method: str
) -> None:
    allowed, _ = MATRIX[service][method]
    found = await answer(server.address, service, method, POD_KEY, OWN)
    assert found == (OK if "pod-role" in allowed else DENIED)


@pytest.mark.parametrize("method", ["RenewAssignment", "CompleteAssignment"])
async def test_the_assignment_of_another_pod_of_the_same_tournament_looks_like_none(
    server: rpc.Server, method: str
) -> None:
    other = OWN | {"assignment_id": "t-a2.1"}
    assert await answer(server.address, "OrchestratorService", method, token_of("pod-leader"), other) == HIDDEN
    # That of an earlier epoch is no longer held: the service answers that it is outdated.
    stale = OWN | {"assignment_id": "t-a1.0"}
    assert await answer(server.address, "OrchestratorService", method, token_of("pod-leader"), stale) == OK
