"""A generator and updater that keeps the contract, and services that break it; written from evolution.proto alone.

`breaks` of a broken service is the requirement of the contract that it breaks, in the words of the contract.
"""

import threading
from random import Random, SystemRandom
from typing import Any

import grpc

from podrace.evolution.v1 import evolution_pb2_grpc as pb_grpc
from podrace.evolution.v1.evolution_pb2 import JudgeCandidateResponse, ProposeAgentResponse
from podrace.leaderboard.v1.leaderboard_pb2 import OPINION_BY_RANK, OPINION_UNSPECIFIED


class Plugin(pb_grpc.EvolutionServiceServicer):
    """Proposes children with a smaller value of one searched number, and ranks by a lower bound."""

    breaks = ""

    def ProposeAgent(self, request: Any, context: Any) -> ProposeAgentResponse:
        """Proposes the next agent."""
        random = Random(request.seed)
        answer = ProposeAgentResponse(reason="a step from the best")
        if not request.candidates:
            answer.fresh.SetInParent()
            return answer
        best = random.choice(list(request.candidates[:3]))
        answer.child.candidate_id = best.candidate.candidate_id
        for name, setting in sorted(request.spec.algorithms[best.agent.algorithm].hyperparameters.items()):
            if setting.HasField("low") and setting.HasField("high"):
                value = best.agent.hyperparameters[name]
                answer.child.hyperparameters[name] = max(setting.low, min(setting.high, value * 0.9))
                if float(value).is_integer():
                    answer.child.hyperparameters[name] = value
        return answer

    def JudgeCandidate(self, request: Any, context: Any) -> JudgeCandidateResponse:
        """Judges a candidate."""
        bound = request.candidate.score - 2 * request.candidate.standard_error
        return JudgeCandidateResponse(opinion=OPINION_BY_RANK, rank_score=bound, reason="a lower bound")


class OutsideRange(Plugin):
    """Proposes a learning rate above the range of the specification."""

    breaks = "A searched one must lie in the range or among the choices of the specification"

    def ProposeAgent(self, request: Any, context: Any) -> ProposeAgentResponse:
        answer = ProposeAgentResponse(reason="more is better")
        name = sorted(request.spec.algorithms)[0]
        answer.fresh.algorithm = name
        answer.fresh.hyperparameters["learning_rate"] = (
            request.spec.algorithms[name].hyperparameters["learning_rate"].high * 2
        )
        return answer


class UnknownParent(Plugin):
    """Proposes a child of a candidate that is not on the board."""

    breaks = "The parent: the id of one of `candidates`"

    def ProposeAgent(self, request: Any, context: Any) -> ProposeAgentResponse:
        answer = ProposeAgentResponse(reason="the best that ever was")
        answer.child.candidate_id = "0" * 64
        return answer


class OtherShape(Plugin):
    """Proposes a child with wider layers than its parent's."""

    breaks = "must be the parent's, because its checkpoint files would not fit otherwise"

    def ProposeAgent(self, request: Any, context: Any) -> ProposeAgentResponse:
        if not request.candidates:
            return super().ProposeAgent(request, context)
        answer = ProposeAgentResponse(reason="wider")
        best = request.candidates[0]
        answer.child.candidate_id = best.candidate.candidate_id
        widths = best.agent.hyperparameters["hidden_sizes"]
        answer.child.hyperparameters["hidden_sizes"] = [width * 2 for width in widths]
        return answer


class UnknownName(Plugin):
    """Proposes a hyperparameter that the algorithm does not have."""

    breaks = "Each must exist in the algorithm and have its type"

    def ProposeAgent(self, request: Any, context: Any) -> ProposeAgentResponse:
        answer = ProposeAgentResponse(reason="spelt from memory")
        answer.fresh.hyperparameters["lerning_rate"] = 0.001
        return answer


