"""Selects the champion from fresh evaluations of the best candidates, and its reported score from others. Pure.

The first candidate of a board has the highest of many noisy scores, which overestimates its true score (the winner's
curse; Smith and Winkler, "The Optimizer's Curse", Management Science 52, 2006). Disjoint sets of new episodes remove
that bias:

1.  All contenders (see leaderboard.ranking.contenders) play set A, and only these scores choose the best of them.
    Scores are shrunk for the choice, see fresh_scores.
2.  With `champion.ensemble`, the best contender and an ensemble with it play set E, and the better one is the champion.
    The members were chosen on set A, so a comparison there would favor the best contender.
3.  The champion alone plays set B. Its mean return there is the reported score. It is unbiased, because these episodes
    were not used for selection. The mean by which the champion was selected is the highest of several, and too high.

If candidates are rated by games (`opponents.rated`), a round robin of the contenders and the built-in opponent takes
the place of step 1, see leaderboard.ranking.round_robin, and there is no step 2. The reported score is the mean return
against the built-in opponent, in other games.

Equal contenders are ordered by rank on the board; an ensemble that is only equal to the best contender is not taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leaderboard.ranking.board import Board, named
from leaderboard.ranking.contenders import contenders_of
from leaderboard.ranking.ensemble_members import Scored, choose_members
from leaderboard.ranking.fresh_scores import FreshScore, fresh_of, lead, shrunken, usable
from leaderboard.ranking.round_robin import MOST_PLAYERS, against_built_in, pairings, table, winner
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate, Contender, FreshEvaluation, NameChampionResponse
from podrace.seeding import purpose_seed
from podrace.tournament.v1.tournament_pb2 import ChampionSelection, TournamentSpec

Team = tuple[Candidate, ...]
"""A candidate that acts alone, or the members of an ensemble."""
Results = Mapping[tuple[str, ...], Evaluation]
"""Evaluations on one seed, by the ids of the members of a team; an evaluation that failed is empty."""


@dataclass(frozen=True)
class Choice:
    """What a set of evaluations chose."""

    team: Team
    selected_by: FreshScore
    """The score by which it was chosen."""
    reason: str
    """Why, in one line."""
    by_fallback_evaluator: bool = False
    """Whether the built-in evaluator scored it in place of the tournament's evaluator plugin."""


def name_champion(
    spec: TournamentSpec, board: Board, newest: Mapping[int, Candidate], evaluations: Sequence[FreshEvaluation]
) -> NameChampionResponse:
    """Selects the champion from the evaluations so far, and lists what must be evaluated next.

    Args:
        spec: Resolved specification.
        board: Candidates by rank.
        newest: The newest submission of each trial.
        evaluations: Evaluations of contenders; others are ignored. An evaluation without a result has failed.
    """
    if not board:
        return NameChampionResponse()
    first = _first_of(board)
    if not spec.champion.reevaluate_top:
        answer = _answer(first, [])
        answer.ClearField("selection")
        return answer
    contenders = contenders_of(spec, board, newest)
    results = results_of(evaluations, choice_seed(spec))
    if spec.opponents.rated:
        return _by_games(spec, board, contenders[:MOST_PLAYERS], evaluations, results)
    ranked = _ranked(contenders, results)
    choice = _best_of(ranked, results) if ranked else _without_results(first, contenders, results)
    if len(contenders) > 1 and (missing := _missing([(one,) for one in contenders], results)):
        return _answer(choice, _wanted(spec, missing, choice_seed(spec)))
    if members := choose_members(ranked, spec.champion.ensemble):
        together, results = tuple(members), results_of(evaluations, ensemble_seed(spec))
        if missing := _missing([choice.team, together], results):
            return _answer(choice, _wanted(spec, missing, ensemble_seed(spec)))
        choice = _better_of(choice, together, results)
    return _reported(spec, choice, results_of(evaluations, report_seed(spec)))


