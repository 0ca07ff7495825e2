"""Checkpoints of policies of every kind, and the torch policies that they are of."""

import math
from dataclasses import dataclass

import torch

from agentpod.models.description import describe
from agentpod.models.description import test_vectors as vectors_of
from agentpod.models.policy import NetworkSpec, Policy
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.client.delivery import FetchedCheckpoint
from podrace.spaces.entries import Entry, width
from podrace.tensor_transport.codec import encode
from simulators.base import Space

VECTOR = Space("continuous", (3,), torch.float32, low=(-math.inf,) * 3, high=(1.0, 2.0, math.inf))
PICTURE = Space("continuous", (12, 14, 3), torch.uint8)
FIRST = Space("continuous", (4, 40, 44), torch.uint8)
CHOICE = Space("discrete", (), torch.int64, n=4)
FORCE = Space("continuous", (2, 1), torch.float32, low=(-2.0, 0.0), high=(2.0, math.inf))
NUMBER = Space("continuous", (5,), torch.float32, low=(0.0,) * 5, high=(1.0,) * 5, n=5)
ENTRIES = (
    Entry("camera", "bytes", (12, 14, 3)),
    Entry("place.x", "vector", (2,)),
    Entry("action_mask", "mask", (4,)),
    Entry("kind", "one_hot", (2,), (3, 2), (1, 0)),
    Entry("lamps", "flags", (2,)),
)
MIXED = Space("composite", (width(ENTRIES),), torch.float32, entries=ENTRIES)
VECTORS = Space("composite", (3,), torch.float32, entries=(Entry("a", "vector", (1,)), Entry("b", "vector", (2,))))
BYTES = Space("composite", (width(ENTRIES[::3]),), torch.uint8, entries=ENTRIES[::3])
PAIR = Space("multi_discrete", (2,), torch.int64, choices=(3, 1))
GRID = Space("multi_discrete", (2, 2), torch.int64, choices=(3, 2, 5, 2))
FLAGS = Space("multi_binary", (2, 2), torch.int64)
BOUNDED = Space("continuous", (2,), torch.float32, low=(-2.0, 1.0), high=(2.0, 9.0))

CASES = {
    "gaussian": (VECTOR, FORCE, NetworkSpec()),
    "squashed": (VECTOR, BOUNDED, NetworkSpec((16, 8), "relu", head="squashed")),
    "deterministic": (VECTOR, BOUNDED, NetworkSpec((16,), "relu", head="deterministic")),
    "number": (NUMBER, CHOICE, NetworkSpec((8,))),
    "logits": (VECTOR, CHOICE, NetworkSpec((8,), "elu", normalize_observations=False)),
    "values": (VECTOR, CHOICE, NetworkSpec((), head="values")),
    "recurrent": (VECTOR, CHOICE, NetworkSpec((8,), recurrent_size=5)),
    "recurrent-force": (VECTOR, BOUNDED, NetworkSpec((8, 8), recurrent_size=7, head="squashed")),
    "pixels-last": (PICTURE, CHOICE, NetworkSpec((8,), "relu", head="dueling", torso="small")),
    "pixels-first": (FIRST, BOUNDED, NetworkSpec((8,), "tanh", torso="nature")),
    "flat-pixels": (PICTURE, CHOICE, NetworkSpec((8,))),
    "dict": (MIXED, CHOICE, NetworkSpec((8, 6), "relu", torso="small")),
    "dict-values": (MIXED, CHOICE, NetworkSpec((8,), "relu", head="values", normalize_observations=False)),
    "dict-dueling": (MIXED, CHOICE, NetworkSpec((8,), "elu", head="dueling")),
    "dict-pair": (MIXED, PAIR, NetworkSpec((8, 8), recurrent_size=4)),
    "dict-force": (VECTORS, BOUNDED, NetworkSpec((8,), head="squashed")),
    "dict-bytes": (BYTES, FLAGS, NetworkSpec((8,), torso="small")),
    "dict-flags": (MIXED, FLAGS, NetworkSpec((8,), torso="small")),
    "grid": (VECTOR, GRID, NetworkSpec((8,))),
    "flags": (VECTOR, FLAGS, NetworkSpec((8,))),
    "recurrent-pixels": (PICTURE, CHOICE, NetworkSpec((8,), "relu", torso="small", recurrent_size=4)),
}


@dataclass(frozen=True)
class Published:
    policy: Policy
    checkpoint: FetchedCheckpoint


def published(case: str, seed: int = 3) -> Published:
    """A policy with random parameters, and its checkpoint as a client fetches it."""
    policy = Policy(*CASES[case])
    policy.initialize(torch.Generator().manual_seed(seed), output_gain=1.0)
    policy.set_head_parameter("log_std", -0.7)
    policy.set_head_parameter("exploration", 0.3)
    if policy.normalizes:
        repeats = -(-math.prod(CASES[case][0].shape) // 3)
        statistics = torch.tensor([[1.0, -2.0, 0.5], [4.0, 0.01, 1.0]]).repeat(1, repeats)
        policy.set_statistics(*statistics[:, : math.prod(CASES[case][0].shape)])
    manifest = Manifest(
        format_version=1,
        tournament_id="race-1",
        agent_id=f"race-1-a{seed}",
        algorithm="ppo",
        policies={"agent": describe(policy)},
    )
    parts = {"policy": encode(policy.tensors(), {}), "test_vectors": encode(vectors_of(policy), {})}
    return Published(policy, FetchedCheckpoint(f"{seed:064x}", b"", manifest, parts))
