"""Only the pod that holds an assignment can renew it, complete it, or submit under it.

Before, the id of an assignment was the id of the agent and the epoch: a caller that sent `<tournament>-a0.1` with
epoch 1 completed the assignment of another pod as SPEC_FAILED, and the tournament failed.
"""

import importlib.util
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from leaderboard.generator import Generator
from leaderboard.service import services
from leaderboard.snapshots import SnapshotRecorder
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.store_access.access import StoreAccess
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from podrace import rpc
from podrace.access.guard import Guard
from podrace.access.lease_tokens import LEASE_TOKEN_SECONDS, HeldLease, LeaseTokens, LeaseVerifier, claims_of
from podrace.access.mesh_key import MeshKey, make_pem
from podrace.access.principal import Principal
from podrace.access.tokens import pod_token
from podrace.checkpoint.v1 import checkpoint_pb2, store_pb2, store_pb2_grpc
from podrace.checkpoint_store.folder import FolderStore
from podrace.database import Database
from podrace.errors import FailedPrecondition, NotFound, PermissionDenied, Unauthenticated
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

CONFTEST = Path(__file__).parents[1] / "integration" / "orchestrator" / "conftest.py"
_found = importlib.util.spec_from_file_location("orchestrator_mesh", CONFTEST)
assert _found
assert _found.loader
_mesh = importlib.util.module_from_spec(_found)
_found.loader.exec_module(_mesh)
clock, spec, open_mesh = _mesh.clock, _mesh.spec, _mesh.open_mesh

LEASE = HeldLease("t-a0.1", "t", "t-a0", 1, "t-p0")


@dataclass
class Now:
    seconds: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture(scope="module")
def pem() -> bytes:
    return make_pem()


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def key(pem: bytes, now: Now) -> MeshKey:
    return MeshKey(pem, now)


@pytest.fixture
async def mesh(open_mesh: Any, key: MeshKey, now: Now) -> AsyncIterator[Any]:
    async with open_mesh(lease_tokens=LeaseTokens(key, now)) as opened:
        yield opened


# --- the orchestrator --------------------------------------------------------------------------------------------


async def two_pods(mesh: Any, spec: Any) -> tuple[pb.Assignment, pb.Assignment]:
    name = await mesh.create(spec(minimum_pods=2))
    await mesh.cycle()
    return await mesh.assigned(f"{name}-p0"), await mesh.assigned(f"{name}-p1")


def with_token(assignment: pb.Assignment, token: str) -> pb.Assignment:
    changed = pb.Assignment()
    changed.CopyFrom(assignment)
    changed.lease_token = token
    return changed


async def test_only_the_holder_can_complete_an_assignment_and_fail_its_tournament(mesh: Any, spec: Any) -> None:
    held, other = await two_pods(mesh, spec)
    for token, problem in [
        ("", "is missing"),
        ("guess", "is not valid"),
        (other.lease_token, "belongs to another assignment"),
    ]:
        with pytest.raises(PermissionDenied, match=f"CompleteAssignment: lease_token: .*{problem}"):
            await mesh.complete(with_token(held, token), pb.OUTCOME_SPEC_FAILED, message="bad")
    assert "tournament_failed" not in await mesh.kinds(held.tournament_id)
    await mesh.complete(held)
    assert "agent_finished" in await mesh.kinds(held.tournament_id)


async def test_only_the_holder_can_keep_a_lease_alive_and_report_progress(mesh: Any, spec: Any) -> None:
    held, other = await two_pods(mesh, spec)
    for token in ("", "guess", other.lease_token):
        with pytest.raises(PermissionDenied, match="RenewAssignment: lease_token"):
            await mesh.renew(with_token(held, token), environment_steps=10**9)
    assert (await mesh.get(held.tournament_id)).environment_steps == 0
    assert (await mesh.renew(held, environment_steps=5)).directive == pb.DIRECTIVE_CONTINUE


async def test_without_a_token_an_assignment_that_exists_and_one_that_does_not_answer_alike(
    mesh: Any, spec: Any
) -> None:
    held, _ = await two_pods(mesh, spec)
    absent = pb.Assignment(assignment_id=f"{held.tournament_id}-a99.1", lease_epoch=1)
    errors = []
    for assignment in (with_token(held, ""), absent):
        with pytest.raises(PermissionDenied) as refused:
            await mesh.renew(assignment)
        errors.append(refused.value.message)
    assert errors[0] == errors[1]


