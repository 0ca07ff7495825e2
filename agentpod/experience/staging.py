"""Moves rollouts between the device that computes and memory of the host: only what will be read, without waiting.

Final observations are mostly unused: only those of truncated steps, and of the last row of a replay segment, are
copied. The others are undefined in the target, as in every rollout.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from agentpod.experience.replay_layout import FINAL
from agentpod.experience.rollout import Rollout, used_finals
from podrace.tensor_transport.copy_stream import CopyStream


class Staging:
    """Memory of the simulator's device for rollouts whose slot is elsewhere, for instance in memory of the host.

    rollout = staging.of(slot)
    collect(simulator, policy, rollout, lanes, generator)
    finish = staging.copy_to(slot)
    finish()                        # in a thread, before the slot is handed back
    """

    def __init__(self, device: torch.device, *, always: bool = False, copies: CopyStream | None = None) -> None:
        """Allocates nothing yet.

        Args:
            device: Device that the simulator and the policy compute on.
            always: Whether slots on the same device are staged too; for tests.
            copies: Stream of the copies; None: one of `device`.
        """
        self._device, self._always = device, always
        self._copies = copies or CopyStream(device)
        self._staged: dict[str, Tensor] = {}

    def of(self, slot: Rollout) -> Rollout:
        """Returns the slot itself if it is on the device, else tensors of the same shapes that are."""
        if not self._always and all(tensor.device == self._device for tensor in slot.values()):
            self._staged = {}
            return slot
        shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in slot.items()}
        if shapes != {name: (tensor.shape, tensor.dtype) for name, tensor in self._staged.items()}:
            self._staged = {
                name: torch.zeros(shape, dtype=dtype, device=self._device) for name, (shape, dtype) in shapes.items()
            }
        self._copies.before_computing()
        return self._staged

    def copy_to(self, slot: Rollout) -> Callable[[], None] | None:
        """Starts to copy what was staged to the slot.

        Returns:
            A function that waits for the end, to be called in any thread; None if nothing was staged.
        """
        if not self._staged:
            return None
        with self._copies.following():
            # All temporary memory belongs to this stream, so it is not reused before the copies have finished.
            finals = used_finals(self._staged)
            for name, tensor in self._staged.items():
                if name != FINAL:
                    slot[name].copy_(tensor, non_blocking=True)
            used = self._staged[FINAL][finals]
            compact = self._copies.host_buffer(used)
            compact.copy_(used, non_blocking=True)
            chosen = self._copies.host_buffer(finals)
            chosen.copy_(finals, non_blocking=True)
        wait = self._copies.mark()

        def finish() -> None:
            wait()
            slot[FINAL][chosen] = compact

        return finish


def upload(rollout: Rollout, device: torch.device | str) -> dict[str, Tensor]:
    """Copies a rollout from memory of the host to a GPU, in the order of the current stream.

    From pinned memory the host does not wait. The rollout must not change before the GPU has finished.
    """
    tensors = {name: tensor.to(device, non_blocking=True) for name, tensor in rollout.items() if name != FINAL}
    final = rollout[FINAL]
    tensors[FINAL] = torch.empty(final.shape, dtype=final.dtype, device=device)
    # Places found by the host: to find those that a mask on the GPU selects, the host would wait for it.
    rows, lanes = used_finals(rollout).nonzero(as_tuple=True)
    if len(rows):
        used, *places = (part.to(device, non_blocking=True) for part in (final[rows, lanes], rows, lanes))
        tensors[FINAL][tuple(places)] = used
    return tensors
