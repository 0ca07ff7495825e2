"""Tests a plane between two processes: the owner writes numbers, the peer replies with their sum.

Both ends, in order:

    region = plane.create("probe", [PROBE_SPEC])
    sent = write_probe(region, seed)                          # owner; sends region.refs() in OpenWorker
    answered = await answer_probe(planes, request.probe)      # peer; sends the sum in the response
    check_probe(plane.scheme, sent, answered.sum)             # owner
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from podrace.errors import DataLoss, DeadlineExceeded, FailedPrecondition, InvalidArgument, Unavailable, Unimplemented
from podrace.tensor.v1 import tensor_pb2
from podrace.tensor.v1.tensor_pb2 import TensorRef, TensorSpec
from podrace.tensor_transport.codec import LAYOUT_VERSION
from podrace.tensor_transport.plane import Planes

PLANE_UNUSABLE = "ERROR_REASON_PLANE_UNUSABLE"
"""Reason of FailedPrecondition if a plane does not work between two processes."""

PROBE_SPEC = TensorSpec(name="probe", data_type=tensor_pb2.DATA_TYPE_FLOAT64, shape=[64], layout_version=LAYOUT_VERSION)


def write_probe(region: Mapping[str, Tensor], seed: int) -> float:
    """Fills the tensor `probe` with whole numbers from 1 to 2**32, whose sum is exact in any order, and returns it."""
    generator = torch.Generator().manual_seed(seed)
    probe = region["probe"]
    numbers = torch.randint(1, 2**32, probe.shape, generator=generator)
    probe.copy_(numbers)
    # Of the numbers in memory of the host: the event loop does not wait for a GPU.
    return float(numbers.sum())


@dataclass(frozen=True)
class ProbeAnswer:
    """The result of a peer."""

    sum: float
    """Sum of the tensor `probe` as the peer read it."""
    device: torch.device
    """Device of this plane's tensors in the peer, on which it should compute."""


async def answer_probe(planes: Planes, ref: TensorRef) -> ProbeAnswer:
    """Reads the probe and drops its mapping.

    Raises:
        FailedPrecondition: It cannot be read, for any reason (PLANE_UNUSABLE).
        InvalidArgument: The reference is malformed, or not of float64 numbers.
    """
    if ref.spec.data_type != PROBE_SPEC.data_type:
        raise InvalidArgument(f"probe.spec.data_type is {_type_name(ref.spec)}: expected {_type_name(PROBE_SPEC)}")
    try:
        await planes.pull([ref])
        probe = planes.open([ref])[ref.spec.name]
        found = await asyncio.to_thread(_sum, probe) if probe.is_cuda else _sum(probe)
        return ProbeAnswer(found, probe.device)
    except (FailedPrecondition, Unimplemented, Unavailable, DeadlineExceeded, DataLoss) as error:
        raise FailedPrecondition(error.message, reason=PLANE_UNUSABLE) from error
    finally:
        planes.forget(ref.plane_uri)


def _type_name(spec: TensorSpec) -> str:
    known = spec.data_type in tensor_pb2.DataType.values()
    return tensor_pb2.DataType.Name(spec.data_type) if known else str(spec.data_type)


def _sum(probe: Tensor) -> float:
    return float(probe.sum())


def check_probe(scheme: str, sent: float, answered: float) -> None:
    """Compares the sum of the peer with that of the owner.

    Raises:
        FailedPrecondition: The sums differ (PLANE_UNUSABLE).
    """
    if answered != sent:
        raise FailedPrecondition(
            f"plane {scheme!r} failed its self-test: {sent:.0f} was written, the peer read {answered:.0f}; the two ends"
            " do not share the same memory (do the containers share the folder?)",
            reason=PLANE_UNUSABLE,
        )
