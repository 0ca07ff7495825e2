"""The winner of a round robin is champion, and results that form a circle are reported as such."""

from collections.abc import Callable

from leaderboard.ranking.board import Board
from leaderboard.ranking.champion_selection import built_in_seed, choice_seed, name_champion, report_seed
from leaderboard.ranking.ratings import BUILT_IN, Result
from leaderboard.ranking.round_robin import against_built_in, pairings, shares, winner
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, MatchResult
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate, FreshEvaluation
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

PLAYERS = [
    Candidate(candidate_id=name, agent_id=f"t-{name}", agent_number=number, score=300.0 - number)
    for number, name in enumerate(("a", "b", "c"))
]


def test_everyone_plays_everyone_else() -> None:
    wanted = pairings(PLAYERS, seed=5, games=10)
    assert [(one.candidate.candidate_id, one.episodes, one.seed) for one in wanted] == [
        ("a", 20, 5),
        ("b", 20, 5),
        ("c", 20, 5),
    ]
    assert [[other.manifest_digest for other in one.opponents] for one in wanted] == [
        ["b", "c"],
        ["a", "c"],
        ["a", "b"],
    ]


def test_the_largest_share_of_the_points_wins() -> None:
    games = [Result("a", "b", 4, 2, 4), Result("b", "c", 9, 0, 1), Result("c", "a", 4, 2, 4)]
    assert [one.score for one in shares(PLAYERS, games)] == [0.5, 0.7, 0.3]
    champion, share, reason = winner(PLAYERS, games)
    assert (champion.candidate_id, share.score, share.episodes) == ("b", 0.7, 20)
    assert reason == "a1 (299 ± 0) won the round robin of 3 with 70.0 % of the points of 20 games"


def test_a_pair_of_contenders_and_a_contender_and_the_built_in_opponent_play_equally_often() -> None:
    wanted = against_built_in(PLAYERS, seed=5, games=10)
    assert [(one.candidate.candidate_id, one.episodes, one.seed, len(one.opponents)) for one in wanted] == [
        ("a", 20, 5, 0),
        ("b", 20, 5, 0),
        ("c", 20, 5, 0),
    ]


def test_games_against_the_built_in_opponent_count_and_it_is_never_champion() -> None:
    """A policy that beats the others, but little else, is not the champion."""
    among = [Result("c", "a", 12, 0, 8), Result("c", "b", 12, 0, 8), Result("a", "b", 10, 0, 10)]
    assert winner(PLAYERS, among)[0].candidate_id == "c"
    games = [*among, Result("a", BUILT_IN, 19, 0, 1), Result("b", BUILT_IN, 10, 0, 10), Result("c", BUILT_IN, 8, 0, 12)]
    champion, share, reason = winner(PLAYERS, games)
    assert (champion.candidate_id, share.episodes) == ("a", 60)
    assert reason.startswith(
        "a0 (300 ± 0) won the round robin of 3 and the built-in opponent with 61.7 % of the points"
    )
    assert len(shares(PLAYERS, games)) == 3
    lost = [Result(one.candidate_id, BUILT_IN, 0, 0, 20) for one in PLAYERS]
    assert winner(PLAYERS, lost)[0].candidate_id == "a"


def test_a_circle_with_the_built_in_opponent_names_it() -> None:
    circle = [Result("a", "b", 60, 0, 4), Result("b", BUILT_IN, 60, 0, 4), Result("a", BUILT_IN, 4, 0, 60)]
    reason = winner(PLAYERS[:2], circle)[2]
    assert "beats the built-in opponent beats" in reason


def test_equal_players_are_ordered_by_rank() -> None:
    champion, share, _ = winner(PLAYERS, [Result("c", "b", 5, 0, 5), Result("a", "b", 5, 0, 5)])
    assert champion.candidate_id == "a"
    assert share.score == 0.5


def test_a_circle_is_no_progress() -> None:
    circle = [Result("a", "b", 30, 0, 2), Result("b", "c", 30, 0, 2), Result("c", "a", 30, 0, 2)]
    _, share, reason = winner(PLAYERS, circle)
    assert share.score == 0.5
    assert "ratings do not describe these games well (misfit 74, expected 1)" in reason
    assert reason.endswith("a0 beats a1 beats a2 beats a0, so the champion is not better than all others")


def test_the_champion_of_rated_candidates_is_the_winner(make_spec: Callable[..., TournamentSpec]) -> None:
    spec = make_spec(champion={"reevaluate_top": 3, "reevaluate_episodes": 10})
    spec.opponents.rated = True
    board: Board = tuple(PLAYERS)
    first = name_champion(spec, board, {}, [])
    assert [one.episodes for one in first.contenders] == [20] * 6
    assert [one.seed for one in first.contenders] == [choice_seed(spec)] * 3 + [built_in_seed(spec)] * 3
    played = [
        FreshEvaluation(
            candidate_id=one.candidate.candidate_id,
            seed=one.seed,
            evaluation=Evaluation(
                episodes=20,
                matches=[
                    # The third wins all its games.
                    MatchResult(
                        opponent_candidate_id=other.manifest_digest, wins=10 * (one.candidate.agent_number == 2)
                    )
                    for other in one.opponents
                    if one.candidate.agent_number == 2
                ],
            ),
        )
        for one in first.contenders
    ]
    partly = name_champion(spec, board, {}, played[2:4])
    assert [one.candidate.candidate_id for one in partly.contenders] == ["a", "b", "b", "c"]
    chosen = name_champion(spec, board, {}, played)
    assert chosen.champion.candidate_id == "c"
    (report,) = chosen.contenders
    assert (report.candidate.candidate_id, report.seed, len(report.opponents)) == ("c", report_seed(spec), 0)
    reported = FreshEvaluation(
        candidate_id="c", seed=report.seed, evaluation=Evaluation(mean_return=0.8, variance=0.36, episodes=100)
    )
    final = name_champion(spec, board, {}, [*played, reported])
    assert not final.contenders
    assert (final.score, final.standard_error) == (0.8, 0.06)
    assert final.selection.selection_score == 1.0
