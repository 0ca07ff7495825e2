import torch

from agentpod.experience.final_boxes import final_boxes, written_boxes
from agentpod.experience.rollout import rollout_fields
from podrace.tensor_transport.boxes import Box
from simulators.base import Space

WHOLE = Box((8, 3, 0), (4, 6, 2))


def covered(boxes: list[Box]) -> torch.Tensor:
    """How many boxes contain each step of the rollout."""
    slot = torch.zeros(16, 16, 2, dtype=torch.int64)
    for box in boxes:
        slot[box.index] += 1
    inside = slot[WHOLE.index]
    assert slot.sum() == inside.sum()
    return inside[..., 0]


def test_exactly_the_used_observations_are_covered_once() -> None:
    generator = torch.Generator().manual_seed(3)
    for share in (0.0, 0.1, 0.5, 1.0):
        used = torch.rand(4, 6, generator=generator) < share
        assert torch.equal(covered(final_boxes(used, WHOLE)), used.long())


def test_lanes_that_are_truncated_together_are_one_box() -> None:
    used = torch.zeros(4, 6, dtype=torch.bool)
    used[1:3, 2:5] = True
    assert final_boxes(used, WHOLE) == [Box((9, 5, 0), (2, 3, 2))]


def test_too_many_boxes_become_rows_and_then_the_whole_tensor() -> None:
    used = torch.zeros(4, 6, dtype=torch.bool)
    used[0, ::2] = used[3, ::2] = True
    assert len(final_boxes(used, WHOLE, most=6)) == 6
    assert final_boxes(used, WHOLE, most=2) == [Box((8, 3, 0), (1, 6, 2)), Box((11, 3, 0), (1, 6, 2))]
    assert final_boxes(used, WHOLE, most=1) == [WHOLE]


def test_a_rollout_without_truncations_sends_no_final_observations_and_a_segment_its_last_row() -> None:
    space = Space("continuous", (2,), torch.float32)
    fields = rollout_fields(space, Space("discrete", (), torch.int64, n=2), 4, 6)
    rollout = {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in fields.items()}
    boxes = {name: Box.whole(field.shape) for name, field in fields.items()}
    assert written_boxes(rollout, boxes) == {name: [box] for name, box in boxes.items()} | {"final_observation": []}
    del rollout["log_prob"], boxes["log_prob"]
    assert written_boxes(rollout, boxes)["final_observation"] == [Box((3, 0, 0), (1, 6, 2))]
