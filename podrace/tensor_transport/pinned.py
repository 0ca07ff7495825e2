"""Registers mapped memory with CUDA (pins it): copies between it and a GPU are direct and do not block the host."""

import mmap
import sys
from contextlib import suppress
from typing import Any

import structlog
import torch

MOST_BYTES = 4 << 30
"""Larger mappings are not registered, because the pages of a registered one are all allocated and cannot be swapped."""
PORTABLE = 1
"""Flag of cudaHostRegister: pinned for all GPUs."""
_log = structlog.get_logger(__name__)


class PinnedMap(mmap.mmap):
    """A mapping that can be registered with CUDA as long as it exists.

    memory = PinnedMap(descriptor, size)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    memory.register(tensor.data_ptr())
    """

    _address, _device = 0, 0

    def register(self, address: int) -> None:
        """Registers the mapping, which starts at `address`, for copies to and from the current GPU.

        If that fails, copies are only slower.
        """
        if len(self) > MOST_BYTES:
            _log.info("shared memory is too large to be pinned", bytes=len(self), most_bytes=MOST_BYTES)
            return
        code = int(_runtime().cudaHostRegister(address, len(self), PORTABLE))
        if code:
            _forget_error()
            _log.warning("shared memory could not be pinned; copies are slower", bytes=len(self), cuda_error=code)
            return
        self._address, self._device = address, torch.cuda.current_device()

    def __del__(self) -> None:
        # Before the base class unmaps the memory. At the exit of the process the driver does this itself.
        if self._address and not sys.is_finalizing():
            # The thread that drops the last view may have another current device.
            with torch.cuda.device(self._device):
                # Copies that were started may still run. Others than those of this stream were awaited. To wait for all
                # streams is forbidden while another thread records a CUDA graph, and would end its recording.
                with suppress(RuntimeError):
                    torch.cuda.default_stream(self._device).synchronize()
                if int(_runtime().cudaHostUnregister(self._address)):
                    _forget_error()


def _forget_error() -> None:
    """Clears the error of the last call: it stays in CUDA, and PyTorch would raise it after the next kernel launch."""
    with suppress(RuntimeError):
        # Raises the error instead of a later launch, and clears it.
        torch.empty(1, device="cuda").fill_(0.0)


def _runtime() -> Any:
    cudart: Any = torch.cuda.cudart
    return cudart()
