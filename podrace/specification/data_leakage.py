"""Checks that no agent is trained or selected on the data of the report, and that folds are the same for both. Pure.

Some simulators divide their data into splits (option `split`). The split `backtest` may be used only in `[reports]`.
"""

from google.protobuf import json_format

from podrace.tournament.v1.tournament_pb2 import TournamentSpec

REPORT_SPLIT = "backtest"
CUTS = ("path", "train_start", "train_end", "validation_end", "backtest_end")
"""Options that set the boundaries of the splits."""
FOLD_CUTS = ("folds", "embargo_bars", "tickers", "turbulence_threshold", "turbulence_days")
"""Options that place validation folds: their number and distance, the days that have prices of all stocks, and the
look-back of the features."""
SPLIT_SIMULATORS = ("stocks",)
"""Simulators that have these options."""


def leak(spec: TournamentSpec) -> str:
    """Returns how a specification would train or select on the report's data; empty if it would not.

    Args:
        spec: Needs only its environment and its evaluation.
    """
    given, evaluated = (json_format.MessageToDict(part.options) for part in (spec.environment, spec.evaluation))
    for section, options in (("environment", given), ("evaluation", evaluated)):
        if options.get("split") == REPORT_SPLIT:
            return (
                f"{section}.options.split = {REPORT_SPLIT!r}: agents would be trained or selected on the data that "
                "tests the champion; use this split only in [reports]"
            )
    if spec.environment.id in SPLIT_SIMULATORS:
        folded = bool(given.get("folds") or evaluated.get("folds"))
        for name in CUTS + (FOLD_CUTS if folded else ()):
            if name in evaluated and evaluated[name] != given.get(name):
                data = "they are trained on" if name in FOLD_CUTS else "tests the champion"
                return (
                    f"evaluation.options.{name} = {evaluated[name]!r}: differs from environment.options.{name}, so "
                    f"agents could be selected on the data that {data}; set it only in [environment.options]"
                )
    return ""