async def test_the_token_of_an_earlier_epoch_is_stale_and_useless_for_the_next(mesh: Any, spec: Any) -> None:
    held, _ = await two_pods(mesh, spec)
    await mesh.complete(held, pb.OUTCOME_DRAINED)
    again = await mesh.assigned(f"{held.tournament_id}-p0")
    assert again.lease_epoch == 2
    with pytest.raises(FailedPrecondition, match="lease epoch 2"):
        await mesh.renew(held)
    with pytest.raises(PermissionDenied, match="belongs to another assignment"):
        await mesh.renew(with_token(again, held.lease_token))
    forged = with_token(again, held.lease_token)
    forged.assignment_id = held.assignment_id
    with pytest.raises(PermissionDenied, match="belongs to another lease epoch"):
        await mesh.renew(forged)


async def test_a_repeated_request_and_a_restarted_orchestrator_accept_the_token(
    mesh: Any, spec: Any, key: MeshKey, now: Now
) -> None:
    held, _ = await two_pods(mesh, spec)
    assert (await mesh.assigned(f"{held.tournament_id}-p0")).lease_token == held.lease_token
    mesh.servicer._lease_tokens = LeaseTokens(key, now)
    assert (await mesh.renew(held)).directive == pb.DIRECTIVE_CONTINUE
    with pytest.raises(PermissionDenied, match="is not valid"):
        await mesh.renew(with_token(held, held.lease_token[:-8] + "AAAAAAAA"))


async def test_a_token_is_renewed_with_the_lease_before_it_expires_and_refused_after(
    mesh: Any, spec: Any, now: Now
) -> None:
    held, _ = await two_pods(mesh, spec)
    assert (await mesh.renew(held)).lease_token == ""
    now.seconds += LEASE_TOKEN_SECONDS / 2 + 1
    renewed = (await mesh.renew(held)).lease_token
    assert renewed not in ("", held.lease_token)
    assert (await mesh.renew(with_token(held, renewed))).lease_token == ""
    assert (await mesh.renew(held)).lease_token == renewed, "the answer with the new token may be lost"
    now.seconds += LEASE_TOKEN_SECONDS / 2 + 10.0
    with pytest.raises(PermissionDenied, match="is not valid, or has expired"):
        await mesh.renew(held)
    assert (await mesh.renew(with_token(held, renewed))).directive == pb.DIRECTIVE_CONTINUE


async def test_without_a_key_no_token_is_made_or_required(open_mesh: Any, spec: Any) -> None:
    async with open_mesh() as mesh:
        held, _ = await two_pods(mesh, spec)
        assert held.lease_token == ""
        await mesh.renew(held)
        await mesh.complete(held)


# --- tokens ------------------------------------------------------------------------------------------------------


def signed(key: MeshKey, expire_time: float, **changes: Any) -> str:
    return key.sign(claims_of(replace(LEASE, **changes), expire_time))


def test_the_leaderboard_accepts_the_token_of_the_lease_and_no_other(key: MeshKey, now: Now) -> None:
    verifier = LeaseVerifier(key.public, now)
    later = now() + 60.0
    right = {"work_id": "t-a0", "lease_epoch": 1}
    verifier.check("SubmitCandidate", signed(key, later), None, **right)
    other_key = MeshKey(make_pem(), now)
    for token, problem in [
        ("", "is missing"),
        ("a.b.c", "is not valid"),
        (signed(key, now() - 60.0), "is not valid, or has expired"),
        (signed(other_key, later), "is not valid"),
        (signed(key, later, work_id="t-a1"), "belongs to another agent or evaluation"),
        (signed(key, later, work_id="u-a0", tournament_id="u"), "belongs to another agent or evaluation"),
        (signed(key, later, lease_epoch=2), "belongs to another lease epoch"),
        (key.sign(claims_of(LEASE, later) | {"aud": "podrace"}), "is not valid"),
        (pod_token(key, "t-p0", "t", later), "is not valid"),
    ]:
        with pytest.raises(PermissionDenied, match=f"SubmitCandidate: lease_token: .*{problem}"):
            verifier.check("SubmitCandidate", token, None, **right)


def test_a_stolen_token_is_useless_for_a_pod_with_its_own_identity(key: MeshKey, now: Now) -> None:
    token = signed(key, now() + 60.0)
    holder, thief = (Principal(f"pod/{name}", frozenset(), pod_id=name) for name in ("t-p0", "t-p7"))
    verifier, tokens = LeaseVerifier(key.public, now), LeaseTokens(key, now)
    issued = tokens.of(LEASE)
    verifier.check("SubmitCandidate", token, holder, work_id="t-a0")
    tokens.check("RenewAssignment", issued, holder, "t-a0.1", 1)
    with pytest.raises(PermissionDenied, match="was given to another pod"):
        verifier.check("SubmitCandidate", token, thief, work_id="t-a0")
    with pytest.raises(PermissionDenied, match="was given to another pod"):
        tokens.check("RenewAssignment", issued, thief, "t-a0.1", 1)


