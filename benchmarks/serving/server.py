"""Starts a policy server in another process, on random policies with the parameters of the benchmark."""

import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from podrace.checkpoint.v1.policy_pb2 import PolicyDescription, SpaceDescription
from podrace.policy.graph import Member, build
from podrace.policy.metadata import MemberFacts, as_metadata
from podrace.tensor.v1 import tensor_pb2

OBSERVATION, CHOICES, HIDDEN = 8, 4, (256, 256)


class Server(NamedTuple):
    """A running server."""

    address: str
    folder: Path
    process: asyncio.subprocess.Process


def description() -> PolicyDescription:
    return PolicyDescription(
        steps_version=1,
        observation_space=SpaceDescription(
            kind="continuous", shape=[OBSERVATION], data_type=tensor_pb2.DATA_TYPE_FLOAT32
        ),
        action_space=SpaceDescription(kind="discrete", data_type=tensor_pb2.DATA_TYPE_INT64, choices=CHOICES),
        normalization="none",
        torso="none",
        hidden_sizes=HIDDEN,
        activation="tanh",
        head="stochastic",
        part="policy",
    )


def model(seed: int) -> bytes:
    """Returns an ONNX file with random parameters; its version is the seed."""
    random, tensors, sizes = np.random.default_rng(seed), {}, [OBSERVATION, *HIDDEN, CHOICES]
    for number, (before, after) in enumerate(itertools.pairwise(sizes)):
        tensors[f"actor.{2 * number}.weight"] = random.standard_normal((after, before)).astype(np.float32) / before**0.5
        tensors[f"actor.{2 * number}.bias"] = np.zeros(after, np.float32)
    facts = MemberFacts(version(seed), "benchmark", f"benchmark-a{seed}", "ppo", description(), {})
    return build([Member(description(), tensors)], as_metadata([facts]))


def version(seed: int) -> str:
    return f"{seed:064x}"


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Server]:
    """Runs `python -m podrace.serving` on a Unix socket, so that neither tokens nor TLS are measured."""
    with tempfile.TemporaryDirectory(prefix="podrace-bench-") as name:
        folder = Path(name)
        (folder / "policy.onnx").write_bytes(model(1))
        keys = {"folder": name, "server.listen": f"unix:{name}/socket", "rest_listen": "", "poll_seconds": 0.05}
        keys |= {"telemetry.metrics_listen": "", "telemetry.log_level": "error"}
        overrides = [argument for key, value in keys.items() for argument in ("--set", f"{key}={value}")]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "podrace.serving", *overrides), stdout=asyncio.subprocess.PIPE, env=os.environ
        )
        try:
            assert process.stdout
            facts = json.loads(await process.stdout.readline())
            yield Server(facts["grpc"], folder, process)
        finally:
            process.terminate()
            await process.wait()
