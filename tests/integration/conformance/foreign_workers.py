"""A worker that keeps the contract, and workers that break it; written from agentpod.proto and tensor.proto alone.

`breaks` of a broken worker is the requirement of the contract that it breaks, in the words of the contract.
"""

import hashlib
import threading
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import grpc
import numpy as np
from foreign_evaluators import named, read
from foreign_simulators import ACTIONS, OBSERVATIONS, Walks
from google.rpc import error_details_pb2, status_pb2

from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.orchestrator.v1.orchestrator_pb2 import ROLE_PHASE_COLLECTING
from podrace.tensor.v1 import tensor_pb2, tensor_pb2_grpc

TYPES = {
    "observation": np.float32,
    "action": np.int64,
    "log_prob": np.float32,
    "reward": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "final_observation": np.float32,
}


class Session:
    """The environments and the network of an open session."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self.walks = Walks(request.environment.count)
        self.walks.reset(int(hashlib.sha256(f"{request.seed} {request.rollouts}".encode()).hexdigest()[:8], 16))
        self.returns = np.zeros(request.environment.count)
        self.lengths = np.zeros(request.environment.count, np.int64)
        self.hidden = np.zeros((request.environment.count, request.policy.recurrent_size))
        self.policy = pb.PolicySpec()
        self.policy.CopyFrom(request.policy)
        for name, shape in self.tensors():
            self.policy.tensors.add(name=name, shape=shape, data_type=tensor_pb2.DATA_TYPE_FLOAT32, layout_version=1)

    def tensors(self) -> Iterator[tuple[str, list[int]]]:
        """Names and shapes of the parts of the policy."""
        if self.request.policy.normalize_observations:
            yield "observation_mean", [3]
            yield "observation_variance", [3]
        size, widths = self.request.policy.recurrent_size, [3, *self.request.policy.hidden_sizes]
        for layer, (inputs, outputs) in enumerate(pairwise(widths if size else [*widths, 2])):
            yield f"actor.{layer}.weight", [outputs, inputs]
            yield f"actor.{layer}.bias", [outputs]
        if size:
            for part, inputs in (("input", widths[-1]), ("state", size)):
                yield f"actor.recurrent.{part}_weight", [3 * size, inputs]
                yield f"actor.recurrent.{part}_bias", [3 * size]
            yield "actor.output.0.weight", [2, size]
            yield "actor.output.0.bias", [2]
        if self.request.policy.head == "values":
            yield "exploration", [1]

    def act(self, policy: dict[str, np.ndarray], x: np.ndarray, random: Random) -> tuple[np.ndarray, np.ndarray]:
        """Chooses an action for each lane; returns actions and the logarithms of their probabilities."""
        if "observation_mean" in policy:
            x = (x - policy["observation_mean"]) / np.sqrt(policy["observation_variance"] + 1e-8)
            x = np.clip(x, -10, 10)
        last = len(self.request.policy.hidden_sizes)
        for layer in range(last + (not self.hidden.size)):
            x = x @ policy[f"actor.{layer}.weight"].T + policy[f"actor.{layer}.bias"]
            x = np.tanh(x) if layer < last else x
        if self.hidden.size:
            self.hidden = self.next_hidden(policy, x)
            x = self.hidden @ policy["actor.output.0.weight"].T + policy["actor.output.0.bias"]
        log_probs = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
        if "exploration" in policy:
            explores = [random.random() < policy["exploration"][0] for _ in x]
            choices = x.argmax(axis=1)
            actions = np.array([random.randrange(2) if e else c for e, c in zip(explores, choices, strict=True)])
        else:
            actions = np.array([int(random.random() < np.exp(row[1])) for row in log_probs])
        return actions, log_probs[np.arange(len(actions)), actions]

    def next_hidden(self, policy: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
        """The gated recurrent unit."""
        part = "actor.recurrent."
        given = np.split(x @ policy[f"{part}input_weight"].T + policy[f"{part}input_bias"], 3, axis=1)
        kept = np.split(self.hidden @ policy[f"{part}state_weight"].T + policy[f"{part}state_bias"], 3, axis=1)
        r, z = (1.0 / (1.0 + np.exp(-given[i] - kept[i])) for i in range(2))
        return (1.0 - z) * np.tanh(given[2] + r * kept[2]) + z * self.hidden


class Worker(pb_grpc.WorkerServiceServicer):
    """Collects rollouts of walks over the plane `grpc`."""

    breaks = ""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.steps = 0

    def OpenWorker(self, request: Any, context: Any) -> pb.OpenWorkerResponse:
        """Opens a session."""
        if request.environment.id != "walk":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"there is no environment '{request.environment.id}'")
        total = self.probe(request.probe)
        self.session = Session(request)
        return pb.OpenWorkerResponse(
            observation_space=OBSERVATIONS, action_space=ACTIONS, policy=self.session.policy, probe_sum=total
        )

    def probe(self, ref: Any) -> float:
        """The sum of the probe."""
        return float(read(ref, np.float64).sum())

    def CollectRollout(self, request: Any, context: Any) -> pb.CollectRolloutResponse:
        """Fills a slot."""
        if self.session is None or self.session.request.session != request.session:
            self.not_open(context)
        try:
            policy = self.read_policy(request.policy)
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())
        arrays, response = self.collect(request, policy)
        self.write(request.slot, arrays)
        return response

    def read_policy(self, ref: Any) -> dict[str, np.ndarray]:
        """Reads the policy that is to act."""
        return named(self.session.policy, read(ref.tensor, np.float32))

    def not_open(self, context: Any) -> None:
        """Refuses a session that is not open."""
        self.give_reason(context, "ERROR_REASON_NOT_OPEN")
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the session is not open; open it")

    def give_reason(self, context: Any, reason: str) -> None:
        """Describes the error that follows."""
        status = status_pb2.Status(code=grpc.StatusCode.FAILED_PRECONDITION.value[0])
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="podrace"))
        context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])

    def collect(self, request: Any, policy: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], Any]:
        """Steps the environments."""
        session, walks = self.session, self.session.walks
        horizon, count = session.request.horizon, walks.count
        random = Random(f"{session.request.seed} {request.rollout}")
        arrays = {name: np.zeros((horizon, count), kind) for name, kind in TYPES.items()}
        arrays["observation"] = np.zeros((horizon + 1, count, 3), np.float32)
        arrays["final_observation"] = np.zeros((horizon, count, 3), np.float32)
        arrays["state"] = session.hidden.astype(np.float32)[None]
        response = pb.CollectRolloutResponse(
            policy_version=request.policy.policy_version, environment_steps=horizon * count
        )
        for row in range(horizon):
            arrays["observation"][row] = walks.states
            actions, arrays["log_prob"][row] = session.act(policy, walks.states.astype(np.float64), random)
            arrays["action"][row] = actions
            stepped = walks.act(actions)
            self.steps += count
            for name in ("reward", "terminated", "truncated"):
                arrays[name][row] = np.frombuffer(getattr(stepped, name), TYPES[name])
            finals = np.frombuffer(stepped.final_observation, np.float32).reshape(-1, 3)
            arrays["final_observation"][row, list(stepped.final_lanes)] = finals
            session.returns += arrays["reward"][row]
            session.lengths += 1
            for lane in stepped.final_lanes:
                response.episode_returns.append(float(session.returns[lane]))
                response.episode_lengths.append(int(session.lengths[lane]))
                session.returns[lane] = session.lengths[lane] = 0
                self.forget(lane)
        arrays["observation"][horizon] = walks.states
        if len(request.slot.tensors) and request.slot.tensors[0].spec.shape[0] != horizon + 1:
            self.end_in_memory(arrays, walks.states)
        return arrays, response

    def forget(self, lane: int) -> None:
        """Begins an episode without what was seen before."""
        self.session.hidden[lane] = 0.0

    def end_in_memory(self, arrays: dict[str, np.ndarray], states: np.ndarray) -> None:
        """Stores the observation after the last step of a segment of a replay memory."""
        arrays["observation"] = arrays["observation"][:-1]
        cut = arrays["truncated"][-1][:, None]
        arrays["final_observation"][-1] = np.where(cut, arrays["final_observation"][-1], states)

    def write(self, slot: Any, arrays: dict[str, np.ndarray]) -> None:
        """Writes the columns of this worker."""

        def chunks() -> Iterator[Any]:
            for ref in slot.tensors:
                array = np.ascontiguousarray(arrays[ref.spec.name])
                data = array.tobytes()
                yield tensor_pb2.WriteTensorsRequest(
                    chunk=tensor_pb2.TensorChunk(
                        tensor=ref,
                        starts=[self.first_row(slot), self.first_column(slot), *[0] * (array.ndim - 2)],
                        sizes=array.shape,
                        data=data,
                        digest=self.digest(data),
                    )
                )

        address = slot.tensors[0].plane_uri.removeprefix("grpc:").rpartition("/")[0]
        with grpc.insecure_channel(address) as owner:
            tensor_pb2_grpc.TensorServiceStub(owner).WriteTensors(chunks(), timeout=10)

    def first_row(self, slot: Any) -> int:
        """The first row that is written."""
        return int(slot.first_row)

    def first_column(self, slot: Any) -> int:
        """The first column that is written."""
        return int(slot.first_environment)

    def digest(self, data: bytes) -> str:
        """The digest of a chunk."""
        return hashlib.sha256(data).hexdigest()

    def GetWorker(self, request: Any, context: Any) -> pb.GetWorkerResponse:
        """Reports the progress."""
        response = pb.GetWorkerResponse()
        response.progress.phase, response.progress.counter = ROLE_PHASE_COLLECTING, self.steps
        return response

    def CloseWorker(self, request: Any, context: Any) -> pb.CloseWorkerResponse:
        """Closes a session."""
        if self.session is not None and self.session.request.session == request.session:
            self.session = None
        return pb.CloseWorkerResponse()


class FirstColumn(Worker):
    """Writes from column 0 on, into the columns of another worker."""

    breaks = "this worker writes the N columns from `first_environment` on and no others"

    def first_column(self, slot: Any) -> int:
        return 0


class StalePolicy(Worker):
    """Always acts with the first policy of the session."""

    breaks = "logarithm of the probability (density) of that action"
    first: Any = None

    def read_policy(self, ref: Any) -> dict[str, np.ndarray]:
        self.first = self.first or super().read_policy(ref)
        return self.first


class UnfinishedObservations(Worker):
    """Leaves the last observations of truncated episodes out."""

    breaks = "last observation of the episode; written only where truncated"

    def collect(self, request: Any, policy: Any) -> Any:
        arrays, response = super().collect(request, policy)
        arrays["final_observation"][:] = 0.0
        return arrays, response


class NoLastRow(Worker):
    """Leaves out the observation after the last step."""

    breaks = "the last row is the observation after the last step"

    def collect(self, request: Any, policy: Any) -> Any:
        arrays, response = super().collect(request, policy)
        arrays["observation"] = arrays["observation"][:-1]
        return arrays, response


class WrongVersion(Worker):
    """Reports the number of the rollout as the version of the policy."""

    breaks = "Version of the policy that acted"

    def collect(self, request: Any, policy: Any) -> Any:
        arrays, response = super().collect(request, policy)
        response.policy_version = request.rollout
        return arrays, response


class OpenForEver(Worker):
    """Collects without a session, with the environments of the last one."""

    breaks = "FAILED_PRECONDITION (NOT_OPEN) if the session is not open"

    def not_open(self, context: Any) -> None:
        if self.session is None:
            raise RuntimeError("no session")

    def CloseWorker(self, request: Any, context: Any) -> pb.CloseWorkerResponse:
        return pb.CloseWorkerResponse()


class GivesNoReason(Worker):
    """Leaves out why a call failed."""

    breaks = "the process that was called does not know this session or group"

    def give_reason(self, context: Any, reason: str) -> None:
        pass


class GivesAnotherReason(Worker):
    """Gives a reason that does not fit."""

    breaks = "the process that was called does not know this session or group"

    def give_reason(self, context: Any, reason: str) -> None:
        super().give_reason(context, "ERROR_REASON_FAILED_PRECONDITION")


class ClosesAny(Worker):
    """Closes its session whatever session is named."""

    breaks = "Has no effect on another session"

    def CloseWorker(self, request: Any, context: Any) -> pb.CloseWorkerResponse:
        self.session = None
        return pb.CloseWorkerResponse()


class BusyWorker(Worker):
    """Answers GetWorker only between rollouts."""

    breaks = "Does not block, even during a rollout"

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def CollectRollout(self, request: Any, context: Any) -> Any:
        with self.lock:
            threading.Event().wait(4)
            return super().CollectRollout(request, context)

    def GetWorker(self, request: Any, context: Any) -> Any:
        with self.lock:
            return super().GetWorker(request, context)


class Unverified(Worker):
    """States a digest that is not that of the chunk."""

    breaks = "SHA-256 of `data`, in lower-case hexadecimal"

    def digest(self, data: bytes) -> str:
        return hashlib.sha256(b"").hexdigest()


class WrongReturns(Worker):
    """Reports the returns of episodes discounted."""

    breaks = "Undiscounted returns of the episodes that finished"

    def collect(self, request: Any, policy: Any) -> Any:
        arrays, response = super().collect(request, policy)
        shorter = [value * 0.99 for value in response.episode_returns]
        del response.episode_returns[:]
        response.episode_returns.extend(shorter)
        return arrays, response


BROKEN = [
    FirstColumn,
    StalePolicy,
    UnfinishedObservations,
    NoLastRow,
    WrongVersion,
    OpenForEver,
    ClosesAny,
    GivesNoReason,
    GivesAnotherReason,
    BusyWorker,
    Unverified,
    WrongReturns,
]
