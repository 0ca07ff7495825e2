"""The replay memory as training files: pieces of the ring, each an object of the store, put and read one at a time.

Unlike the other training files they are a help, not a need: an agent whose pieces are damaged, gone or of another
layout begins with an empty memory and warms up again.
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
    """Stores what can be sampled, and says what a manifest must list.

    Equal pieces are equal objects: what has not changed since an earlier visit takes no further room.

    Raises:
        ResourceExhausted: The store is full.
    """
    pieces = [
        store_part(store, f"{PREFIX}{first_row:012d}", encode(tensors, {})) for first_row, tensors in replay.segments()
    ]
    return [*pieces, store_part(store, STATE, encode(replay.state_dict(), {}))]


def restore_replay(store: CheckpointStore, parts: Iterable[Part], replay: ReplayBuffer) -> bool:
    """Puts stored pieces back into an empty memory; the environments begin anew.

    Returns:
        Whether it was possible; otherwise the memory stays empty.
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
        _log.warning("the replay memory begins empty", error=error.message)
        return False
    replay.mark_truncated()
    return True
