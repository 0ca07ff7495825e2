"""Worker as a gRPC service that needs only the protos and numpy: it steps CartPole-v1 of its own for a learner.

python examples/custom/worker_service.py 127.0.0.1:50090     # [pod] worker = "grpc://127.0.0.1:50090"
"""

import hashlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import grpc
import numpy as np
from google.rpc import error_details_pb2, status_pb2

from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.tensor.v1 import tensor_pb2, tensor_pb2_grpc

LIMITS = np.array([2.4, 12 * np.pi / 180])
HIGHEST = [4.8, np.inf, 24 * np.pi / 180, np.inf]
LONGEST_EPISODE, CHUNK_BYTES = 500, 2**19


class CartPoles:
    """N cart poles (Barto, Sutton and Anderson 1983), with the constants of Gymnasium's CartPole-v1."""

    def __init__(self, count: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.states, self.ages = self.random.uniform(-0.05, 0.05, (count, 4)), np.zeros(count, np.int64)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns terminated [N], truncated [N] and the observations [N, 4] before lanes that ended were reset."""
        _, speed, angle, turn = self.states.T
        sine, cosine = np.sin(angle), np.cos(angle)
        push = (np.where(action == 1, 10.0, -10.0) + 0.05 * turn**2 * sine) / 1.1
        turning = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        speeding = push - 0.05 * turning * cosine / 1.1
        self.states = self.states + 0.02 * np.stack((speed, speeding, turn, turning), 1)
        self.ages += 1
        terminated = (np.abs(self.states[:, [0, 2]]) > LIMITS).any(1)
        truncated, final = (self.ages >= LONGEST_EPISODE) & ~terminated, self.states.copy()
        done = terminated | truncated
        self.states[done], self.ages[done] = self.random.uniform(-0.05, 0.05, (int(done.sum()), 4)), 0
        return terminated, truncated, final


class CartPoleWorker(pb_grpc.WorkerServiceServicer):
    """Serves one session of a learner at a time."""

    def __init__(self) -> None:
        self.opened: Any = None

    def OpenWorker(self, request: Any, context: Any) -> pb.OpenWorkerResponse:
        """Opens a session; returns spaces, tensors of the policy, and the sum of the probe."""
        if request.environment.id not in ("CartPole-v1", "cartpole"):
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"environment.id = {request.environment.id!r}: this is CartPole-v1"
            )
        if request.policy.recurrent_size or request.policy.head not in ("", "stochastic"):
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "policy: this worker has stochastic heads and no recurrence")
        probe = float(read(request.probe, np.float64).sum())
        seed = hashlib.sha256(f"{request.seed} {request.worker_index} {request.rollouts}".encode()).digest()[:8]
        self.poles = CartPoles(request.environment.count, int.from_bytes(seed, "little"))
        self.opened, policy = request, pb.PolicySpec()
        policy.CopyFrom(request.policy)
        statistics = ["observation_mean", "observation_variance"] if policy.normalize_observations else []
        shapes: dict[str, list[int]] = {name: [4] for name in statistics}
        for layer, (inputs, outputs) in enumerate(pairwise((4, *policy.hidden_sizes, 2))):
            shapes |= {f"actor.{layer}.weight": [outputs, inputs], f"actor.{layer}.bias": [outputs]}
        for name, shape in shapes.items():
            policy.tensors.add(name=name, shape=shape, data_type=tensor_pb2.DATA_TYPE_FLOAT32, layout_version=1)
        self.policy = policy
        observations = pb.Space(
            kind=pb.Space.KIND_CONTINUOUS,
            shape=[4],
            data_type=tensor_pb2.DATA_TYPE_FLOAT32,
            low=[-bound for bound in HIGHEST],
            high=HIGHEST,
        )
        actions = pb.Space(kind=pb.Space.KIND_DISCRETE, data_type=tensor_pb2.DATA_TYPE_INT64, choices=2)
        return pb.OpenWorkerResponse(
            observation_space=observations, action_space=actions, policy=policy, probe_sum=probe
        )

    def CollectRollout(self, request: Any, context: Any) -> pb.CollectRolloutResponse:
        """Fills a slot with one rollout of the policy (head `stochastic`, activation `tanh`)."""
        if self.opened is None or self.opened.session != request.session:
            status = status_pb2.Status(code=grpc.StatusCode.FAILED_PRECONDITION.value[0])
            status.details.add().Pack(error_details_pb2.ErrorInfo(reason="ERROR_REASON_NOT_OPEN", domain="podrace"))
            context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the session is not open; open it")
        poles, horizon = self.poles, self.opened.horizon
        shapes = [list(spec.shape) for spec in self.policy.tensors]
        parts = np.split(read(request.policy.tensor, np.float32), np.cumsum([np.prod(shape) for shape in shapes]))
        names = (spec.name for spec in self.policy.tensors)
        policy = {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=False)}
        rows: dict[str, list[np.ndarray]] = {ref.spec.name: [] for ref in request.slot.tensors}
        response = pb.CollectRolloutResponse(
            policy_version=request.policy.policy_version, environment_steps=horizon * len(poles.ages)
        )
        for _ in range(horizon):
            seen = poles.states.astype(np.float32)
            action, log_prob = self.act(policy, seen)
            lengths = poles.ages + 1
            terminated, truncated, final = poles.step(action)
            response.episode_lengths.extend(lengths[terminated | truncated])
            step = {"observation": seen, "action": action, "log_prob": log_prob, "final_observation": final}
            step |= {"reward": np.ones(len(seen)), "terminated": terminated, "truncated": truncated}
            for name, row in rows.items():
                row.append(step[name])
        rows["observation"].append(poles.states)
        response.episode_returns.extend(map(float, response.episode_lengths))
        write(request.slot, rows)
        return response

    def act(self, policy: dict[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Samples actions [N] and returns them with the logarithms of their probabilities [N]."""
        if "observation_mean" in policy:
            x = (x - policy["observation_mean"]) / np.sqrt(policy["observation_variance"] + 1e-8)
            x = x.clip(-10.0, 10.0)
        for layer in range(last := len(self.policy.hidden_sizes) + 1):
            x = x @ policy[f"actor.{layer}.weight"].T + policy[f"actor.{layer}.bias"]
            x = np.tanh(x) if layer < last - 1 else x
        x = x - x.max(1, keepdims=True)
        log_probs = x - np.log(np.exp(x).sum(1, keepdims=True))
        action = (self.poles.random.random(len(x)) < np.exp(log_probs[:, 1])).astype(np.int64)
        return action, log_probs[np.arange(len(x)), action]

    def CloseWorker(self, request: Any, context: Any) -> pb.CloseWorkerResponse:
        """Closes a session."""
        if self.opened is not None and self.opened.session == request.session:
            self.opened = None
        return pb.CloseWorkerResponse()


def read(ref: Any, kind: type[np.floating[Any]]) -> np.ndarray:
    """Fetches a tensor [n] from the learner that owns it."""
    array = np.empty(ref.spec.shape[0], kind)
    with grpc.insecure_channel(owner_of(ref)) as learner:
        request = tensor_pb2.ReadTensorsRequest(tensors=[ref])
        for answer in tensor_pb2_grpc.TensorServiceStub(learner).ReadTensors(request, timeout=60):
            start, size = answer.chunk.starts[0], answer.chunk.sizes[0]
            array[start : start + size] = np.frombuffer(answer.chunk.data, kind)
    return array


def write(slot: Any, rows: dict[str, list[np.ndarray]]) -> None:
    """Writes the columns of this worker into a slot, in chunks of at most CHUNK_BYTES."""
    kinds = {"action": np.int64, "terminated": np.bool_, "truncated": np.bool_}

    def chunks() -> Iterator[Any]:
        for ref in slot.tensors:
            array = np.stack(rows[ref.spec.name]).astype(kinds.get(ref.spec.name, np.float32))
            most = max(1, CHUNK_BYTES // array[0].nbytes)
            for first in range(0, len(array), most):
                part = array[first : first + most]
                data, starts = part.tobytes(), [slot.first_row + first, slot.first_environment, *[0] * (part.ndim - 2)]
                digest = hashlib.sha256(data).hexdigest()
                chunk = tensor_pb2.TensorChunk(tensor=ref, starts=starts, sizes=part.shape, data=data, digest=digest)
                yield tensor_pb2.WriteTensorsRequest(chunk=chunk)

    with grpc.insecure_channel(owner_of(slot.tensors[0])) as learner:
        tensor_pb2_grpc.TensorServiceStub(learner).WriteTensors(chunks(), timeout=60)


def owner_of(ref: Any) -> str:
    """Returns the address of the learner whose tensor this is."""
    return str(ref.plane_uri.removeprefix("grpc:").rpartition("/")[0])


if __name__ == "__main__":
    server = grpc.server(ThreadPoolExecutor(8))
    pb_grpc.add_WorkerServiceServicer_to_server(CartPoleWorker(), server)
    print(server.add_insecure_port(sys.argv[1]), flush=True)
    server.start()
    server.wait_for_termination()
