"""Generators and updaters that fail in every possible way; imported by the child processes of a leaderboard."""

import ctypes
import itertools
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from podrace.evolution.v1.evolution_pb2 import (
    JudgeCandidateRequest,
    JudgeCandidateResponse,
    ProposeAgentRequest,
    ProposeAgentResponse,
)
from podrace.leaderboard.v1.leaderboard_pb2 import OPINION_ACCEPT, OPINION_REFUSE

CALLS = Path(os.environ.get("FAULTY_CALLS", "/dev/null"))
"""A line for every call: the pid."""


def _called() -> int:
    with CALLS.open("a") as file:
        file.write(f"{os.getpid()}\n")
    return len(CALLS.read_text().splitlines()) if CALLS.is_file() else 0


def best(request: ProposeAgentRequest) -> ProposeAgentResponse:
    """Works: proposes a child of the best candidate, with a discount that depends on the agent's number."""
    _called()
    if not request.candidates:
        return ProposeAgentResponse(fresh={}, reason="no agent was scored yet")
    answer = ProposeAgentResponse(reason="the best")
    answer.child.candidate_id = request.candidates[0].candidate.candidate_id
    answer.child.hyperparameters["discount"] = 0.9 + 0.001 * request.number
    return answer


def seeded(request: ProposeAgentRequest) -> ProposeAgentResponse:
    """Works: a deterministic proposal whose reason shows what was in the request."""
    answer = best(request)
    runs = sum(entry.submissions for entry in request.statistics)
    answer.reason = f"seed {request.seed % 1000}, {runs} submissions, {len(request.unfinished_agent_ids)} unfinished"
    return answer


def raises(request: ProposeAgentRequest) -> ProposeAgentResponse:
    _called()
    raise ValueError("no idea\nat all")


def exits(request: ProposeAgentRequest) -> ProposeAgentResponse:
    _called()
    os._exit(3)


def leaves(request: ProposeAgentRequest) -> ProposeAgentResponse:
    sys.exit(4)


def dies_with_a_child(request: ProposeAgentRequest) -> ProposeAgentResponse:
    child = subprocess.Popen(["sleep", "1000"])
    with CALLS.open("a") as file:
        file.write(f"{child.pid}\n")
    os.abort()


def dies(request: ProposeAgentRequest) -> ProposeAgentResponse:
    ctypes.string_at(0)
    raise AssertionError


def hangs(request: ProposeAgentRequest) -> ProposeAgentResponse:
    _called()
    time.sleep(1000)
    raise AssertionError


def clings(request: ProposeAgentRequest) -> ProposeAgentResponse:
    """Hangs without releasing the interpreter lock."""
    _called()
    any(map(math.isinf, itertools.repeat(0)))
    raise AssertionError


def hoards(request: ProposeAgentRequest) -> ProposeAgentResponse:
    # Pages that are never touched take no memory, but they count towards the limit.
    return ProposeAgentResponse(reason=str(len(bytearray(5 << 30))))


def forgets(request: ProposeAgentRequest) -> None:
    return None


def rambles(request: ProposeAgentRequest) -> ProposeAgentResponse:
    return ProposeAgentResponse(fresh={}, reason="x" * 100_000)


def recovers(request: ProposeAgentRequest) -> ProposeAgentResponse:
    """Exits at the first call and answers the others."""
    if _called() == 1:
        os._exit(3)
    return ProposeAgentResponse(fresh={}, reason="back again")


def answers_and_dies(request: ProposeAgentRequest) -> ProposeAgentResponse:
    _called()
    threading.Timer(0.05, os._exit, [0]).start()
    return ProposeAgentResponse(fresh={}, reason="my last answer")


def stumbles(request: ProposeAgentRequest) -> ProposeAgentResponse:
    """Answers every third call."""
    if _called() % 3:
        raise ValueError("oops")
    return ProposeAgentResponse(fresh={}, reason="on my feet")


def thinks(request: ProposeAgentRequest) -> ProposeAgentResponse:
    """Takes 0.3 s to answer."""
    number = _called()
    time.sleep(0.3)
    return ProposeAgentResponse(fresh={}, reason=f"thought {number}")


def refuses(request: JudgeCandidateRequest) -> JudgeCandidateResponse:
    return JudgeCandidateResponse(opinion=OPINION_REFUSE, reason="not today")


def ranks_upside_down(request: JudgeCandidateRequest) -> JudgeCandidateResponse:
    """Accepts every candidate, the lowest score first."""
    _called()
    shown = ", ".join(f"a{one.agent_number}" for one in request.board) or "no agent"
    return JudgeCandidateResponse(
        opinion=OPINION_ACCEPT, rank_score=-request.candidate.score, reason=f"saw {shown} of {request.agent.agent_id}"
    )


def ranks_by_nothing(request: JudgeCandidateRequest) -> JudgeCandidateResponse:
    return JudgeCandidateResponse(opinion=OPINION_ACCEPT, rank_score=math.nan)
