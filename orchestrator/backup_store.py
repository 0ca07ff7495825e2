"""Gives the orchestrator the checkpoint store for its backups: by grants of the leaderboard if it has no keys."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.message import Message

from podrace import rpc
from podrace.access.credentials import TokenSource
from podrace.backup.database import OpenStore
from podrace.backup.granted import GrantedBackupStore
from podrace.checkpoint.v1 import store_pb2, store_pb2_grpc


@contextlib.asynccontextmanager
async def granted_store(leaderboard: str, store: str, name: str, token: TokenSource | None) -> AsyncIterator[OpenStore]:
    """Yields what opens the store, in any thread but that of the event loop, while the block runs.

    Args:
        leaderboard: Address of the leaderboard.
        store: URI of the checkpoint store.
        name: `backup.name`.
        token: Identifies the orchestrator; None: the connection does.
    """
    loop = asyncio.get_running_loop()
    async with rpc.connect(leaderboard, store_pb2.DESCRIPTOR, token=token) as channel:
        stub: Any = store_pb2_grpc.StoreServiceStub(channel)

        def open_store(deadline_seconds: float) -> GrantedBackupStore:
            def call(method: str, request: Message) -> Any:
                calling = rpc.call(getattr(stub, method), request, deadline_seconds=deadline_seconds)
                return asyncio.run_coroutine_threadsafe(calling, loop).result()

            return GrantedBackupStore.open(store, name, call, deadline_seconds)

        yield open_store
