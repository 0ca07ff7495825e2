"""Reads the replay memory of a checkpoint that podrace 0.1.0 stored.

Its pieces are identified by rows of the ring, and its priorities are stored with the sums of the tree.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import FINAL, written_finals
from agentpod.experience.replay_restoring import ReplayWindow
from agentpod.experience.replay_view import SEGMENTS, ReplayPiece
from podrace.errors import InvalidArgument


def is_state(state: Mapping[str, Tensor]) -> bool:
    """Whether the state of a replay memory was stored by podrace 0.1.0."""
    return "turns" in state


def read(
    state: Mapping[str, Tensor], files: Iterable[dict[str, Tensor]], replay: ReplayBuffer
) -> tuple[ReplayWindow, Iterator[ReplayPiece]]:
    """Returns the window of a memory, and its pieces, the newest first, to be restored into `replay`.

    Raises:
        InvalidArgument: The state is malformed.
    """
    layout, turns = state.get("layout", torch.empty(0)), state["turns"]
    if layout.shape != (3,) or turns.shape != (3,):
        raise InvalidArgument("the state of the saved replay memory is malformed")
    (rows, count, horizon), (steps, newest, ready) = layout.tolist(), turns.tolist()
    end, segments = steps // (horizon * count), rows // horizon
    window = {"window": torch.tensor((end - ready, end, horizon * count))}
    if len(nodes := state.get("priorities.nodes", torch.empty(0))):
        slots = torch.arange(newest + 1 - ready, newest + 1) % segments
        window["priorities.leaves"] = nodes[: rows * count].view(segments, -1)[slots]
        window["priorities.maximum"] = state["priorities.maximum"]
    return ReplayWindow.from_file(window), _pieces(files, end, newest, segments, horizon, replay)


def _pieces(
    files: Iterable[dict[str, Tensor]], end: int, newest: int, segments: int, horizon: int, replay: ReplayBuffer
) -> Iterator[ReplayPiece]:
    found: dict[int, dict[str, Tensor]] = {}
    for tensors in files:
        tensors.pop("layout", None)
        slots = tensors.pop("rows")[::horizon] // horizon
        numbers = end - 1 - (newest - slots) % segments
        # The piece with the newest segment may also have the oldest ones.
        for chosen in (numbers > numbers[-1], numbers <= numbers[-1]):
            if chosen.any():
                first = int(numbers[chosen].min())
                count = tensors["reward"].shape[1]
                header = {SEGMENTS: torch.tensor((first, horizon, count))}
                found[first] = header | _segments_of(tensors, chosen, horizon)
    for first in sorted(found, reverse=True):
        yield ReplayPiece.from_file(found.pop(first), replay)


def _segments_of(tensors: Mapping[str, Tensor], chosen: Tensor, horizon: int) -> dict[str, Tensor]:
    """Returns the chosen [segments] ones of packed segments."""
    rows = chosen.repeat_interleave(horizon)
    written = written_finals(tensors["truncated"], horizon)
    finals = rows.unsqueeze(1).expand_as(written)[written]
    return {name: tensor[finals if name == FINAL else rows] for name, tensor in tensors.items()}
