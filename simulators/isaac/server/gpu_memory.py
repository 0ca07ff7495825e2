"""Maps memory of a GPU that the client exports by CUDA IPC, through the driver: torch of any version has no stable way.

Both processes then write and read the same memory, and a step is copied to no other place.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

HANDLE_BYTES = 64
ENABLE_PEER_ACCESS = 1
"""CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: the client's GPU may be another one."""
TYPES = {"action": "<f4", "observation": "<f4", "reward": "<f4", "terminated": "|b1", "truncated": "|b1"}
TYPES.update({"final_observation": "<f4", "probe": "<f8"})


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class _Elements:
    """Memory with the interface by which torch views memory of others."""

    def __init__(self, pointer: int, shape: tuple[int, ...], typestr: str) -> None:
        self.__cuda_array_interface__ = {"data": (pointer, False), "shape": shape, "typestr": typestr, "version": 2}


class GpuMemory:
    """Tensors of a step in memory of a GPU that the client owns; mapped until this process exits.

    Attributes:
        tensors: The tensors by name.
    """

    def __init__(
        self,
        handle: bytes,
        offsets: dict[str, int],
        shapes: dict[str, tuple[int, ...]],
        device: Any,
        types: dict[str, str] | None = None,
    ) -> None:
        """Maps the memory.

        Args:
            handle: Of the memory, from cudaIpcGetMemHandle.
            offsets: Where each tensor starts, in bytes.
            shapes: Shape of each tensor.
            device: Device on which the simulator computes.
            types: Types of tensors, as numpy's type strings, where they differ from TYPES.

        Raises:
            OSError: The driver refuses; it is then no use to try again.
        """
        import torch

        self._types = dict(TYPES, **(types or {}))
        self._driver: Any = ctypes.CDLL("libcuda.so.1")
        # The driver maps the memory for the GPU whose context is current.
        with torch.cuda.device(device):
            # Makes the context.
            torch.zeros(1, device=device)
            self._pointer = self._open(handle)
            try:
                self.tensors: dict[str, torch.Tensor] = {
                    name: self._view(torch, name, offset, shapes[name], device) for name, offset in offsets.items()
                }
            except BaseException:
                self._driver.cuIpcCloseMemHandle(ctypes.c_uint64(self._pointer))
                raise

    def _open(self, handle: bytes) -> int:
        driver = self._driver
        pointer = ctypes.c_uint64()
        copied = _Handle()
        ctypes.memmove(ctypes.byref(copied), handle, HANDLE_BYTES)
        driver.cuIpcOpenMemHandle_v2.argtypes = (ctypes.c_void_p, _Handle, ctypes.c_uint)
        code = driver.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), copied, ENABLE_PEER_ACCESS)
        if code:
            raise OSError(f"cuIpcOpenMemHandle failed with CUDA error {code}")
        return int(pointer.value)

    def _view(self, torch: Any, name: str, offset: int, shape: tuple[int, ...], device: Any) -> Any:
        if not int(np.prod(shape)):
            return torch.zeros(shape, device=device)
        return torch.as_tensor(_Elements(self._pointer + offset, tuple(shape), self._types[name]), device=device)
