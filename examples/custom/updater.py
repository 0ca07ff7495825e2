"""Updater plugin as a gRPC server: ranks the board by a lower bound of the score, the mean minus two standard errors.

    python examples/custom/updater.py 127.0.0.1:50070

    [evolution]
    updater = "grpc://127.0.0.1:50070"

Prints one line, `serves ADDRESS`. Without a server, `updater = "python:examples.custom.updater:judge"` calls the same
function in a child process of the leaderboard.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

from podrace.evolution.v1 import evolution_pb2_grpc
from podrace.evolution.v1.evolution_pb2 import JudgeCandidateRequest, JudgeCandidateResponse
from podrace.leaderboard.v1.leaderboard_pb2 import OPINION_BY_RANK, OPINION_REFUSE

FEWEST_EPISODES = 8
ERRORS = 2.0


def judge(request: JudgeCandidateRequest) -> JudgeCandidateResponse:
    """Judges a candidate."""
    candidate = request.candidate
    bound = candidate.score - ERRORS * candidate.standard_error
    if candidate.episodes < FEWEST_EPISODES:
        reason = f"{candidate.episodes} episodes are too few"
        return JudgeCandidateResponse(opinion=OPINION_REFUSE, rank_score=bound, reason=reason)
    return JudgeCandidateResponse(opinion=OPINION_BY_RANK, rank_score=bound, reason=f"at least {bound:.4g}")


class Servicer(evolution_pb2_grpc.EvolutionServiceServicer):
    """Serves JudgeCandidate; ProposeAgent stays UNIMPLEMENTED."""

    def JudgeCandidate(self, request: JudgeCandidateRequest, context: grpc.ServicerContext) -> JudgeCandidateResponse:
        """Judges the candidate of the request."""
        return judge(request)


if __name__ == "__main__":
    listen = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:0"
    server = grpc.server(ThreadPoolExecutor(1))
    evolution_pb2_grpc.add_EvolutionServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port(listen)
    server.start()
    print(f"serves {listen.rpartition(':')[0]}:{port}", flush=True)
    server.wait_for_termination()
