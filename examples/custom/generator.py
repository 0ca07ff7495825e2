"""A generator of your own: now and then a fresh agent, else a child of the best whose learning rate anneals.

    [evolution]
    generator = "python:examples.custom.generator:propose"    # run from the folder that holds examples/

Called for every agent, in a process of the leaderboard's own; the messages are those of
protos/podrace/evolution/v1/evolution.proto.
"""

from random import Random

from podrace.evolution.v1.evolution_pb2 import ProposeAgentRequest, ProposeAgentResponse

FRESH_SHARE = 0.25
ANNEALING = 0.7


def propose(request: ProposeAgentRequest) -> ProposeAgentResponse:
    """Proposes the next agent. Draws from the seed of the request alone, so that a tournament can be repeated."""
    random = Random(request.seed)
    answer = ProposeAgentResponse()
    best = next((one for one in request.candidates if one.unfinished_children < 2), None)
    if best is None or random.random() < FRESH_SHARE:
        # Nothing is said of algorithm and values: those whose turn it is, drawn by the house.
        answer.fresh.SetInParent()
        answer.reason = "nobody to go on from" if best is None else "exploring"
        return answer
    algorithm = request.spec.algorithms[best.candidate.algorithm]
    searched = algorithm.hyperparameters["learning_rate"]
    rate = best.agent.hyperparameters["learning_rate"] * ANNEALING
    answer.child.candidate_id = best.candidate.candidate_id
    answer.child.hyperparameters["learning_rate"] = max(rate, searched.low) if searched.HasField("low") else rate
    answer.reason = f"rank {best.candidate.rank} has a free hand"
    return answer
