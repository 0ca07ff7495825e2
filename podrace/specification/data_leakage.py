"""Keeps the data that is to judge a champion away from what selects it. Pure.

Options of a simulator that cuts its data into splits (`split = "backtest"`) may name the last one in `[reports]` alone:
an agent that trains on it, or is picked by its score on it, has seen it.
"""

from podrace.tournament.v1.tournament_pb2 import TournamentSpec

JUDGING_SPLIT = "backtest"
CUTS = ("path", "train_start", "train_end", "validation_end", "backtest_end")
"""Options that say where the splits lie."""
SPLIT_SIMULATORS = ("stocks",)
"""Whose options these are."""


def unfair(spec: TournamentSpec) -> str:
    """Why a specification would select on the data that is to judge; empty when it would not.

    Args:
        spec: With the ids and the options of its environment and its evaluation.
    """
    given, evaluated = dict(spec.environment.options), dict(spec.evaluation.options)
    for section, options in (("environment", given), ("evaluation", evaluated)):
        if options.get("split") == JUDGING_SPLIT:
            return (
                f"{section}.options.split = {JUDGING_SPLIT!r}: agents would be trained or selected on the data that is "
                "to judge the champion; name it in [reports] alone"
            )
    if spec.environment.id in SPLIT_SIMULATORS:
        for name in CUTS:
            if name in evaluated and evaluated[name] != given.get(name):
                return (
                    f"evaluation.options.{name} = {evaluated[name]!r}: cut in other places than for training, agents "
                    "could be selected on the data that is to judge the champion; set it in [environment.options] alone"
                )
    return ""
