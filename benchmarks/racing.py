"""Measures racing on recorded evaluations: how often a race decides as all episodes do, and how many it uses.

    podrace train SPEC --set evaluation.racing=false --home HOME
    python -m benchmarks.racing HOME

Two things are replayed, for candidates whose returns of all episodes are recorded:

- pairs: for every two agents of an evaluation epoch, their latest candidates compared with each other. A comparison
  ends when either of the two is decided to be better.
- evaluations: every evaluation against the bars that the leaderboard would have given, as a pod runs it. It ends when
  it is decided whether the candidate enters the board and that it does not lead.

A comparison is decided as with all episodes if the sign of the difference is the same; one that no stage decides is
decided by all episodes. A tie of all episodes does not count.
"""

import argparse
import itertools
import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentpod.learner.staged_evaluation import Bars, bars_of, is_decided
from leaderboard.ranking.board import Board, judge_arrival, trial_key
from leaderboard.ranking.evaluation_plan import plan
from leaderboard.ranking.score_history import ScoreHistory
from podrace.comparison import racing
from podrace.comparison.paired import LEAST_CORRELATION, paired_difference
from podrace.comparison.racing import Bar, Sample
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate, SubmitCandidateResponse
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

AIM_SAME, AIM_EPISODES = 0.95, 0.5


@dataclass(frozen=True)
class Race:
    """A comparison that was replayed."""

    same: bool
    """Whether it was decided as with all episodes."""
    early: bool
    """Whether it ended before all episodes."""
    episodes: int
    """Episodes that were used."""
    of: int
    """All episodes."""


def recorded(home: Path) -> Iterator[tuple[str, TournamentSpec, list[Candidate]]]:
    """Yields the tournaments of a home with their candidates by arrival."""
    database = sqlite3.connect(f"file:{home / 'leaderboard.sqlite'}?mode=ro", uri=True)
    for tournament_id, spec in database.execute("SELECT tournament_id, spec FROM tournaments").fetchall():
        rows = database.execute(
            "SELECT answer FROM submissions WHERE tournament_id = ? ORDER BY sequence", (tournament_id,)
        )
        candidates = [SubmitCandidateResponse.FromString(answer).candidate for (answer,) in rows]
        yield tournament_id, TournamentSpec.FromString(spec), candidates


def pairs(candidates: Sequence[Candidate], episodes: int) -> Iterator[Race]:
    """Compares the latest candidates of every two agents in each epoch, episode by episode where they correlate."""
    paired = ScoreHistory(candidates).correlation > LEAST_CORRELATION
    latest = {
        (candidate.evaluation_epoch, candidate.agent_id): candidate
        for candidate in candidates
        if len(candidate.episode_returns) == episodes
    }
    for one, other in itertools.combinations(latest.values(), 2):
        if one.evaluation_epoch == other.evaluation_epoch:
            bar = bar_of(other, paired=paired)
            if (whole := sign(one.episode_returns, bar)) != 0:
                yield race(one.episode_returns, bar, whole)


def race(returns: Sequence[float], bar: Bar, whole: int) -> Race:
    """Races against a bar, of which all episodes decide `whole`: 1 for ahead, -1 for behind."""
    planned = racing.stages(len(returns))
    for stage in planned[:-1]:
        decision = racing.decide(Sample.of(returns[:stage]), bar, planned)
        if decision != "continue":
            return Race((decision == "ahead") == (whole > 0), early=True, episodes=stage, of=len(returns))
    return Race(same=True, early=False, episodes=len(returns), of=len(returns))


def evaluations(spec: TournamentSpec, candidates: Sequence[Candidate]) -> Iterator[Race]:
    """Repeats the evaluations of a tournament against the board that each of them would have met."""
    board: Board = ()
    history, capacity, episodes = ScoreHistory(), spec.evolution.board_capacity, spec.evaluation.episodes
    for candidate in candidates:
        agent = Agent(agent_id=candidate.agent_id, number=candidate.agent_number, trial=trial_key(candidate))
        answer = plan(board, capacity, history, agent, candidate.evaluation_epoch)
        bars, returns = bars_of(answer), candidate.episode_returns
        if bars and len(returns) == episodes:
            yield race_for_the_board(returns, bars)
        history.add(candidate)
        board = judge_arrival(board, candidate, capacity, synchronous=False).board


def race_for_the_board(returns: Sequence[float], bars: Bars) -> Race:
    """Runs an evaluation as a pod does; it is the same if all episodes decide about entry and lead as it did."""
    planned, count = racing.stages(len(returns)), len(returns)
    for stage in planned[:-1]:
        sample = Sample.of(returns[:stage])
        if is_decided(sample, bars, planned):
            entry = racing.decide(sample, bars.entry, planned) == "ahead"
            same = (sign(returns, bars.entry) > 0) == entry and sign(returns, bars.lead) <= 0
            return Race(same, early=True, episodes=stage, of=count)
    return Race(same=True, early=False, episodes=count, of=count)


def bar_of(candidate: Candidate, *, paired: bool) -> Bar:
    """Returns the bar that a candidate sets."""
    returns = tuple(candidate.episode_returns) if paired else ()
    return Bar(candidate.score, candidate.standard_error, returns)


def sign(returns: Sequence[float], bar: Bar) -> int:
    """Returns the sign of the difference to a bar over all episodes."""
    paired = len(bar.returns) >= len(returns)
    difference = paired_difference(returns, bar.returns)[0] if paired else Sample.of(returns).mean - bar.score
    return (difference > 0) - (difference < 0)


def report(tournament: str, what: str, races: Iterable[Race], correlation: float) -> None:
    """Prints one line about some races."""
    done = list(races)
    if not done:
        print(f"{tournament}: no {what} with the returns of all episodes", file=sys.stderr)
        return
    early = [one for one in done if one.early]
    line = {
        "what": f"racing: {what}",
        "tournament": tournament,
        "comparisons": len(done),
        "decided_as_with_all": round(sum(one.same for one in done) / len(done), 4),
        "decided_as_with_all_aim": AIM_SAME,
        "decided_early": round(len(early) / len(done), 4),
        "early_decided_as_with_all": round(sum(one.same for one in early) / len(early), 4) if early else None,
        "episodes_used": round(sum(one.episodes for one in done) / sum(one.of for one in done), 4),
        "episodes_used_aim": AIM_EPISODES,
        "correlation": round(correlation, 3),
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    """Replays the tournaments of the homes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("home", type=Path, nargs="+", help="folder of an embedded mesh")
    for home in parser.parse_args().home:
        for tournament_id, spec, candidates in recorded(home):
            correlation = ScoreHistory(candidates).correlation
            report(tournament_id, "pairs", pairs(candidates, spec.evaluation.episodes), correlation)
            report(tournament_id, "evaluations", evaluations(spec, candidates), correlation)


if __name__ == "__main__":
    main()
