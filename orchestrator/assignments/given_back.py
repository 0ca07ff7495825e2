"""Counts how often pods gave work back without progress, and fails work that is given back too often."""

from orchestrator.decisions import dispatch
from orchestrator.decisions.restoration import attempts
from orchestrator.state.database import Transaction
from orchestrator.state.records import AgentRecord, EvaluationRecord
from orchestrator.state.transitions import find_give_backs, forget_give_backs, save_give_backs
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


def outcome_of_agent(
    transaction: Transaction, agent: AgentRecord, request: pb.CompleteAssignmentRequest
) -> tuple["pb.Outcome.ValueType", str]:
    """Returns the outcome of an assignment and its message, and counts a pod that gave the agent back.

    Args:
        transaction: The transaction to write in.
        agent: The agent, with its environment steps now.
        request: The final report of the pod.
    """
    if request.outcome != pb.OUTCOME_DRAINED:
        forget_give_backs(transaction, agent.agent_id)
        return request.outcome, request.message
    if not request.gave_up:
        return request.outcome, request.message
    count = dispatch.give_backs(agent.environment_steps, find_give_backs(transaction, agent.agent_id))
    if count >= dispatch.MOST_GIVE_BACKS:
        forget_give_backs(transaction, agent.agent_id)
        return pb.OUTCOME_AGENT_FAILED, f"{request.message} (given back {count} times without a new step)"
    save_give_backs(transaction, agent, count)
    return request.outcome, f"{request.message} (time {count} of {dispatch.MOST_GIVE_BACKS} without a new step)"


def outcome_of_evaluation(
    evaluation: EvaluationRecord, request: pb.CompleteAssignmentRequest
) -> tuple["pb.Outcome.ValueType", str]:
    """Returns the outcome of the assignment of an evaluation, and its message."""
    count = attempts(evaluation.lease_epoch)
    if request.outcome == pb.OUTCOME_DRAINED and request.gave_up and count >= dispatch.MOST_GIVE_BACKS:
        return pb.OUTCOME_AGENT_FAILED, f"{request.message} (assigned {count} times)"
    return request.outcome, request.message
