"""Builds the services of a policy server with a recurrent policy, and requests that reach their code."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from google.protobuf.message import Message
from policies import published

from podrace import rpc
from podrace.inference.v2 import open_inference_pb2
from podrace.policy.loading import onnx_file
from podrace.policy.v1 import policy_service_pb2 as pb
from podrace.serving.engine import EngineLimits, PolicyEngine
from podrace.serving.inference_servicer import inference_service
from podrace.serving.servicer import policy_service
from podrace.serving.sources import FolderSource

Served = tuple[rpc.Service, Sequence[Message], Sequence[str]]
"""A service, requests, and texts that it knows."""


async def served_policies(folder: Path, stack: AsyncExitStack) -> list[Served]:
    """Returns PolicyService and the Open Inference Protocol in front of one engine."""
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
    words = ("s", first, second)
    inference = (inference_service(engine), inferences(), words)
    return [(policy_service(engine, FolderSource(folder)), seeds, words), inference]


def inferences() -> list[Message]:
    """Returns requests of the Open Inference Protocol."""
    infer = open_inference_pb2.ModelInferRequest(model_name="policy", raw_input_contents=[bytes(24)])
    infer.inputs.add(name="observation", datatype="FP32", shape=[2, 3])
    of_sequence = open_inference_pb2.ModelInferRequest(model_name="policy")
    of_sequence.inputs.add(name="observation", datatype="FP32", shape=[1, 3]).contents.fp32_contents.extend([1.0] * 3)
    of_sequence.parameters["sequence_id"].int64_param = 1
    of_sequence.parameters["sequence_start"].bool_param = True
    return [
        open_inference_pb2.ServerMetadataRequest(),
        open_inference_pb2.ModelMetadataRequest(name="policy"),
        open_inference_pb2.ModelReadyRequest(name="policy"),
        infer,
        of_sequence,
    ]