def _by_games(
    spec: TournamentSpec,
    board: Board,
    contenders: Sequence[Candidate],
    evaluations: Sequence[FreshEvaluation],
    results: Results,
) -> NameChampionResponse:
    """Selects the winner of a round robin, in place of the contender with the best mean return."""
    choice = _first_of(board)
    if len(contenders) > 1:
        others = results_of(evaluations, built_in_seed(spec))
        if games := table(contenders, [results, others]):
            champion, share, reason = winner(contenders, games)
            choice = Choice((champion,), share, reason)
        episodes = spec.champion.reevaluate_episodes
        missing = [
            *_unplayed(pairings(contenders, choice_seed(spec), episodes), results),
            *_unplayed(against_built_in(contenders, built_in_seed(spec), episodes), others),
        ]
        if missing:
            return _answer(choice, missing)
    return _reported(spec, choice, results_of(evaluations, report_seed(spec)))


def _unplayed(wanted: Sequence[Contender], results: Results) -> list[Contender]:
    return [one for one in wanted if (one.candidate.candidate_id,) not in results]


def choice_seed(spec: TournamentSpec) -> int:
    """Returns the seed of the episodes that choose the best contender (set A)."""
    return purpose_seed(spec.seed, "champion", 0)


def built_in_seed(spec: TournamentSpec) -> int:
    """Returns the seed of the games against the built-in opponent in a round robin."""
    return purpose_seed(spec.seed, "champion-built-in", 0)


def ensemble_seed(spec: TournamentSpec) -> int:
    """Returns the seed of the episodes on which an ensemble competes with the best contender (set E)."""
    return purpose_seed(spec.seed, "champion-ensemble", 0)


def report_seed(spec: TournamentSpec) -> int:
    """Returns the seed of the episodes of the reported score (set B)."""
    return purpose_seed(spec.seed, "champion-report", 0)


def results_of(evaluations: Sequence[FreshEvaluation], seed: int) -> dict[tuple[str, ...], Evaluation]:
    """Returns the evaluations with a seed."""
    return {
        (one.candidate_id, *one.member_candidate_ids): one.evaluation
        for one in evaluations
        if (one.seed or one.evaluation.seed) == seed
    }


def _ids(team: Team) -> tuple[str, ...]:
    return tuple(candidate.candidate_id for candidate in team)


def _missing(teams: Sequence[Team], results: Results) -> list[Team]:
    return [team for team in teams if _ids(team) not in results]


def _comparable(results: Results) -> dict[tuple[str, ...], Evaluation]:
    """Returns the results that count.

    Results of the built-in evaluator, where the tournament has another one, count only if there are no others.
    """
    valid = {ids: result for ids, result in results.items() if usable(result)}
    as_wanted = {ids: result for ids, result in valid.items() if not result.evaluator_fault}
    return as_wanted or valid


# --- the choice --------------------------------------------------------------------------------------------------


def _first_of(board: Board) -> Choice:
    first = board[0]
    score = FreshScore(first.score, first.standard_error, first.episodes)
    return Choice((first,), score, f"{named(first)} is first on the board", bool(first.evaluator_fault))


def _without_results(first: Choice, contenders: Sequence[Candidate], results: Results) -> Choice:
    if not results or len(contenders) == 1:
        return first
    reason = f"{first.reason}; no fresh evaluation of a contender succeeded"
    return Choice(first.team, first.selected_by, reason, first.by_fallback_evaluator)


def _ranked(contenders: Sequence[Candidate], results: Results) -> list[Scored]:
    """Returns the contenders that were evaluated, with their scores, the best first."""
    comparable = _comparable(results)
    judged = [candidate for candidate in contenders if (candidate.candidate_id,) in comparable]
    scores = [fresh_of(comparable[candidate.candidate_id,]) for candidate in judged]
    estimates = shrunken(scores)
    # Sorting is stable: equal candidates keep the order of the contenders.
    order = sorted(range(len(judged)), key=lambda i: (-estimates[i], -scores[i].score))
    return [(judged[i], scores[i]) for i in order]


