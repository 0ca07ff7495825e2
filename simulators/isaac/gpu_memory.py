"""Shares memory of a GPU with the server of NVIDIA's simulators by CUDA IPC, if a test of it succeeds."""

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from podrace.errors import PodraceError
from podrace.tensor.v1.tensor_pb2 import TensorSpec
from podrace.tensor_transport.cuda import HANDLE_BYTES, Driver, Slab
from podrace.tensor_transport.layout import place, view

PROBE = "probe"
MakeDriver = Callable[[], Driver]


@dataclass(frozen=True)
class GpuShare:
    """Memory that both processes use.

    Attributes:
        tensors: The tensors of a step by name, in memory of the GPU.
        slab: The memory; it must be freed after the server process has exited.
    """

    tensors: dict[str, Tensor]
    slab: Slab


def share_on_gpu(
    ask: Callable[[str], str], make_driver: MakeDriver, specs: Sequence[TensorSpec]
) -> tuple[GpuShare | None, str]:
    """Allocates memory, and tests that the server reads and writes it.

    Args:
        ask: Sends a line to the server; returns its answer.
        make_driver: Returns the driver of the GPU on which observations are wanted.
        specs: The tensors of a step, with the probe.

    Returns:
        The memory; or None, and why the server cannot use it.

    Raises:
        PodraceError: The server does not answer.
    """
    try:
        driver = make_driver()
        offsets, size = place(specs)
        slab = driver.allocate(size)
    except PodraceError as error:
        return None, error.message
    driver.zero(slab.memory)
    named = list(zip(specs, offsets, strict=True))
    tensors = {spec.name: view(slab.memory, offset, spec) for spec, offset in named}
    numbers = torch.randint(1, 2**32, tensors[PROBE].shape, generator=_generator()).double()
    tensors[PROBE].copy_(numbers)
    driver.submitted()()
    offer = {"handle": slab.handles[:HANDLE_BYTES].hex(), "offsets": {spec.name: offset for spec, offset in named}}
    reason = json.loads(ask(f"gpu {json.dumps(offer)}"))["reason"]
    if not reason and not torch.equal(tensors[PROBE].cpu(), numbers + 1.0):
        reason = "the server wrote into other memory"
    if reason:
        return None, reason
    ask("use gpu")
    return GpuShare(tensors, slab), ""


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(secrets.randbits(32))
