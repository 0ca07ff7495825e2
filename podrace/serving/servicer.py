"""Translates between PolicyService and the engine; decides nothing."""

import asyncio
import math
from typing import Any

import grpc.aio
import numpy as np
from numpy.typing import NDArray

from podrace.access.ownership import is_restricted, ownership_for
from podrace.access.principal import current_principal
from podrace.errors import InvalidArgument, PodraceError
from podrace.policy.agents import AGENT
from podrace.policy.v1 import policy_service_pb2 as pb
from podrace.policy.v1 import policy_service_pb2_grpc as pb_grpc
from podrace.rpc import Service
from podrace.serving import metrics
from podrace.serving.engine import ActInput, PolicyEngine
from podrace.serving.follower import model_of
from podrace.serving.policy_version import PolicyVersion
from podrace.serving.sources import PolicySource

Context = grpc.aio.ServicerContext[Any, Any]


def policy_service(engine: PolicyEngine, source: PolicySource) -> Service:
    """Returns the service to serve."""
    contract = pb.DESCRIPTOR.services_by_name["PolicyService"]
    return Service(contract, pb_grpc.add_PolicyServiceServicer_to_server, PolicyServicer(engine, source))


class PolicyServicer(pb_grpc.PolicyServiceServicer):
    """Acts and changes versions; the contract describes the methods."""

    def __init__(self, engine: PolicyEngine, source: PolicySource) -> None:
        self._engine, self._source = engine, source

    async def DescribePolicy(self, request: pb.DescribePolicyRequest, context: Context) -> pb.DescribePolicyResponse:
        """Describes a version; see the contract."""
        policy = self._engine.policy(request.version) if request.version else self._engine.current
        return pb.DescribePolicyResponse(policy=version_message(policy))

    async def Act(self, request: pb.ActRequest, context: Context) -> pb.ActResponse:
        """Acts; see the contract."""
        try:
            response = await self._act(request, context)
        except PodraceError as error:
            metrics.REQUESTS.labels("policy", error.code).inc()
            raise
        metrics.REQUESTS.labels("policy", "OK").inc()
        return response

    async def _act(self, request: pb.ActRequest, context: Context) -> pb.ActResponse:
        if request.version and request.session_id:
            raise InvalidArgument("version: a session has its own; leave one of the two out")
        policy = self._engine.current
        observation = policy.observations(request.observations)
        policy.check_answer(len(observation), states=not request.session_id)
        acted = await self._engine.act(
            ActInput(
                observation,
                session_key(request.session_id),
                _begins(request, len(observation)),
                state_of(request.state, len(observation)) if request.state else None,
                _sampler(request),
                request.version,
                deadline_of(context),
                session_owner(),
            )
        )
        response = pb.ActResponse(actions=wire_bytes(acted.action), version=acted.version)
        if not request.session_id and acted.next_state.size:
            response.next_state = wire_bytes(acted.next_state)
        return response

    async def EndSession(self, request: pb.EndSessionRequest, context: Context) -> pb.EndSessionResponse:
        """Ends a session; see the contract."""
        self._engine.end_session(session_key(request.session_id))
        return pb.EndSessionResponse()

    async def GetServing(self, request: pb.GetServingRequest, context: Context) -> pb.GetServingResponse:
        """Returns which versions serve; see the contract."""
        return pb.GetServingResponse(serving=self._serving())

    async def PinVersion(self, request: pb.PinVersionRequest, context: Context) -> pb.PinVersionResponse:
        """Pins a version; see the contract."""
        model = await model_of(self._engine, self._source, request.version)
        await self._engine.pin(model, request.version)
        return pb.PinVersionResponse(serving=self._serving())

    async def FollowSource(self, request: pb.FollowSourceRequest, context: Context) -> pb.FollowSourceResponse:
        """Ends a pin; see the contract."""
        self._engine.follow()
        return pb.FollowSourceResponse(serving=self._serving())

    async def RollBack(self, request: pb.RollBackRequest, context: Context) -> pb.RollBackResponse:
        """Serves the previous version; see the contract."""
        self._engine.roll_back(request.from_version)
        return pb.RollBackResponse(serving=self._serving())

    async def StartComparison(self, request: pb.StartComparisonRequest, context: Context) -> pb.StartComparisonResponse:
        """Adds a second version; see the contract."""
        model = await model_of(self._engine, self._source, request.version)
        await self._engine.compare(model, request.version, share=request.share, shadow=request.shadow)
        return pb.StartComparisonResponse(serving=self._serving())

    async def EndComparison(self, request: pb.EndComparisonRequest, context: Context) -> pb.EndComparisonResponse:
        """Removes the second version; see the contract."""
        self._engine.end_comparison()
        return pb.EndComparisonResponse(serving=self._serving())

    def _serving(self) -> pb.Serving:
        record = self._engine.record
        found = pb.Serving(
            version=record.current,
            pinned=record.pinned,
            previous_versions=record.previous,
            refused=[pb.RefusedVersion(version=one, reason=why) for one, why in record.refused.items()],
            source=self._source.description,
        )
        if record.comparison:
            found.comparison.version, found.comparison.share = record.comparison.version, record.comparison.share
            found.comparison.shadow = record.comparison.shadow
        return found


