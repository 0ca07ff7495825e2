"""Checks what an episode is worth (`evaluation.objective`) and the penalty for folds (`evaluation.fold_deviations`)."""

from collections.abc import Collection, Mapping

from google.protobuf import json_format

from podrace.tournament.v1.tournament_pb2 import TournamentSpec

RETURN = "return"
"""The objective that every simulator has: the undiscounted return of an episode."""
MEASURES: Mapping[str, Collection[str]] = {
    "stocks": (
        "cumulative_return",
        "annual_return",
        "annual_volatility",
        "sharpe_ratio",
        "maximum_drawdown",
        "calmar_ratio",
        "return_minus_drawdown",
    )
}
"""Measures of single episodes that built-in simulators report, for all splits but `train`."""
LOWER_IS_BETTER = {"annual_volatility"}
HIGHER_IS_BETTER = {name for names in MEASURES.values() for name in names} - LOWER_IS_BETTER
"""Measures of built-in simulators by their good end. A drawdown is at most 0, so the higher one is better."""
OF_USERS = ("python:", "grpc://")
"""Prefixes of simulators whose measures only they know; the evaluator refuses those that they do not report."""
MOST_EPISODES = 1024
"""Number of episodes up to which an evaluation lists their folds."""


def objective_problem(spec: TournamentSpec) -> str:
    """Returns in one line why agents cannot be scored as specified; empty if they can.

    Args:
        spec: Specification with the defaults of `evaluation` and `champion` filled in.
    """
    evaluation = spec.evaluation
    options = {
        **json_format.MessageToDict(spec.environment.options),
        **json_format.MessageToDict(evaluation.options),
    }
    split = options.get("split", "train")
    return _problem_of_objective(spec, split) or _problem_of_folds(spec, options, split)


def _problem_of_objective(spec: TournamentSpec, split: object) -> str:
    objective, id = spec.evaluation.objective, spec.environment.id
    if objective == RETURN:
        return ""
    if spec.evaluation.evaluator:
        return f"evaluation.objective = {objective!r}: the evaluator plugin decides what it is worth; leave it out"
    if id.startswith(OF_USERS):
        return ""
    known = (RETURN, *MEASURES.get(id, ()))
    if objective not in known:
        return (
            f"evaluation.objective = {objective!r}: the simulator {id!r} does not report this for single episodes;"
            f" use one of: {', '.join(known)}"
        )
    if split == "train":
        return (
            f"evaluation.objective = {objective!r}: measures of single episodes are reported for the splits validation"
            " and backtest; set evaluation.options.split = 'validation'"
        )
    return ""


def _problem_of_folds(spec: TournamentSpec, options: Mapping[str, object], split: object) -> str:
    deviations, id = spec.evaluation.fold_deviations, spec.environment.id
    if not deviations:
        return ""
    key = f"evaluation.fold_deviations = {deviations:g}"
    if spec.evaluation.evaluator:
        return f"{key}: the evaluator plugin decides the score; leave it out"
    for name, episodes in (
        ("evaluation.episodes", spec.evaluation.episodes),
        ("champion.reevaluate_episodes", spec.champion.reevaluate_episodes),
    ):
        if episodes > MOST_EPISODES:
            return f"{name} = {episodes}: at most {MOST_EPISODES} with evaluation.fold_deviations"
    if id.startswith(OF_USERS):
        return ""
    if id not in MEASURES:
        return f"{key}: the simulator {id!r} has no folds; leave it out"
    folds = options.get("folds", 0)
    if split != "validation" or not isinstance(folds, float | int) or folds < 2 or options.get("fold"):
        return (
            f"{key}: needs several validation folds; set environment.options.folds to 2 or more and"
            " evaluation.options.split = 'validation'"
        )
    return ""
