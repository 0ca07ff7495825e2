"""Evaluator plugin as a gRPC service that needs only the protos and numpy: it plays one action in ten at random.

python examples/custom/evaluator_service.py 127.0.0.1:50080     # [evaluation] evaluator = "grpc://127.0.0.1:50080"
"""

import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import gymnasium
import numpy as np
import safetensors.numpy

from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.tensor.v1 import tensor_pb2, tensor_pb2_grpc


def read(ref: Any, kind: type[np.floating[Any]]) -> np.ndarray:
    """Fetches a tensor [n] from the pod that owns it."""
    array = np.empty(ref.spec.shape[0], kind)
    with grpc.insecure_channel(ref.plane_uri.removeprefix("grpc:").rpartition("/")[0]) as pod:
        request = tensor_pb2.ReadTensorsRequest(tensors=[ref])
        for answer in tensor_pb2_grpc.TensorServiceStub(pod).ReadTensors(request, timeout=60):
            start, size = answer.chunk.starts[0], answer.chunk.sizes[0]
            array[start : start + size] = np.frombuffer(answer.chunk.data, kind)
    return array


def act(policy: dict[str, np.ndarray], x: np.ndarray) -> int:
    """Chooses an action in CartPole-v1: one in ten at random, else the most likely one of a tanh network."""
    x = (x - policy["observation_mean"]) / np.sqrt(policy["observation_variance"] + 1e-8)
    for layer in range(last := sum(".weight" in name for name in policy)):
        x = policy[f"actor.{layer}.weight"] @ x + policy[f"actor.{layer}.bias"]
        x = np.tanh(x) if layer < last - 1 else x
    return int(x.argmax())


def play(environment: Any, policy: dict[str, np.ndarray], seed: int) -> float:
    """Plays one episode and returns its return."""
    random, total, over, observation = np.random.default_rng(seed), 0.0, False, environment.reset(seed=seed)[0]
    while not over:
        action = int(random.integers(2)) if random.random() < 0.1 else act(policy, observation)
        observation, reward, terminated, truncated, _ = environment.step(action)
        total, over = total + reward, terminated or truncated
    return total


class ClumsyEvaluator(pb_grpc.EvaluatorServiceServicer):
    """Serves sessions of pods; stores the request that opened each session."""

    def __init__(self) -> None:
        self.opened: dict[str, Any] = {}

    def OpenEvaluator(self, request: Any, context: Any) -> pb.OpenEvaluatorResponse:
        """Opens a session; returns the sum of the probe, which proves that the service can read the pod's tensors."""
        if request.environment.id not in ("CartPole-v1", "cartpole"):
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"'{request.environment.id}': only CartPole-v1 is known here"
            )
        self.opened[request.session] = request
        return pb.OpenEvaluatorResponse(probe_sum=read(request.probe, np.float64).sum())

    def CloseEvaluator(self, request: Any, context: Any) -> pb.CloseEvaluatorResponse:
        """Closes a session."""
        self.opened.pop(request.session, None)
        return pb.CloseEvaluatorResponse()

    def EvaluatePolicy(self, request: Any, context: Any) -> pb.EvaluatePolicyResponse:
        """Fetches the policy, plays, and returns the score and the digest of the policy that played."""
        if request.session not in self.opened:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not open")
        specs, flat = self.opened[request.session].policy.tensors, read(request.policy.tensor, np.float32)
        ends = np.cumsum([int(np.prod(spec.shape)) for spec in specs])
        parts = [part.reshape(spec.shape) for spec, part in zip(specs, np.split(flat, ends), strict=False)]
        policy = {spec.name: np.ascontiguousarray(part) for spec, part in zip(specs, parts, strict=True)}
        environment = gymnasium.make(self.opened[request.session].environment.id)
        returns = [play(environment, policy, (request.seed + index) % 2**31) for index in range(request.episodes)]
        response = pb.EvaluatePolicyResponse()
        response.evaluation.mean_return = float(np.mean(returns))
        response.evaluation.variance = float(np.var(returns, ddof=1)) if len(returns) > 1 else 0.0
        response.evaluation.episodes = len(returns)
        response.evaluation.policy_digest = hashlib.sha256(safetensors.numpy.save(policy)).hexdigest()
        return response


if __name__ == "__main__":
    server = grpc.server(ThreadPoolExecutor(8))
    pb_grpc.add_EvaluatorServiceServicer_to_server(ClumsyEvaluator(), server)
    print(server.add_insecure_port(sys.argv[1]), flush=True)
    server.start()
    server.wait_for_termination()