def version_message(policy: PolicyVersion) -> pb.PolicyVersion:
    """Describes a version."""
    members = [
        pb.PolicyMember(
            manifest_digest=member.manifest_digest,
            tournament_id=member.tournament_id,
            agent_id=member.agent_id,
            algorithm=member.algorithm,
            policies={AGENT: member.description},
        )
        for member in policy.members
    ]
    return pb.PolicyVersion(
        version=policy.version, members=members, state_size=policy.state_size, samples=policy.samples
    )


def session_key(session_id: str) -> str:
    """Returns the key of a session of the caller; callers do not reach sessions of others."""
    if not session_id:
        return ""
    principal = current_principal()
    owned = ownership_for(principal) if principal else None
    # Names and ids may contain any character, so they are quoted.
    return repr((owned.namespace, owned.owner, session_id) if owned else ("", "", session_id))


def session_owner() -> str:
    """Returns whose sessions the caller's are, for their limits; empty if they are not limited."""
    principal = current_principal()
    return ownership_for(principal).display_name if principal and is_restricted(principal) else ""


def state_of(data: bytes, lanes: int) -> NDArray[np.float32]:
    """Returns recurrent states [N, S].

    Raises:
        InvalidArgument: The bytes are not N states.
    """
    if len(data) % (4 * lanes):
        raise InvalidArgument(f"state: {len(data)} bytes are not {lanes} states of float32")
    return np.frombuffer(data, np.dtype("<f4")).reshape(lanes, -1)


def wire_bytes(array: NDArray[Any]) -> bytes:
    """Returns the elements of an array in C order, little-endian."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def deadline_of(context: Context) -> float:
    """Returns when the caller stops waiting, on the clock of the event loop."""
    left: float | None = context.time_remaining()
    return math.inf if left is None else asyncio.get_running_loop().time() + left


def _begins(request: pb.ActRequest, lanes: int) -> NDArray[np.bool_] | None:
    if not request.begin and not request.begin_lanes:
        return None
    begins = np.full(lanes, request.begin)
    numbers = list(request.begin_lanes)
    if numbers and max(numbers) >= lanes:
        raise InvalidArgument(f"begin_lanes = {max(numbers)}: there are {lanes} observations")
    begins[numbers] = True
    return begins


def _sampler(request: pb.ActRequest) -> np.random.Generator | None:
    if request.mode not in pb.ActionMode.values():
        raise InvalidArgument(f"mode = {request.mode}: this server does not know it; known: 0, 1 (greedy), 2 (sampled)")
    if request.mode != pb.ACTION_MODE_SAMPLED:
        return None
    return np.random.default_rng(request.seed if request.HasField("seed") else None)
