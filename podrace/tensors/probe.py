"""Owns the self-test of a plane at connect: the owner writes, the peer answers with the sum of what it reads.

Both ends in the order of events:

    region = plane.create("probe", [PROBE_SPEC])
    sent = write_probe(region, seed)                       # owner; region.refs() goes into OpenWorker
    answered = read_probe(planes.open([request.probe]))    # peer; goes into the response
    check_probe(plane.scheme, sent, answered)              # owner
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from podrace.errors import FailedPrecondition
from podrace.tensor.v1 import tensor_pb2
from podrace.tensor.v1.tensor_pb2 import TensorSpec
from podrace.tensors.codec import LAYOUT_VERSION

PROBE_SPEC = TensorSpec(name="probe", data_type=tensor_pb2.DATA_TYPE_FLOAT64, shape=[64], layout_version=LAYOUT_VERSION)


def write_probe(region: Mapping[str, Tensor], seed: int) -> float:
    """Fills the tensor `probe` with whole numbers from 1 to 2**32, whose sum is exact in any order, and returns it."""
    generator = torch.Generator().manual_seed(seed)
    probe = region["probe"]
    probe.copy_(torch.randint(1, 2**32, probe.shape, generator=generator))
    return float(probe.sum())


def read_probe(tensors: Mapping[str, Tensor]) -> float:
    """Returns the sum of the tensor `probe` as read here."""
    return float(tensors["probe"].sum())


def check_probe(scheme: str, sent: float, answered: float) -> None:
    """Refuses a plane whose two ends do not see the same memory.

    Raises:
        FailedPrecondition: The sums differ.
    """
    if answered != sent:
        raise FailedPrecondition(
            f"plane {scheme!r} failed its self-test: {sent:.0f} was written, the peer read {answered:.0f}; the two ends"
            " do not see the same memory (do the containers share the folder?)"
        )
