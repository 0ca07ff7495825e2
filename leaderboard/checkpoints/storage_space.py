"""Checks whether there is space for checkpoints, on disks and in the store, and requests a collection if there is not.

There is too little space in three cases:

- a disk has too little free space (`podrace.disk_space`);
- the store refuses a small object because it is full: it refuses what pods store for the same reason;
- what a collection left comes too close to the capacity that the configuration states.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Self

import structlog

from leaderboard.checkpoints.checkpoint_quotas import RETRY_SECONDS, Measured
from podrace import disk_space
from podrace.checkpoint_store.store import CheckpointStore
from podrace.database.leadership import CheckLeads, only_replica
from podrace.disk_space import Volume
from podrace.errors import PodraceError, ResourceExhausted

CHECK_SECONDS = 30.0
"""Time between two checks. Requests for agents are not enough, because an assignment may take hours."""
PROBE = b"podrace space probe"
"""Object that is stored and deleted again."""
_log = structlog.get_logger(__name__)


class StorageSpace:
    """Knows whether there is space for the checkpoints of further agents.

    async with StorageSpace(store, folders, low_water_bytes, capacity_bytes, urgent.set) as space:
        space.measure(measured)  # after each collection
        await space.shortage()   # before an agent is generated
    """

    def __init__(
        self,
        store: CheckpointStore,
        folders: Collection[Path],
        low_water_bytes: int,
        capacity_bytes: int,
        request_collection: Callable[[], None],
        *,
        check_leads: CheckLeads = only_replica,
        check_seconds: float = CHECK_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts as if there were enough space.

        Args:
            store: The checkpoint store as a whole.
            folders: Folders whose disks need free space.
            low_water_bytes: Bytes that must stay free on each disk and in the store; 0: none.
            capacity_bytes: Bytes that the store may hold; 0: unknown.
            request_collection: Requests a collection before its time.
            check_leads: Called before the store is written.
            check_seconds: Time between two checks.
            monotonic: Clock in seconds.
        """
        self._store, self._folders, self._low_water_bytes = store, folders, low_water_bytes
        self._capacity_bytes, self._request_collection = capacity_bytes, request_collection
        self._check_leads, self._check_seconds, self._monotonic = check_leads, check_seconds, monotonic
        self._measured: list[Volume] = []
        self._refusal, self._short = "", False
        self._next_request = -RETRY_SECONDS
        self._checking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Starts to check periodically. A store with a capacity is measured soon, by a collection."""
        if self._capacity_bytes:
            self._request_collection()
        self._checking = asyncio.create_task(self._check_periodically())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops."""
        if self._checking:
            self._checking.cancel()
            await asyncio.wait([self._checking])

    def measure(self, found: Measured) -> None:
        """Compares what a collection left with the capacity of the store."""
        if self._capacity_bytes:
            free = max(0, self._capacity_bytes - sum(found.kept_bytes.values()))
            name = f"checkpoint store {self._store.uri} (store_capacity_bytes)"
            self._measured = [Volume(name, free, self._capacity_bytes)]

    async def shortage(self) -> str:
        """Returns why there is no space for the checkpoints of further agents; empty: there is.

        A shortage requests a collection, at most one each RETRY_SECONDS.
        """
        disks = await asyncio.to_thread(disk_space.read, self._folders)
        found = disk_space.shortage([*disks, *self._measured], self._low_water_bytes) or self._refusal
        now = self._monotonic()
        if found and now >= self._next_request:
            self._next_request = now + RETRY_SECONDS
            self._request_collection()
        if found and not self._short:
            _log.warning("there is too little space for checkpoints", shortage=found)
        self._short = bool(found)
        return found

    async def check(self) -> None:
        """Checks disks and store, and requests a collection if there is too little space."""
        self._refusal = await asyncio.to_thread(self._probe)
        await self.shortage()

    def _probe(self) -> str:
        """Returns why the store is full; empty if it is not, or does not answer, which says nothing about space."""
        try:
            self._check_leads()
            self._store.delete_object(self._store.put_object(PROBE), 0.0)
        except ResourceExhausted as error:
            return error.message
        except PodraceError as error:
            _log.debug("the space of the checkpoint store is unknown", error=error.message)
        return ""

    async def _check_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._check_seconds)
            try:
                await self.check()
            except Exception:
                # A defect must not end the checks, or nothing is deleted early when the store is full.
                _log.exception("the space for checkpoints could not be read")
