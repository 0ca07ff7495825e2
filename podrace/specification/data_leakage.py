"""Checks that no agent is trained or selected on the data that is reserved for the final report. Pure.

Some simulators divide their data into splits (option `split`). The split `backtest` may be used only in `[reports]`.
"""

from podrace.tournament.v1.tournament_pb2 import TournamentSpec

REPORT_SPLIT = "backtest"
CUTS = ("path", "train_start", "train_end", "validation_end", "backtest_end")
"""Options that set the boundaries of the splits."""
SPLIT_SIMULATORS = ("stocks",)
"""Simulators that have these options."""


def leak(spec: TournamentSpec) -> str:
    """Returns how a specification would train or select on the report's data; empty if it would not.

    Args:
        spec: Needs only its environment and its evaluation.
    """
    given, evaluated = dict(spec.environment.options), dict(spec.evaluation.options)
    for section, options in (("environment", given), ("evaluation", evaluated)):
        if options.get("split") == REPORT_SPLIT:
            return (
                f"{section}.options.split = {REPORT_SPLIT!r}: agents would be trained or selected on the data that "
                "tests the champion; use this split only in [reports]"
            )
    if spec.environment.id in SPLIT_SIMULATORS:
        for name in CUTS:
            if name in evaluated and evaluated[name] != given.get(name):
                return (
                    f"evaluation.options.{name} = {evaluated[name]!r}: differs from environment.options.{name}, so "
                    "agents could be selected on the data that tests the champion; set it only in [environment.options]"
                )
    return ""
