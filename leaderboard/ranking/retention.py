"""Decides which scored checkpoints keep their files, and why. Pure: no clock, no store, no database.

The rules, for each tournament:

1.  Candidates on the board are kept: the highest score ever submitted is on the board.
2.  The last submission of each agent is kept, on the board or not. Therefore every past, present and future champion is
    kept: it is selected from the top of the board and from the newest submissions of the trials there.
3.  Candidates that the next agent may start from are kept. In a synchronous tournament its generator sees the board of
    the earlier rounds, from which the current round may have evicted candidates. Strategies with a population continue
    from the last submission of any agent.
4.  Snapshots are kept as long as the whole board is.
5.  Candidates that led the board when they arrived are kept in tournaments of games, as opponents of later ones.
6.  The board of an idle tournament is cut to its best candidates, if the configuration asks for it.

In addition, the pointer of each agent keeps its newest checkpoint and the one before, scored or not
(podrace.checkpoint_store).
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from leaderboard.ranking.board import Board
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


@dataclass(frozen=True)
class Retention:
    """How many checkpoints of a tournament are kept."""

    checkpoints_of_agent: int = 1
    """Last submissions of each agent whose files are kept, on the board or not; at least 1."""
    best_of_idle_board: int = 0
    """Candidates that are kept of the board of an idle tournament, at least those that may be champion; 0: all."""
    idle_seconds: float = 30 * 86400.0
    """Time after which a tournament of which no file was stored is idle, by the clock of the store. If it is resumed
    later, the files of fewer parents are left."""


@dataclass(frozen=True)
class TournamentRecord:
    """The state of a tournament that decides what is kept."""

    board: Board
    """The board."""
    visible: Board
    """The board that the generator of its next agent sees."""
    submissions: Sequence[Candidate]
    """The last submissions of each agent, as many as are kept, and the leaders, by arrival. Further ones make no
    difference."""
    contenders: int
    """How many candidates at the top of the board may be selected as champion."""
    idle_seconds: float
    """Age of the youngest file in its folder of the store; 0 if there is none."""
    snapshots: Sequence[str] = ()
    """Digests of the manifests of its snapshots."""
    leaders: Sequence[str] = ()
    """Ids of the candidates that led the board and stay opponents."""


class NewestByAgent:
    """The last submissions of each agent.

        newest = NewestByAgent(1)
        newest.add(candidate)        # for every submission, by arrival
        list(newest)

    Args:
        count: Submissions of each agent; at least one is kept.
    """

    def __init__(self, count: int) -> None:
        self._of_agent: defaultdict[str, deque[Candidate]] = defaultdict(lambda: deque(maxlen=max(count, 1)))

    def add(self, candidate: Candidate) -> None:
        """Adds the next submission."""
        self._of_agent[candidate.agent_id].append(candidate)

    def __iter__(self) -> Iterator[Candidate]:
        return chain.from_iterable(self._of_agent.values())

    def with_others(self, others: Iterable[Candidate]) -> list[Candidate]:
        """Returns them and other submissions, each once, by arrival."""
        return sorted({one.candidate_id: one for one in (*self, *others)}.values(), key=lambda one: one.sequence)


def retained(record: TournamentRecord, retention: Retention) -> dict[str, str]:
    """Returns the ids of the candidates and snapshots that keep their files, each with the reason."""
    best = max(retention.best_of_idle_board, record.contenders, 1)
    is_cut = retention.best_of_idle_board > 0 and record.idle_seconds >= retention.idle_seconds
    board, why = (record.board[:best], "among the best of an idle board") if is_cut else (record.board, "on the board")
    newest = NewestByAgent(retention.checkpoints_of_agent)
    for candidate in record.submissions:
        newest.add(candidate)
    reasons = dict.fromkeys(_ids(newest), "last submission of its agent")
    if not is_cut:
        reasons |= dict.fromkeys(record.snapshots, "snapshot for learning curves")
        reasons |= dict.fromkeys(record.leaders, "led the board, and stays an opponent")
        reasons |= dict.fromkeys(_ids(record.visible), "on the board that the next generator sees")
    return reasons | dict.fromkeys(_ids(board), why)


def _ids(candidates: Iterable[Candidate]) -> list[str]:
    return [candidate.candidate_id for candidate in candidates]