def test_a_token_that_was_accepted_before_is_refused_once_it_has_expired(key: MeshKey, now: Now) -> None:
    verifier, token = LeaseVerifier(key.public, now), signed(key, now() + 60.0)
    verifier.check("SubmitCandidate", token, None, work_id="t-a0")
    now.seconds += 120.0
    with pytest.raises(PermissionDenied, match="has expired"):
        verifier.check("SubmitCandidate", token, None, work_id="t-a0")


def test_the_token_of_a_lease_does_not_identify_a_caller(key: MeshKey, now: Now) -> None:
    with pytest.raises(Unauthenticated):
        key.public.verify(signed(key, now() + 60.0), audience="podrace")


# --- the leaderboard ---------------------------------------------------------------------------------------------


async def test_submissions_plans_snapshots_and_transfers_without_the_right_token_are_refused(
    tmp_path: Path, key: MeshKey, now: Now
) -> None:
    state = Database.open(tmp_path / "l.sqlite", DATABASE_FORMAT, time.time)
    store, watch = FolderStore(tmp_path / "store"), SubmissionWatch()
    updater, snapshots = Updater(state, store, watch), SnapshotRecorder(state, store)
    stores = StoreAccess(state, store, renew_after_seconds=60.0)
    served = services(state, watch, updater, Generator(state), snapshots, stores, LeaseVerifier(key.public, now))
    config = rpc.ServerConfig(listen="127.0.0.1:0", grace_seconds=0.0, drain_seconds=0.0)
    server = await rpc.Server.start(config, served, guard=Guard.of_anyone())
    checkpoint = {"agent_id": "t-a0", "manifest_digest": "ab" * 32}
    requests = {
        "SubmitCandidate": leaderboard_pb2.SubmitCandidateRequest(request_id="r", checkpoint=checkpoint, lease_epoch=1),
        "PlanEvaluation": leaderboard_pb2.PlanEvaluationRequest(agent_id="t-a0"),
        "ListExperience": leaderboard_pb2.ListExperienceRequest(agent_id="t-a0"),
        "SubmitSnapshot": leaderboard_pb2.SubmitSnapshotRequest(
            request_id="r", checkpoint=checkpoint, lease_epoch=1, number=1
        ),
    }
    held = {"tournament_id": "t", "agent_id": "t-a0", "lease_epoch": 1}
    transfers = {
        "GetPointer": store_pb2.GetPointerRequest(**held),
        "SwapPointer": store_pb2.SwapPointerRequest(**held, pointer=checkpoint_pb2.Pointer(manifest_digest="ab" * 32)),
        "GrantUploads": store_pb2.GrantUploadsRequest(**held),
        "GrantReads": store_pb2.GrantReadsRequest(**held, manifest_digest="ab" * 32),
        "RenewObjects": store_pb2.RenewObjectsRequest(**held),
    }
    wrong = ["", "guess", signed(key, now() + 60.0, work_id="t-a1"), signed(key, now() - 60.0)]
    try:
        async with rpc.connect(server.address, leaderboard_pb2.DESCRIPTOR, store_pb2.DESCRIPTOR) as channel:
            stub: Any = leaderboard_pb2_grpc.UpdaterServiceStub(channel)
            transfer_stub: Any = store_pb2_grpc.StoreServiceStub(channel)
            for method, request in transfers.items():
                for token in [*wrong, signed(key, now() + 60.0, tournament_id="u")]:
                    request.lease_token = token
                    with pytest.raises(PermissionDenied, match=f"{method}: lease_token"):
                        await rpc.call(getattr(transfer_stub, method), request, deadline_seconds=5.0)
            for method, request in requests.items():
                for token in wrong:
                    request.lease_token = token
                    with pytest.raises(PermissionDenied, match=f"{method}: lease_token"):
                        await rpc.call(getattr(stub, method), request, deadline_seconds=5.0)
                request.lease_token = signed(key, now() + 60.0)
                with pytest.raises(NotFound, match="was never generated here"):
                    await rpc.call(getattr(stub, method), request, deadline_seconds=5.0)
    finally:
        await server.drain()
        await updater.close()
        snapshots.close()
        state.close()
