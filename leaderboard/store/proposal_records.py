"""Reads and writes the results of calling a generator plugin."""

from leaderboard.evolution.proposals import Proposal
from podrace.database import Transaction
from podrace.evolution.v1.evolution_pb2 import ProposeAgentResponse


def add_proposal(transaction: Transaction, agent_id: str, proposal: Proposal) -> None:
    """Records the result of calling a generator plugin for an agent."""
    answer = None if proposal.answer is None else proposal.answer.SerializeToString()
    transaction.execute("INSERT INTO proposals VALUES (?, ?, ?)", agent_id, answer, proposal.failure)


def proposals_of(transaction: Transaction, tournament_id: str) -> dict[str, Proposal]:
    """Returns the results of calling a generator plugin, by the id of the requested agent."""
    rows = transaction.execute(
        "SELECT agent_id, answer, failure FROM proposals JOIN agents USING (agent_id) WHERE tournament_id = ?",
        tournament_id,
    )
    return {
        agent_id: Proposal(None if answer is None else ProposeAgentResponse.FromString(answer), failure)
        for agent_id, answer, failure in rows
    }
