"""Reads the policies of candidates from the checkpoint store, as opponents of an agent.

This is part of the controlling half of the leader. A candidate that cannot be read is left out and named.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import structlog

from agentpod.learner.evaluation_job import PublishedPolicy
from agentpod.learner.policy_loader import load_published_policy
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import PodraceError

_log = structlog.get_logger(__name__)
MOST_KEPT = 32
"""Policies that are kept in memory, those used last."""


class OpponentReader:
    """Reads policies, each of them once as long as it is in use."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._kept: OrderedDict[str, PublishedPolicy] = OrderedDict()

    async def read(self, checkpoints: Sequence[Checkpoint]) -> list[PublishedPolicy]:
        """Returns the policies that can be read, in the order of the checkpoints."""
        found: list[PublishedPolicy] = []
        for checkpoint in checkpoints:
            name = checkpoint.manifest_digest
            try:
                if name in self._kept:
                    policy = self._kept.pop(name)
                else:
                    policy = await asyncio.to_thread(load_published_policy, self._store, name)
            except PodraceError as error:
                _log.warning("an opponent is left out", source=checkpoint.agent_id, reason=error.message)
                continue
            self._kept[name] = policy
            found.append(policy)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return found