class ProposesNothing(Plugin):
    """Answers without a proposal."""

    breaks = "How the agent starts. One must be set"

    def ProposeAgent(self, request: Any, context: Any) -> ProposeAgentResponse:
        return ProposeAgentResponse(reason="no idea")


class Capricious(Plugin):
    """Judges by lot."""

    breaks = "If its answers depend on nothing but the request"

    def JudgeCandidate(self, request: Any, context: Any) -> JudgeCandidateResponse:
        return JudgeCandidateResponse(opinion=OPINION_BY_RANK, rank_score=SystemRandom().random())


class CountsCalls(Plugin):
    """Proposes by the number of calls so far instead of by the request."""

    breaks = "If its answers depend on nothing but the request"
    calls = 0

    def ProposeAgent(self, request: Any, context: Any) -> ProposeAgentResponse:
        self.calls += 1
        answer = ProposeAgentResponse(reason="the next one")
        name = sorted(request.spec.algorithms)[self.calls % len(request.spec.algorithms)]
        setting = request.spec.algorithms[name].hyperparameters["learning_rate"]
        answer.fresh.algorithm = name
        answer.fresh.hyperparameters["learning_rate"] = setting.low + (setting.high - setting.low) / (1 + self.calls)
        return answer


class RanksByNothing(Plugin):
    """Ranks by a number that is not finite."""

    breaks = "must be finite"

    def JudgeCandidate(self, request: Any, context: Any) -> JudgeCandidateResponse:
        return JudgeCandidateResponse(opinion=OPINION_BY_RANK, rank_score=float("nan"))


class NoOpinion(Plugin):
    """Has no opinion."""

    breaks = "What to do. Must be one of these"

    def JudgeCandidate(self, request: Any, context: Any) -> JudgeCandidateResponse:
        return JudgeCandidateResponse(opinion=OPINION_UNSPECIFIED, reason="undecided")


class Talkative(Plugin):
    """Answers with more than 64 KiB."""

    breaks = "At most 64 KiB"

    def JudgeCandidate(self, request: Any, context: Any) -> JudgeCandidateResponse:
        return JudgeCandidateResponse(opinion=OPINION_BY_RANK, reason="because " * 10_000)


class Slow(Plugin):
    """Does not answer before the deadline."""

    breaks = "`evolution.answer_duration`, 5 s by default"

    def JudgeCandidate(self, request: Any, context: Any) -> JudgeCandidateResponse:
        threading.Event().wait(20)
        return super().JudgeCandidate(request, context)


class SmallMemory(Plugin):
    """Fails when the board is large."""

    breaks = "An error status, no answer before the deadline, and an answer that violates the rules at its fields"

    def ProposeAgent(self, request: Any, context: Any) -> ProposeAgentResponse:
        if len(request.candidates) > 100:
            raise MemoryError("too many candidates")
        return super().ProposeAgent(request, context)


class NoChildrenYet(Plugin):
    """Implements proposals for an empty board only."""

    breaks = "An error status, no answer before the deadline, and an answer that violates the rules at its fields"

    def ProposeAgent(self, request: Any, context: Any) -> ProposeAgentResponse:
        if request.candidates:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "children are not implemented")
        return super().ProposeAgent(request, context)


class AnswersOnce(Plugin):
    """Fails when a request is repeated."""

    breaks = "An error status, no answer before the deadline, and an answer that violates the rules at its fields"

    def __init__(self) -> None:
        self.seen: set[bytes] = set()

    def JudgeCandidate(self, request: Any, context: Any) -> JudgeCandidateResponse:
        key = request.SerializeToString(deterministic=True)
        if key in self.seen:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "this candidate was judged")
        self.seen.add(key)
        return super().JudgeCandidate(request, context)


BROKEN = [
    NoChildrenYet,
    AnswersOnce,
    OutsideRange,
    UnknownParent,
    OtherShape,
    UnknownName,
    ProposesNothing,
    Capricious,
    CountsCalls,
    RanksByNothing,
    NoOpinion,
    Talkative,
    Slow,
    SmallMemory,
]
