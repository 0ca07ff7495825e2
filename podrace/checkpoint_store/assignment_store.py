"""Gives an assignment its view of the checkpoint store: with the pod's own credentials, or by grants.

direct     The pod opens the store itself. It can read and write everything in it.
granted    The leaderboard swaps pointers, and signs a URL for each object (podrace.checkpoint_store.granted). The pod
           has no credentials. A folder has no permissions for single objects: only its pointers go through the
           leaderboard.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Protocol

from podrace.checkpoint.v1 import store_pb2_grpc
from podrace.checkpoint_store import DEADLINE_SECONDS, check_uri, open_store, require_minio
from podrace.checkpoint_store.granted import AssignmentClaim, GrantedObjects, GrantedStore, StoreClient
from podrace.checkpoint_store.store import CheckpointStore, ObjectStore
from podrace.errors import InvalidArgument
from podrace.orchestrator.v1.orchestrator_pb2 import Assignment
from podrace.specification.ancestor import tournament_of

DIRECT, GRANTED = "direct", "granted"
STORE_ACCESS = {
    DIRECT: "pods open the store with its credentials",
    GRANTED: "the leaderboard grants pods each transfer",
}
"""Ways in which pods access the store, with a help line."""


class AssignmentStores(Protocol):
    """Gives each assignment its view of the store: `store = stores.of(assignment)`."""

    def of(self, assignment: Assignment) -> CheckpointStore:
        """Returns the store as the pod that holds an assignment may use it."""
        ...


class DirectStores:
    """Gives each assignment the whole store, seen from its tournament."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def of(self, assignment: Assignment) -> CheckpointStore:
        """See AssignmentStores."""
        # The parent is an agent of another tournament if the tournament starts from that agent. An evaluation may be
        # that of another tournament's agent, for a comparison on the same episodes.
        evaluate = assignment.evaluate
        read = (assignment.train.starting_checkpoint, evaluate.checkpoint, *evaluate.members, *evaluate.opponents)
        others = dict.fromkeys(tournament_of(checkpoint.agent_id) for checkpoint in read if checkpoint.agent_id)
        return self._store.within(assignment.tournament_id, *others)


class GrantedStores:
    """Gives each assignment what the leaderboard grants."""

    def __init__(
        self,
        uri: str,
        stub: "store_pb2_grpc.StoreServiceAsyncStub",
        loop: asyncio.AbstractEventLoop,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Opens the store without credentials; sends no request yet.

        Args:
            uri: URI of the store. Its host must be the one that the leaderboard uses: signatures cover it.
            stub: Stub of the leaderboard's service.
            loop: The event loop of its channel.
            environ: Environment with the certificate authorities of the store.

        Raises:
            PodraceError: As podrace.checkpoint_store.open_store.
        """
        check_uri(uri)
        self._uri, self._stub, self._loop = uri, stub, loop
        self._objects = _opened(uri, environ)

    def of(self, assignment: Assignment) -> CheckpointStore:
        """See AssignmentStores."""
        claim = AssignmentClaim(
            assignment.tournament_id,
            assignment.train.agent_id,
            assignment.lease_epoch,
            # The pod replaces the token in this message when the lease is renewed.
            lambda: assignment.lease_token,
        )
        client = StoreClient(self._stub, self._loop, claim)
        return GrantedStore(client, self._objects(client, assignment), self._uri)


def _opened(uri: str, environ: Mapping[str, str]) -> Callable[[StoreClient, Assignment], ObjectStore]:
    """Opens the store; the result makes the objects of an assignment."""
    if not uri.startswith("minio"):
        direct = DirectStores(open_store(uri))
        return lambda _, assignment: direct.of(assignment)
    require_minio(uri)
    from podrace.checkpoint_store.minio_address import parse_address, read_ca_file
    from podrace.checkpoint_store.minio_connection import open_connections
    from podrace.checkpoint_store.minio_retries import RetryPolicy
    from podrace.checkpoint_store.presigned import Requests

    address = parse_address(uri)
    connections = open_connections(address, read_ca_file(address, environ))
    requests = Requests(address, connections, RetryPolicy(DEADLINE_SECONDS))
    return lambda client, _: GrantedObjects(client, requests, uri)


def check_store_access(value: str, key: str = "store_access") -> None:
    """Checks the name of a way to access the store.

    Raises:
        InvalidArgument: It is unknown.
    """
    if value not in STORE_ACCESS:
        raise InvalidArgument(f"{key} = {value!r}: known are: {', '.join(STORE_ACCESS)}")
