"""Owns the self-test of a plane at connect: the owner writes, the peer answers with the sum of what it reads.

Both ends in the order of events:

    region = plane.create("probe", [PROBE_SPEC])
    sent = write_probe(region, seed)                          # owner; region.refs() goes into OpenWorker
    answered = await answer_probe(planes, request.probe)      # peer; its sum goes into the response
    check_probe(plane.scheme, sent, answered.sum)             # owner
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from podrace.errors import DataLoss, DeadlineExceeded, FailedPrecondition, Unavailable, Unimplemented
from podrace.tensor.v1 import tensor_pb2
from podrace.tensor.v1.tensor_pb2 import TensorRef, TensorSpec
from podrace.tensor_transport.codec import LAYOUT_VERSION
from podrace.tensor_transport.plane import Planes

PLANE_UNUSABLE = "ERROR_REASON_PLANE_UNUSABLE"
"""Why FailedPrecondition is raised where a plane does not connect two processes, apart from everything else."""

PROBE_SPEC = TensorSpec(name="probe", data_type=tensor_pb2.DATA_TYPE_FLOAT64, shape=[64], layout_version=LAYOUT_VERSION)


def write_probe(region: Mapping[str, Tensor], seed: int) -> float:
    """Fills the tensor `probe` with whole numbers from 1 to 2**32, whose sum is exact in any order, and returns it."""
    generator = torch.Generator().manual_seed(seed)
    probe = region["probe"]
    probe.copy_(torch.randint(1, 2**32, probe.shape, generator=generator))
    return float(probe.sum())


@dataclass(frozen=True)
class Answer:
    """What a peer found."""

    sum: float
    """Of the tensor `probe` as read here."""
    device: torch.device
    """Where tensors of this plane lie for the peer: where it should compute."""


async def answer_probe(planes: Planes, ref: TensorRef) -> Answer:
    """Reads the probe and forgets it.

    Raises:
        FailedPrecondition: It cannot be read, whatever the reason (PLANE_UNUSABLE).
    """
    try:
        await planes.pull([ref])
        probe = planes.open([ref])[PROBE_SPEC.name]
        return Answer(float(probe.sum()), probe.device)
    except (FailedPrecondition, Unimplemented, Unavailable, DeadlineExceeded, DataLoss) as error:
        raise FailedPrecondition(error.message, reason=PLANE_UNUSABLE) from error
    finally:
        planes.forget(ref.plane_uri)


def check_probe(scheme: str, sent: float, answered: float) -> None:
    """Refuses a plane whose two ends do not see the same memory.

    Raises:
        FailedPrecondition: The sums differ (PLANE_UNUSABLE).
    """
    if answered != sent:
        raise FailedPrecondition(
            f"plane {scheme!r} failed its self-test: {sent:.0f} was written, the peer read {answered:.0f}; the two ends"
            " do not see the same memory (do the containers share the folder?)",
            reason=PLANE_UNUSABLE,
        )