def _best_of(ranked: Sequence[Scored], results: Results) -> Choice:
    best, score = ranked[0]
    reason = f"{named(best)}, evaluated again at {_shown(score)}, is best of {len(ranked)}"
    if len(ranked) > 1:
        second, other = ranked[1]
        ahead, error = lead(score, other)
        reason += f": its lead over {named(second)} is {ahead:.4g} ± {error:.2g}"
    return Choice((best,), score, reason, bool(results[best.candidate_id,].evaluator_fault))


def _better_of(alone: Choice, together: Team, results: Results) -> Choice:
    """Returns the ensemble or the best contender, whichever is better; the latter if one of them has no score."""
    comparable = _comparable(results)
    names = " + ".join(f"a{member.agent_number}" for member in together)
    pair = [comparable.get(_ids(team)) for team in (alone.team, together)]
    if pair[0] is None or pair[1] is None:
        what = "alone" if pair[1] is not None else "of the ensemble"
        reason = f"{alone.reason}; not compared with the ensemble {names}: the evaluation {what} failed"
        return Choice(alone.team, alone.selected_by, reason, alone.by_fallback_evaluator)
    single, ensemble = map(fresh_of, (pair[0], pair[1]))
    ahead, error = lead(ensemble, single)
    compared = f"the ensemble {names} {_shown(ensemble)}, a lead of {ahead:.4g} ± {error:.2g}"
    reason = f"{alone.reason}; on other episodes it scores {_shown(single)} and {compared}"
    if ensemble.score > single.score:
        return Choice(together, ensemble, f"{reason}: the ensemble is champion", bool(pair[1].evaluator_fault))
    return Choice(alone.team, single, reason, bool(pair[0].evaluator_fault))


# --- the reported score ------------------------------------------------------------------------------------------


def _reported(spec: TournamentSpec, choice: Choice, results: Results) -> NameChampionResponse:
    """Adds the reported score to a final choice, or asks for its evaluation."""
    result = results.get(_ids(choice.team))
    if result is None:
        return _answer(choice, _wanted(spec, [choice.team], report_seed(spec)))
    problem = ""
    if not usable(result):
        problem = "the evaluation on new episodes failed"
    elif result.evaluator_fault and not choice.by_fallback_evaluator:
        problem = "the evaluator plugin failed on the new episodes"
    if problem:
        return _answer(choice, [], more=f"{problem}, so the selection score is reported")
    reported = fresh_of(result)
    more = f"reported: {_shown(reported)} on {reported.episodes} episodes that were not used for selection"
    return _answer(choice, [], reported=reported, more=more)


def _shown(score: FreshScore) -> str:
    return f"{score.score:.4g} ± {score.standard_error:.2g}"


def _wanted(spec: TournamentSpec, teams: Sequence[Team], seed: int) -> list[Contender]:
    episodes = spec.champion.reevaluate_episodes
    return [Contender(candidate=team[0], members=team[1:], episodes=episodes, seed=seed) for team in teams]


def _answer(
    choice: Choice, contenders: Sequence[Contender], *, reported: FreshScore | None = None, more: str = ""
) -> NameChampionResponse:
    reason = f"{choice.reason}; {more}" if more else choice.reason
    first, *others = choice.team
    score = reported or choice.selected_by
    return NameChampionResponse(
        contenders=contenders,
        champion=first,
        score=score.score,
        standard_error=score.standard_error,
        reason=reason,
        selection=ChampionSelection(
            selection_score=choice.selected_by.score,
            selection_standard_error=choice.selected_by.standard_error,
            selection_episodes=choice.selected_by.episodes,
            reported_episodes=reported.episodes if reported else 0,
            members=[Checkpoint(agent_id=one.agent_id, manifest_digest=one.candidate_id) for one in others],
            reason=reason,
        ),
    )
