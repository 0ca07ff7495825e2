"""Cuts the final observations of a rollout that were written into boxes, for planes that copy what was written."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from agentpod.experience.replay_layout import FINAL
from agentpod.experience.rollout import used_finals
from podrace.tensor_transport.boxes import Box

MAXIMUM_BOXES = 256
"""Boxes of one rollout; each costs a message or an entry of one, so more are replaced by fewer and larger ones."""


def written_boxes(rollout: Mapping[str, Tensor], boxes: Mapping[str, Box]) -> dict[str, Sequence[Box]]:
    """Returns what must be copied of a rollout: of the final observations only those that are read. Waits for a GPU.

    Args:
        rollout: What was written, [T, N, ...] each.
        boxes: Where each tensor is in its slot.
    """
    used = used_finals(rollout).cpu()
    return {name: final_boxes(used, box) if name == FINAL else [box] for name, box in boxes.items()}


def final_boxes(used: Tensor, box: Box, most: int = MAXIMUM_BOXES) -> list[Box]:
    """Returns boxes that contain all final observations that are used, and few others.

    Each box is a range of lanes in consecutive rows. If that gives too many, whole rows are taken, and then all rows.

    Args:
        used: [T, N] bool on the CPU.
        box: The box of the whole tensor, with T rows and N lanes.
        most: Largest number of boxes.
    """
    rows = used.any(1, keepdim=True).expand_as(used)
    for mask in (used, rows):
        runs = list(_merged(_runs(mask)))
        if len(runs) <= most:
            return [_part(box, run) for run in runs]
    return [box]


Run = tuple[int, int, int, int]
"""First row, end of the rows, first lane, end of the lanes."""


def _runs(mask: Tensor) -> list[Run]:
    """Returns the ranges of consecutive lanes of each row, by row, then by lane."""
    padded = torch.nn.functional.pad(mask.to(torch.int8), (1, 1)).diff(dim=1)
    starts, ends = (padded == 1).nonzero().tolist(), (padded == -1).nonzero().tolist()
    return [(row, row + 1, first, end) for (row, first), (_, end) in zip(starts, ends, strict=True)]


def _merged(runs: Sequence[Run]) -> Iterator[Run]:
    """Joins runs of the same lanes in consecutive rows."""
    open_runs: dict[tuple[int, int], Run] = {}
    for first_row, end_row, *lanes in runs:
        key = (lanes[0], lanes[1])
        before = open_runs.get(key)
        if before and before[1] == first_row:
            open_runs[key] = (before[0], end_row, *key)
            continue
        if before:
            yield before
        open_runs[key] = (first_row, end_row, *key)
    yield from open_runs.values()


def _part(box: Box, run: Run) -> Box:
    first_row, end_row, first_lane, end_lane = run
    return Box(
        (box.starts[0] + first_row, box.starts[1] + first_lane, *box.starts[2:]),
        (end_row - first_row, end_lane - first_lane, *box.sizes[2:]),
    )
