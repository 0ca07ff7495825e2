"""Stores and restores the replay memory as parts of a checkpoint: pieces of the ring, one object of the store each.

Unlike the other parts they are optional: an agent whose pieces are damaged, missing or of another layout starts with an
empty memory and warms up again.
"""

from collections.abc import Iterable

import structlog
import torch

from agentpod.experience.replay_buffer import ReplayBuffer
from podrace.checkpoint.v1.checkpoint_pb2 import Part
from podrace.checkpoint_store.publish import read_part, store_part
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import DataLoss, InvalidArgument, NotFound
from podrace.tensor_transport.codec import decode, encode

_log = structlog.get_logger(__name__)
PREFIX = "replay."
STATE = f"{PREFIX}state"


def store_replay(store: CheckpointStore, replay: ReplayBuffer) -> list[Part]:
    """Stores the rows that can be sampled, and returns the parts that the manifest must list. Blocks.

    Objects are addressed by content: a piece that has not changed since it was last stored takes no additional space.

    Raises:
        ResourceExhausted: The store is full.
    """
    pieces = [
        store_part(store, f"{PREFIX}{first_row:012d}", encode(tensors, {})) for first_row, tensors in replay.segments()
    ]
    return [*pieces, store_part(store, STATE, encode(replay.state_dict(), {}))]


def restore_replay(store: CheckpointStore, parts: Iterable[Part], replay: ReplayBuffer) -> bool:
    """Loads stored pieces into an empty memory; the environments start new episodes. Blocks.

    Returns:
        Whether the pieces could be loaded; if not, the memory stays empty.
    """
    try:
        state: dict[str, torch.Tensor] = {}
        for part in parts:
            tensors, _ = decode(read_part(store, part))
            if part.name == STATE:
                state = tensors
            else:
                replay.restore(tensors)
        replay.load_state_dict(state)
    except (DataLoss, InvalidArgument, NotFound) as error:
        _log.warning("the replay memory starts empty", error=error.message)
        return False
    replay.mark_truncated()
    return True
