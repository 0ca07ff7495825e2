"""Owns which scored checkpoints keep their training files, and why. Pure: no clock, no store, no database.

The rules, for each tournament:

1.  What the board shows stays, and with it whoever was, is or will be champion: the highest score ever submitted stands
    on the board, and a champion is named from its top.
2.  What the generator of the next agent may start from stays: in a synchronous tournament it sees the board of the
    earlier rounds, from which the running round may have evicted somebody; and strategies with a population go on from
    the last submission of any agent, on the board or not.
3.  Snapshots stay as long as the whole board does.
4.  A board where nothing has happened for long may be cut to its best, if that is wanted.

Beside them, each agent's pointer keeps its newest checkpoint and the one before, scored or not
(podrace.checkpoint_store).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leaderboard.ranking.board import Board
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


@dataclass(frozen=True)
class Retention:
    """How much of a tournament stays."""

    checkpoints_of_agent: int = 1
    """Last submissions of each agent whose training files stay whatever became of them, at least 1."""
    best_of_idle_board: int = 0
    """Candidates that stay of a board where nothing happens any more, at least the champion; 0: all."""
    idle_seconds: float = 30 * 86400.0
    """Time without an agent or a submission after which that is so. A tournament that is resumed later than this finds
    the files of fewer parents."""


@dataclass(frozen=True)
class Past:
    """What a tournament has come to."""

    board: Board
    """The board."""
    visible: Board
    """The board that the generator of its next agent sees."""
    submissions: Sequence[Candidate]
    """All of them by arrival."""
    contenders: int
    """How many at the top of the board may be named champion."""
    idle_seconds: float
    """Time since its last agent or submission."""
    snapshots: Sequence[str] = ()
    """Digests of the manifests of its snapshots."""


def kept(past: Past, retention: Retention) -> dict[str, str]:
    """Decides which candidates and snapshots keep their files; returns their ids, each with the reason."""
    best = max(retention.best_of_idle_board, past.contenders, 1)
    is_cut = retention.best_of_idle_board > 0 and past.idle_seconds >= retention.idle_seconds
    on_board, why = (past.board[:best], "among the best of an idle board") if is_cut else (past.board, "on the board")
    reasons = dict.fromkeys(_ids(_last(past.submissions, max(retention.checkpoints_of_agent, 1))), "last of its agent")
    if not is_cut:
        reasons |= dict.fromkeys(past.snapshots, "a snapshot, for curves")
        reasons |= dict.fromkeys(_ids(past.visible), "on the board that the next generator sees")
    return reasons | dict.fromkeys(_ids(on_board), why)


def _last(submissions: Sequence[Candidate], count: int) -> list[Candidate]:
    of_agent: defaultdict[str, list[Candidate]] = defaultdict(list)
    for candidate in submissions:
        of_agent[candidate.agent_id].append(candidate)
    return [candidate for candidates in of_agent.values() for candidate in candidates[-count:]]


def _ids(candidates: Iterable[Candidate]) -> list[str]:
    return [candidate.candidate_id for candidate in candidates]
