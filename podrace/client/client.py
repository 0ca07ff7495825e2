"""Calls the orchestrator and the leaderboards of a mesh.

Every call has the deadline that its contract recommends, lists are read to their last page, and every method raises
PodraceError.
"""

from podrace.client.calls.evaluations import EvaluationCalls
from podrace.client.calls.leaderboard import LeaderboardCalls
from podrace.client.calls.tournaments import TournamentCalls


class Client(TournamentCalls, EvaluationCalls, LeaderboardCalls):
    """Calls one mesh; an asynchronous context manager that closes its channels at the end.

    Args:
        orchestrator: Address of the orchestrator, `host:port` or `unix:/path`. A tournament names the address of its
            leaderboard.
        token: Returns the token of a person, with which all calls are made; None: the calls have the token and the
            certificate of this process.
    """
