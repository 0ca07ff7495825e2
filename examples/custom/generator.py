"""Generator plugin: sometimes proposes a fresh agent, otherwise a child of the best with a smaller learning rate.

    [evolution]
    generator = "python:examples.custom.generator:propose"    # run from the folder that contains examples/

The leaderboard calls it for every agent, in a child process. The messages are those of
protos/podrace/evolution/v1/evolution.proto.
"""

from random import Random

from podrace.evolution.v1.evolution_pb2 import ProposeAgentRequest, ProposeAgentResponse

FRESH_SHARE = 0.25
ANNEALING = 0.7


def propose(request: ProposeAgentRequest) -> ProposeAgentResponse:
    """Proposes the next agent. All randomness comes from the seed of the request, so a tournament can be repeated."""
    random = Random(request.seed)
    answer = ProposeAgentResponse()
    best = next((one for one in request.candidates if one.unfinished_children < 2), None)
    if best is None or random.random() < FRESH_SHARE:
        # Algorithm and hyperparameters are not set, so the leaderboard draws them.
        answer.fresh.SetInParent()
        answer.reason = "no parent is available" if best is None else "exploring"
        return answer
    algorithm = request.spec.algorithms[best.candidate.algorithm]
    searched = algorithm.hyperparameters["learning_rate"]
    rate = best.agent.hyperparameters["learning_rate"] * ANNEALING
    answer.child.candidate_id = best.candidate.candidate_id
    answer.child.hyperparameters["learning_rate"] = max(rate, searched.low) if searched.HasField("low") else rate
    answer.reason = f"rank {best.candidate.rank} may have another child"
    return answer
