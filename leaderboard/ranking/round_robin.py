"""Selects the champion of a tournament of games by a round robin of the contenders. Pure.

Each contender plays the same number of games against every other one and against the built-in opponent of the
simulator. The contender with the largest share of the points wins; equal ones are ordered by rank on the board. Without
the built-in opponent, a policy that has learned little could win by beating the few others.

If the winner is part of a cycle (see leaderboard.ranking.ratings), the reason names it: the champion of a cycle is no
better than the others.
"""

from collections.abc import Mapping, Sequence

from leaderboard.ranking.board import named
from leaderboard.ranking.fresh_scores import FreshScore
from leaderboard.ranking.ratings import BUILT_IN, Ratings, Result, circle
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate, Contender

MOST_PLAYERS = 17
"""A player has at most 16 opponents."""


def pairings(contenders: Sequence[Candidate], seed: int, games: int) -> list[Contender]:
    """Returns what each contender plays.

    Args:
        contenders: At least two.
        seed: Seed of the games.
        games: Games of each contender against each other one.
    """
    named_by = {
        one.candidate_id: Checkpoint(agent_id=one.agent_id, manifest_digest=one.candidate_id) for one in contenders
    }
    return [
        Contender(
            candidate=one,
            episodes=games * (len(contenders) - 1),
            seed=seed,
            opponents=[other for name, other in named_by.items() if name != one.candidate_id],
        )
        for one in contenders
    ]


def against_built_in(contenders: Sequence[Candidate], seed: int, games: int) -> list[Contender]:
    """Returns what each contender plays against the built-in opponent: as many games as against each other contender.

    Args:
        contenders: At least two.
        seed: Seed of the games.
        games: As for `pairings`, where both contenders of a pair play this number.
    """
    return [Contender(candidate=one, episodes=2 * games, seed=seed) for one in contenders]


def table(contenders: Sequence[Candidate], evaluations: Sequence[Mapping[tuple[str, ...], Evaluation]]) -> list[Result]:
    """Returns the games among the contenders and against the built-in opponent.

    Args:
        contenders: The contenders.
        evaluations: Sets of evaluations, by contender.
    """
    names = {one.candidate_id for one in contenders} | {BUILT_IN}
    return [
        Result(one.candidate_id, match.opponent_candidate_id, match.wins, match.draws, match.losses)
        for results in evaluations
        for one in contenders
        if (one.candidate_id,) in results
        for match in results[one.candidate_id,].matches
        if match.opponent_candidate_id in names
    ]


def shares(contenders: Sequence[Candidate], games: Sequence[Result]) -> list[FreshScore]:
    """Returns the share of the points that each contender won, with its standard error; 0 without games."""
    points = {name: [0.0, 0.0] for name in (*(one.candidate_id for one in contenders), BUILT_IN)}
    for one in games:
        points[one.player][0] += one.points
        points[one.player][1] += one.games
        points[one.opponent][0] += one.games - one.points
        points[one.opponent][1] += one.games
    del points[BUILT_IN]
    found = []
    for won, played in points.values():
        share = won / played if played else 0.0
        # Draws make the variance of a game smaller than that of a win or loss, so this error is not too small.
        error = (share * (1.0 - share) / played) ** 0.5 if played else 0.0
        found.append(FreshScore(share, error, round(played)))
    return found


def winner(contenders: Sequence[Candidate], games: Sequence[Result]) -> tuple[Candidate, FreshScore, str]:
    """Returns the winner of the games, its share of the points, and why, in one line.

    Args:
        contenders: By rank on the board.
        games: At least one.
    """
    scores = shares(contenders, games)
    best = max(range(len(contenders)), key=lambda index: (scores[index].score, -index))
    champion, score = contenders[best], scores[best]
    players = f"{len(contenders)}"
    if any(one.opponent == BUILT_IN for one in games):
        players += " and the built-in opponent"
    reason = (
        f"{named(champion)} won the round robin of {players} with {100 * score.score:.1f} % of the points of"
        f" {score.episodes} games"
    )
    return champion, score, reason + _cycle(contenders, games, champion)


def _cycle(contenders: Sequence[Candidate], games: Sequence[Result], champion: Candidate) -> str:
    """Returns why the results do not support the order of the contenders; empty if they do."""
    misfit, agents = Ratings(games).misfit(), {one.candidate_id: f"a{one.agent_number}" for one in contenders}
    agents[BUILT_IN] = "the built-in opponent"
    if not misfit.large:
        return ""
    text = f"; ratings do not describe these games well (misfit {misfit.value:.0f}, expected {misfit.freedom})"
    if found := circle(games, champion.candidate_id):
        names = [agents[name] for name in (*found, found[0])]
        text += f": {' beats '.join(names)}, so the champion is not better than all others"
    return text
