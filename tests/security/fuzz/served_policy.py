"""Builds a PolicyService that serves a recurrent policy, with requests that reach its code."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from google.protobuf.message import Message
from policies import published

from podrace import rpc
from podrace.policy.loading import onnx_file
from podrace.policy.v1 import policy_service_pb2 as pb
from podrace.serving.engine import EngineLimits, PolicyEngine
from podrace.serving.servicer import policy_service
from podrace.serving.sources import FolderSource


async def served_policy(folder: Path, stack: AsyncExitStack) -> tuple[rpc.Service, Sequence[Message], Sequence[str]]:
    """Returns the service, requests, and texts that it knows."""
    models = [onnx_file([published("recurrent", seed).checkpoint]) for seed in (1, 2)]
    (folder / "policy.onnx").write_bytes(models[1])
    engine = PolicyEngine(EngineLimits(), clock=asyncio.get_running_loop().time)
    stack.push_async_callback(engine.close)
    for model in models:
        await engine.offer(model)
    first, second = (f"{seed:064x}" for seed in (1, 2))
    seen, session = bytes(24), {"session_id": "s"}
    seeds = [
        pb.DescribePolicyRequest(version=first),
        pb.ActRequest(observations=seen, mode=pb.ACTION_MODE_SAMPLED, seed=1, state=bytes(40)),
        pb.ActRequest(observations=seen, begin=True, **session),
        pb.ActRequest(observations=seen, begin_lanes=[1], **session),
        pb.ActRequest(observations=seen, version=first),
        pb.EndSessionRequest(**session),
        pb.GetServingRequest(),
        pb.PinVersionRequest(version=second),
        pb.FollowSourceRequest(),
        pb.RollBackRequest(from_version=second),
        pb.StartComparisonRequest(version=first, share=0.5),
        pb.EndComparisonRequest(),
    ]
    return policy_service(engine, FolderSource(folder)), seeds, ("s", first, second)
