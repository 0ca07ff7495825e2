"""Owns which algorithms agents may still have, and why the others may not.

Two things make an algorithm leave the draw; who has left stays away, as every later agent's record tells. It gets no
fresh agents and no seats, and its candidates no children, however well they rank: pods, which take the next agent when
theirs has ended, go to the others. Its candidates stay on the board, and one of them may be champion.

Failure. It cannot act in the environment, say: its first agents all ended without ever being scored. The turns of such
an algorithm go to the others in their ratios.

Successive halving (`allocation = "halving"`), over algorithms as arms: Jamieson and Talwalkar, "Non-stochastic Best Arm
Identification and Hyperparameter Optimization", AISTATS 2016, algorithm 1. All algorithms are given the same number of
agents; the better half stays, the rest leaves, and its share goes to those who stay; and again, until one is left. An
algorithm is as good as the best candidate among its agents since the last halving, and as many agents count of each.
Two departures, because scores are noisy and pods do not wait: who is within the standard error of the last that stays,
stays as well, and is judged again with more agents; and agents are handed out while a halving waits for the last ones.
"""

from collections.abc import Iterable, Mapping, Sequence

from leaderboard.evolution.comparison import leads
from leaderboard.evolution.history import History
from leaderboard.ranking.board import rank_key, shown
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

FAILURES_TO_LEAVE = 2
"""Agents of an algorithm that ended unscored, before any of it was scored. One may be an accident; more would let
the orchestrator give up first, as it does when agents fail one after another."""


def left_draw(spec: TournamentSpec, history: History) -> dict[str, str]:
    """The algorithms that have left the draw, by name, each with the reason; never all of them.

    Args:
        spec: Resolved.
        history: What the generator knows.
    """
    names = sorted(name for name, algorithm in spec.algorithms.items() if algorithm.ratio > 0)
    if len(names) < 2:
        return {}
    left = already_left(history)
    for name in _staying(names, left):
        reason = _why_failing([agent for agent in history.agents if agent.algorithm == name], history)
        if reason and len(_staying(names, left)) > 1:
            left[name] = reason
    if spec.evolution.allocation == "halving":
        left |= _halved(_staying(names, left), spec.evolution.halving_agents, history)
    return left


def already_left(history: History) -> dict[str, str]:
    """Those that had left when the latest agents were made, with the reasons given then."""
    return {name: reason for agent in history.agents for name, reason in sorted(agent.left_algorithms.items())}


def _staying(names: Iterable[str], left: Mapping[str, str]) -> list[str]:
    return [name for name in names if name not in left]


def _why_failing(agents: Sequence[Agent], history: History) -> str:
    """Why an algorithm leaves because of its agents' failures; empty if it does not."""
    if any(agent.agent_id in history.last for agent in agents):
        return ""
    failed = [agent for agent in agents if history.has_failed(agent)]
    if len(failed) < FAILURES_TO_LEAVE:
        return ""
    return f"none of its agents was ever scored, and {len(failed)} have ended"


def _halved(names: Sequence[str], least_agents: int, history: History) -> dict[str, str]:
    """Those that leave now, with the reason."""
    # What was trained under the present set: the evidence of earlier halvings is spent.
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
    """The lowest number of an agent that was made since an algorithm last left."""
    left = set(already_left(history))
    return min((agent.number for agent in history.agents if set(agent.left_algorithms) == left), default=0)


def _bests(algorithm: str, begin: int, history: History) -> list[Candidate]:
    """The best submission of each agent that has ended and was scored, by agent number."""
    best: dict[str, Candidate] = {}
    for candidate in history.submissions:
        other = best.get(candidate.agent_id)
        if other is None or rank_key(candidate) < rank_key(other):
            best[candidate.agent_id] = candidate
    ended = (one for one in history.agents if one.algorithm == algorithm and one.number >= begin)
    return [best[one.agent_id] for one in ended if history.has_ended(one) and one.agent_id in best]
