"""Owns the layout of a replay memory: its fields and rows, the bytes that they take, and copies of whole segments.

A final observation is written where an episode was truncated and where a segment ends. The others are never touched,
not even to be copied: memory that was never written has no pages.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from agentpod.experience.prioritized_sampling import PriorityTree
from agentpod.experience.rollout import Field, rollout_fields
from podrace.errors import ResourceExhausted
from simulators.base import Space

FINAL = "final_observation"


def replay_rows(capacity_steps: int, horizon: int, count: int) -> int:
    """Rows of a ring for at least `capacity_steps` steps of `count` environments.

    Whole segments of `horizon` rows, so that none wraps around, and at least two: one to learn from and one to fill.
    """
    return horizon * max(2, -(-capacity_steps // (horizon * count)))


def replay_fields(observation_space: Space, action_space: Space, rows: int, count: int) -> dict[str, Field]:
    """The layout of a replay memory.

    | field | shape | meaning |
    |---|---|---|
    | observation | [R, N, *shape] | what was acted on |
    | action | [R, N] or [R, N, A] | as the policy chose it |
    | reward | [R, N] | as the simulator gave it |
    | terminated | [R, N] | the step ended the episode for good: nothing follows |
    | truncated | [R, N] | the step was the last that was allowed: bootstrap from final_observation |
    | final_observation | [R, N, *shape] | written where truncated, and in the whole last row of every segment: what |
    | | | that step left behind |

    Args:
        observation_space: Of the simulator.
        action_space: Of the simulator.
        rows: R, as `replay_rows` gives it.
        count: N, environments, those of all workers side by side.
    """
    fields = rollout_fields(observation_space, action_space, rows, count)
    del fields["log_prob"]
    return fields | {"observation": replace(fields["observation"], shape=fields[FINAL].shape)}


def replay_bytes(fields: Mapping[str, Field], *, prioritized: bool = False) -> int:
    """Bytes of a memory of this layout once all of it was written, and of its priorities if there are any."""
    sizes = (torch.Size(field.shape).numel() * field.dtype.itemsize for field in fields.values())
    return sum(sizes) + (PriorityTree.size_bytes(torch.Size(fields["reward"].shape).numel()) if prioritized else 0)


def check_memory(fields: Mapping[str, Field], available_bytes: int, *, prioritized: bool = False) -> None:
    """Raises ResourceExhausted where a memory of this layout would not fit into `available_bytes`."""
    needed_bytes, steps = replay_bytes(fields, prioritized=prioritized), torch.Size(fields["reward"].shape).numel()
    if needed_bytes > available_bytes:
        raise ResourceExhausted(
            f"hyperparameter replay_capacity: a replay memory of {steps} steps needs {needed_bytes} bytes, there are "
            f"{available_bytes}: at most {steps * available_bytes // needed_bytes} steps fit; lower it or add memory"
        )


def pack(rings: Mapping[str, Tensor], rows: Tensor, horizon: int) -> dict[str, Tensor]:
    """Copies whole segments out of a ring: `rows` [L] int64, the fields, and the final observations that they hold."""
    here = rows.to(rings[FINAL].device)
    tensors = {name: ring.index_select(0, here) for name, ring in rings.items() if name != FINAL}
    written = _written(here, tensors["truncated"], horizon)
    return {"rows": rows, **tensors, FINAL: rings[FINAL].flatten(0, 1).index_select(0, written)}


def unpack(rings: Mapping[str, Tensor], tensors: Mapping[str, Tensor], horizon: int) -> None:
    """Copies what `pack` returned into other rings."""
    device, rows = rings[FINAL].device, tensors["rows"]
    written = _written(rows.to(tensors["truncated"].device), tensors["truncated"], horizon)
    for name, ring in rings.items():
        flat, index = (ring.flatten(0, 1), written) if name == FINAL else (ring, rows)
        flat.index_copy_(0, index.to(device), tensors[name].to(device))


def _written(rows: Tensor, truncated: Tensor, horizon: int) -> Tensor:
    """Indices of the final observations that the rows [L] of whole segments hold, by their `truncated` [L, N]."""
    written = truncated.clone()
    written[horizon - 1 :: horizon] = True
    count = truncated.shape[1]
    return (rows.unsqueeze(1) * count + torch.arange(count, device=rows.device))[written]
