"""Acts with a policy server in a container: by PolicyService and by the Open Inference Protocol, over gRPC and HTTP."""

import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import gymnasium
import numpy as np
from numpy.typing import NDArray

from podrace.inference.v2 import open_inference_pb2 as inference
from podrace.inference.v2 import open_inference_pb2_grpc as inference_grpc
from podrace.policy.v1 import policy_service_pb2 as policy
from podrace.policy.v1 import policy_service_pb2_grpc as policy_grpc

CALL_SECONDS = 10.0
OBSERVATIONS = 64
Rows = NDArray[np.float32]


@dataclass(frozen=True)
class ServedPolicy:
    """The addresses of a policy server for CartPole, and what its callers present."""

    certificate_address: str
    """gRPC, callers with certificates."""
    token_address: str
    """gRPC, callers with tokens."""
    http_address: str
    """HTTP, callers with tokens."""
    authority: bytes
    """Certificate of the authority of the mesh."""
    operator: grpc.ChannelCredentials
    token: str
    """Of a viewer."""

    @contextmanager
    def channel(self, *, by_token: bool) -> Iterator[grpc.Channel]:
        """Opens a channel, with the certificate of the operator or with the token."""
        if not by_token:
            with grpc.secure_channel(self.certificate_address, self.operator) as channel:
                yield channel
            return
        authority = grpc.ssl_channel_credentials(self.authority)
        caller = grpc.access_token_call_credentials(self.token)
        credentials = grpc.composite_channel_credentials(authority, caller)
        with grpc.secure_channel(self.token_address, credentials) as channel:
            yield channel

    def reached(self) -> bool:
        """Whether all three addresses accept connections: a node opens those of a service after its pods are ready."""
        for address in (self.certificate_address, self.token_address, self.http_address):
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host, int(port)), timeout=CALL_SECONDS).close()
            except OSError:
                return False
        return True

    def actions(self, observations: Rows, *, by_token: bool) -> list[int]:
        """Returns greedy actions of PolicyService."""
        with self.channel(by_token=by_token) as channel:
            request = policy.ActRequest(observations=observations.astype("<f4").tobytes())
            answer = policy_grpc.PolicyServiceStub(channel).Act(request, timeout=CALL_SECONDS)
        return list(np.frombuffer(answer.actions, "<i8"))

    def inferred(self, observations: Rows) -> list[int]:
        """Returns actions of the Open Inference Protocol over gRPC."""
        tensor = inference.ModelInferRequest.InferInputTensor(
            name="observation", datatype="FP32", shape=observations.shape
        )
        content = observations.astype("<f4").tobytes()
        request = inference.ModelInferRequest(model_name="policy", inputs=[tensor], raw_input_contents=[content])
        with self.channel(by_token=True) as channel:
            answer = inference_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=CALL_SECONDS)
        names = [output.name for output in answer.outputs]
        return list(np.frombuffer(answer.raw_output_contents[names.index("action")], "<i8"))

    def over_http(self, path: str, body: Any = None, token: str = "") -> tuple[int, Any]:
        """Returns the status and the JSON of an HTTP answer."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(f"https://{self.http_address}{path}", data=data, headers=headers)
        context = ssl.create_default_context(cadata=self.authority.decode())
        try:
            with urllib.request.urlopen(request, timeout=CALL_SECONDS, context=context) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def inferred_over_http(self, observations: Rows, token: str) -> tuple[int, list[int]]:
        """Returns the status, and actions of the Open Inference Protocol over HTTP."""
        data = observations.flatten().tolist()
        shape = list(observations.shape)
        inputs = [{"name": "observation", "datatype": "FP32", "shape": shape, "data": data}]
        status, answer = self.over_http("/v2/models/policy/infer", {"inputs": inputs}, token)
        outputs = {output["name"]: output["data"] for output in answer.get("outputs", ())}
        return status, outputs.get("action", [])

    def episode(self, seed: int) -> float:
        """Plays an episode of CartPole and returns its return."""
        environment = gymnasium.make("CartPole-v1")
        observation, _ = environment.reset(seed=seed)
        total, ended = 0.0, False
        with self.channel(by_token=False) as channel:
            stub = policy_grpc.PolicyServiceStub(channel)
            while not ended:
                request = policy.ActRequest(observations=observation.astype("<f4").tobytes())
                answer = stub.Act(request, timeout=CALL_SECONDS)
                action = int(np.frombuffer(answer.actions, "<i8")[0])
                observation, reward, terminated, truncated, _ = environment.step(action)
                total, ended = total + float(reward), terminated or truncated
        return total


def observations() -> Rows:
    """Returns some observations of CartPole, always the same."""
    return np.random.default_rng(1).uniform(-0.2, 0.2, (OBSERVATIONS, 4)).astype(np.float32)


def check(served: ServedPolicy, least_return: float) -> None:
    """Checks that every way leads to the same policy, that it acts well, and that callers must say who they are."""
    assert served.over_http("/v2/health/live")[0] == 200
    assert served.over_http("/v2/health/ready") == (200, {"ready": True})
    rows = observations()
    actions = served.actions(rows, by_token=False)
    assert set(actions) == {0, 1}
    assert served.actions(rows, by_token=True) == actions
    assert served.inferred(rows) == actions
    assert served.inferred_over_http(rows, served.token) == (200, actions)
    assert served.inferred_over_http(rows, "") == (401, [])
    assert np.mean([served.episode(seed) for seed in range(3)]) >= least_return
