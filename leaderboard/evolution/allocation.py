"""Decides which algorithms new agents may have.

An eliminated algorithm gets no fresh agents and no seats, and its candidates get no children. Its share of the pods
goes to the other algorithms. It never returns; every later agent records the eliminated algorithms. Its candidates stay
on the board, and one of them may become champion. An algorithm is eliminated for one of two reasons.

Failure: its first agents all ended without a score, for instance because it cannot act in the environment. Its turns go
to the other algorithms in their ratios.

Successive halving (`allocation = "halving"`), with algorithms as arms: Jamieson and Talwalkar, "Non-stochastic Best Arm
Identification and Hyperparameter Optimization", AISTATS 2016, algorithm 1. All algorithms get the same number of
agents. The better half stays; the others leave, and their share goes to the better half. This repeats until one is
left. An algorithm is judged by the best candidate among its agents since the last halving, with the same number of
agents for each. There are two differences, because scores are noisy and pods do not wait. An algorithm whose best is
within the standard error of the last one that stays is kept and judged again with more agents. Agents are handed out
while the last agents of a halving are still trained.
"""

from collections.abc import Iterable, Mapping, Sequence

from leaderboard.evolution.comparison import leads
from leaderboard.evolution.history import History
from leaderboard.ranking.board import rank_key, shown
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

FAILURES_TO_LEAVE = 2
"""Number of agents of an algorithm that ended without a score, before any agent of it was scored. One may be an
accident. With a higher number the orchestrator would fail the tournament first, as it does when agents fail in a
row."""


def eliminated(spec: TournamentSpec, history: History) -> dict[str, str]:
    """Returns the algorithms that have been eliminated, by name, each with the reason; never all of them.

    Args:
        spec: Resolved specification.
        history: The latest agents and their scores.
    """
    names = sorted(name for name, algorithm in spec.algorithms.items() if algorithm.ratio > 0)
    if len(names) < 2:
        return {}
    left = already_eliminated(history)
    for name in _staying(names, left):
        reason = _why_failing(name, history)
        if reason and len(_staying(names, left)) > 1:
            left[name] = reason
    if spec.evolution.allocation == "halving":
        left |= _halved(_staying(names, left), spec.evolution.halving_agents, history)
    return left


def already_eliminated(history: History) -> dict[str, str]:
    """Returns the algorithms that had left when the latest agents were generated, with the recorded reasons."""
    return {name: reason for agent in history.agents for name, reason in sorted(agent.left_algorithms.items())}


def failing(spec: TournamentSpec, history: History) -> list[str]:
    """Returns the algorithms that have not left, and of which no agent was scored although some have ended."""
    names = sorted(name for name, algorithm in spec.algorithms.items() if algorithm.ratio > 0)
    return [name for name in _staying(names, already_eliminated(history)) if _why_failing(name, history)]


def _staying(names: Iterable[str], left: Mapping[str, str]) -> list[str]:
    return [name for name in names if name not in left]


def _why_failing(algorithm: str, history: History) -> str:
    """Returns why an algorithm leaves because its agents failed; empty if it stays."""
    if algorithm in history.scored_algorithms:
        return ""
    failed = [agent for agent in history.agents if agent.algorithm == algorithm and history.has_failed(agent)]
    if len(failed) < FAILURES_TO_LEAVE:
        return ""
    return f"none of its agents was ever scored, and {len(failed)} have ended"


def _halved(names: Sequence[str], least_agents: int, history: History) -> dict[str, str]:
    """Returns the algorithms that leave now, with the reason."""
    # Only agents since the last halving count.
    begin = _begin_of_rung(history)
    bests = {name: _bests(name, begin, history) for name in names}
    enough = min((len(scored) for scored in bests.values()), default=0) // least_agents * least_agents
    if len(names) < 2 or not enough:
        return {}
    order = sorted((min(bests[name][:enough], key=rank_key) for name in names), key=rank_key)
    kept, others = order[: len(order) - len(order) // 2], order[len(order) - len(order) // 2 :]
    return {
        other.algorithm: f"halving after {enough} agents of each: its best, {shown(other)}, is behind that of"
        f" {kept[-1].algorithm}, {shown(kept[-1])}"
        for other in others
        if leads(kept[-1], other)
    }


def _begin_of_rung(history: History) -> int:
    """Returns the lowest number of an agent that was generated since an algorithm last left."""
    left = set(already_eliminated(history))
    return min((agent.number for agent in history.agents if set(agent.left_algorithms) == left), default=0)


def _bests(algorithm: str, begin: int, history: History) -> list[Candidate]:
    """Returns the best submission of each agent that has ended and was scored, by agent number."""
    best: dict[str, Candidate] = {}
    for candidate in history.submissions:
        other = best.get(candidate.agent_id)
        if other is None or rank_key(candidate) < rank_key(other):
            best[candidate.agent_id] = candidate
    ended = (one for one in history.agents if one.algorithm == algorithm and one.number >= begin)
    return [best[one.agent_id] for one in ended if history.has_ended(one) and one.agent_id in best]
