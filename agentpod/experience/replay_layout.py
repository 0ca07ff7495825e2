"""Defines the layout of a replay buffer: its fields and rows, its size in bytes, and copies of whole segments.

A final observation is written only where an episode was truncated and in the last row of a segment. The other rows of
final_observation are never touched, not even to copy them, because memory that was never written has no pages.
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
    """Returns the rows of a ring for at least `capacity_steps` steps of `count` environments.

    The ring consists of whole segments of `horizon` rows, so that none wraps around, and of at least two: one to learn
    from and one to fill.
    """
    return horizon * max(2, -(-capacity_steps // (horizon * count)))


def replay_fields(observation_space: Space, action_space: Space, rows: int, count: int) -> dict[str, Field]:
    """Returns the layout of a replay buffer.

    | field | shape | meaning |
    |---|---|---|
    | observation | [R, N, *shape] | observation that was acted on |
    | action | [R, N] or [R, N, A] | action of the policy, before it is scaled to the environment's bounds |
    | reward | [R, N] | reward of the simulator |
    | terminated | [R, N] | the episode terminated with this step: nothing follows |
    | truncated | [R, N] | the episode was cut off after this step: bootstrap from final_observation |
    | final_observation | [R, N, *shape] | the observation after the step; written where truncated, and in the whole |
    | | | last row of every segment |

    Args:
        observation_space: Of the simulator.
        action_space: Of the simulator.
        rows: R, from `replay_rows`.
        count: N, environments of all workers.
    """
    fields = rollout_fields(observation_space, action_space, rows, count)
    del fields["log_prob"]
    return fields | {"observation": replace(fields["observation"], shape=fields[FINAL].shape)}


def replay_bytes(fields: Mapping[str, Field], *, prioritized: bool = False) -> int:
    """Returns the bytes of a completely written replay buffer, and of its priority tree if there is one."""
    sizes = (torch.Size(field.shape).numel() * field.dtype.itemsize for field in fields.values())
    return sum(sizes) + (PriorityTree.size_bytes(torch.Size(fields["reward"].shape).numel()) if prioritized else 0)


def check_memory(
    fields: Mapping[str, Field],
    available_bytes: int,
    *,
    prioritized: bool = False,
    where: str = "the pod's memory",
    key: str = "hyperparameter replay_capacity",
) -> None:
    """Checks that a replay buffer of this layout fits into `available_bytes` of a memory.

    The message names the memory, `where`, and what determines the size of the buffer, `key`.

    Raises:
        ResourceExhausted: It does not fit.
    """
    needed_bytes, steps = replay_bytes(fields, prioritized=prioritized), torch.Size(fields["reward"].shape).numel()
    if needed_bytes > available_bytes:
        raise ResourceExhausted(
            f"{key}: a replay buffer of {steps} steps needs {needed_bytes} bytes, but only "
            f"{available_bytes} of {where} are available: lower it to at most"
            f" {steps * available_bytes // needed_bytes} steps or request more memory"
        )


def pack(rings: Mapping[str, Tensor], rows: Tensor, horizon: int) -> dict[str, Tensor]:
    """Copies whole segments out of a ring.

    Args:
        rings: The fields, [R, N, ...].
        rows: [L] int64, rows of whole segments.
        horizon: Rows of a segment.

    Returns:
        The fields [L, N, ...], and of final_observation only the elements that were written, [E, ...].
    """
    here = rows.to(rings[FINAL].device)
    tensors = {name: ring.index_select(0, here) for name, ring in rings.items() if name != FINAL}
    written = _indices(here, written_finals(tensors["truncated"], horizon))
    return {**tensors, FINAL: rings[FINAL].flatten(0, 1).index_select(0, written)}


def unpack(rings: Mapping[str, Tensor], tensors: Mapping[str, Tensor], rows: Tensor, horizon: int) -> None:
    """Copies what `pack` returned into the rows [L] of other rings."""
    truncated = tensors["truncated"]
    written = _indices(rows.to(truncated.device), written_finals(truncated, horizon))
    for name, ring in rings.items():
        flat, index = (ring.flatten(0, 1), written) if name == FINAL else (ring, rows)
        flat.index_copy_(0, index.to(ring.device), tensors[name].to(ring.device))


def drop_oldest(tensors: Mapping[str, Tensor], rows: int, horizon: int) -> dict[str, Tensor]:
    """Returns views of what `pack` returned, without the first `rows` rows, which are whole segments."""
    dropped = int(written_finals(tensors["truncated"][:rows], horizon).sum()) if rows else 0
    return {name: tensor[dropped if name == FINAL else rows :] for name, tensor in tensors.items()}


def written_finals(truncated: Tensor, horizon: int) -> Tensor:
    """Returns which final observations of whole segments were written, given their `truncated` [L, N]: [L, N] bool."""
    written = truncated.clone()
    written[horizon - 1 :: horizon] = True
    return written


def _indices(rows: Tensor, chosen: Tensor) -> Tensor:
    """Returns the indices row N + lane of the chosen [L, N] steps of the rows [L]."""
    count = chosen.shape[1]
    return (rows.unsqueeze(1) * count + torch.arange(count, device=rows.device))[chosen]
