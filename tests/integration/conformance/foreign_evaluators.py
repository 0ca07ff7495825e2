"""An evaluator plugin that keeps the contract, and plugins that break it; written from agentpod.proto alone.

`breaks` of a broken plugin is the requirement of the contract that it breaks, in the words of the contract.
"""

import hashlib
import threading
from random import Random, SystemRandom
from typing import Any

import grpc
import numpy as np
import safetensors.numpy

from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.tensor.v1 import tensor_pb2, tensor_pb2_grpc


def read(ref: Any, kind: Any) -> np.ndarray:
    """Fetches a tensor [n] from the process that owns it."""
    array = np.zeros(ref.spec.shape[0], kind)
    with grpc.insecure_channel(ref.plane_uri.removeprefix("grpc:").rpartition("/")[0]) as owner:
        request = tensor_pb2.ReadTensorsRequest(tensors=[ref])
        for answer in tensor_pb2_grpc.TensorServiceStub(owner).ReadTensors(request, timeout=10):
            start, size = answer.chunk.starts[0], answer.chunk.sizes[0]
            array[start : start + size] = np.frombuffer(answer.chunk.data, kind)
    return array


def named(policy: Any, flat: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors of a policy by name."""
    ends = np.cumsum([int(np.prod(spec.shape)) for spec in policy.tensors])
    parts = zip(policy.tensors, np.split(flat, ends), strict=False)
    return {spec.name: np.ascontiguousarray(part.reshape(spec.shape)) for spec, part in parts}


class Evaluator(pb_grpc.EvaluatorServiceServicer):
    """Plays a game of chance in which the parameters of the policy are its luck; keeps the contract."""

    breaks = ""

    def __init__(self) -> None:
        self.sessions: dict[str, Any] = {}

    def OpenEvaluator(self, request: Any, context: Any) -> pb.OpenEvaluatorResponse:
        """Opens a session."""
        self.check(request, context)
        self.sessions[request.session] = request
        return pb.OpenEvaluatorResponse(probe_sum=float(read(request.probe, np.float64).sum()))

    def check(self, request: Any, context: Any) -> None:
        """Refuses an environment that cannot be made."""
        if request.environment.id not in ("CartPole-v1", "cartpole"):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"there is no environment '{request.environment.id}'")

    def CloseEvaluator(self, request: Any, context: Any) -> pb.CloseEvaluatorResponse:
        """Closes a session."""
        self.sessions.pop(request.session, None)
        return pb.CloseEvaluatorResponse()

    def EvaluatePolicy(self, request: Any, context: Any) -> pb.EvaluatePolicyResponse:
        """Scores a policy."""
        if request.session not in self.sessions:
            self.not_open(context)
        flat = read(request.policy.tensor, np.float32)
        policy = named(self.sessions[request.session].policy, flat)
        returns = self.play(float(flat.sum()), request.seed, request.episodes)
        response = pb.EvaluatePolicyResponse()
        response.evaluation.mean_return = float(np.mean(returns))
        response.evaluation.variance = float(np.var(returns, ddof=1)) if len(returns) > 1 else 0.0
        response.evaluation.episodes = len(returns)
        response.evaluation.seed = request.seed
        response.evaluation.episode_returns.extend(returns)
        response.evaluation.policy_digest = hashlib.sha256(safetensors.numpy.save(policy)).hexdigest()
        return response

    def not_open(self, context: Any) -> None:
        """Refuses a session that is not open."""
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the session is not open; open it")

    def play(self, luck: float, seed: int, episodes: int) -> list[float]:
        """Returns of the first episodes of a seed."""
        return [Random(f"{seed} {episode}").random() + luck for episode in range(episodes)]


class WrongProbe(Evaluator):
    """Does not read the probe."""

    breaks = "Sum of the elements of the probe as read by the evaluator"

    def OpenEvaluator(self, request: Any, context: Any) -> pb.OpenEvaluatorResponse:
        self.sessions[request.session] = request
        return pb.OpenEvaluatorResponse(probe_sum=0.0)


class FirstPolicyForEver(Evaluator):
    """Reads the first policy of a session, and scores it whatever policy is asked for."""

    breaks = "the digest of the policy that earned it"

    def EvaluatePolicy(self, request: Any, context: Any) -> pb.EvaluatePolicyResponse:
        if not hasattr(self, "first"):
            self.first = super().EvaluatePolicy(request, context)
        return self.first


class FewerEpisodes(Evaluator):
    """Plays half of the episodes."""

    breaks = "Number of episodes to finish"

    def play(self, luck: float, seed: int, episodes: int) -> list[float]:
        return super().play(luck, seed, (episodes + 1) // 2)


class OtherEpisodes(Evaluator):
    """Plays other episodes each time, and reports their returns as if they could be repeated."""

    breaks = "episode i of a seed is the same for every policy and however many episodes are played in one call"

    def play(self, luck: float, seed: int, episodes: int) -> list[float]:
        return [SystemRandom().random() + luck for _ in range(episodes)]


class EpisodesByNumber(Evaluator):
    """Derives the episodes from the number of episodes as well."""

    breaks = "episode i of a seed is the same for every policy and however many episodes are played in one call"

    def play(self, luck: float, seed: int, episodes: int) -> list[float]:
        return super().play(luck, seed + episodes, episodes)


class OneSession(Evaluator):
    """Keeps the last session only."""

    breaks = "Opening a session must not affect the others"

    def OpenEvaluator(self, request: Any, context: Any) -> pb.OpenEvaluatorResponse:
        self.sessions.clear()
        return super().OpenEvaluator(request, context)


class AnyPolicyWithoutSession(Evaluator):
    """Fails with UNKNOWN where the session is not open."""

    breaks = "FAILED_PRECONDITION (NOT_OPEN) if the session is not open"

    def not_open(self, context: Any) -> None:
        raise KeyError("session")


class OtherMean(Evaluator):
    """Reports the best return as the mean."""

    breaks = "and their mean is `mean_return`"

    def EvaluatePolicy(self, request: Any, context: Any) -> pb.EvaluatePolicyResponse:
        response = super().EvaluatePolicy(request, context)
        response.evaluation.mean_return = max(response.evaluation.episode_returns)
        return response


class OneReturn(Evaluator):
    """Reports the return of the first episode only."""

    breaks = "and their mean is `mean_return`"

    def EvaluatePolicy(self, request: Any, context: Any) -> pb.EvaluatePolicyResponse:
        response = super().EvaluatePolicy(request, context)
        del response.evaluation.episode_returns[1:]
        return response


class NotANumber(Evaluator):
    """Scores by a number that is not finite."""

    breaks = "DATA_LOSS (NON_FINITE) for a return that is not finite"

    def play(self, luck: float, seed: int, episodes: int) -> list[float]:
        return [float("nan")] * episodes


class AnyEnvironment(Evaluator):
    """Opens sessions for environments that do not exist."""

    breaks = "INVALID_ARGUMENT for an environment that cannot be made"

    def check(self, request: Any, context: Any) -> None:
        return


class NeverAnswers(Evaluator):
    """Does not answer."""

    breaks = "Deadline: for a plugin `evaluation.answer_duration`, at most 1,800 s"

    def play(self, luck: float, seed: int, episodes: int) -> list[float]:
        threading.Event().wait(20)
        return super().play(luck, seed, episodes)


BROKEN = [
    WrongProbe,
    FirstPolicyForEver,
    FewerEpisodes,
    OtherEpisodes,
    EpisodesByNumber,
    OneSession,
    AnyPolicyWithoutSession,
    OtherMean,
    OneReturn,
    NotANumber,
    AnyEnvironment,
    NeverAnswers,
]
