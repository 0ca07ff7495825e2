"""Checks that no agent is trained or selected on the data of the report, and that folds are the same for both. Pure.

Some simulators divide their data into splits (option `split`). The split `backtest` may be used only in `[reports]`.
"""

from collections.abc import Mapping
from datetime import date
from typing import Any

from google.protobuf import json_format

from podrace.specification.known.simulators import simulator_of
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

REPORT_SPLIT, VALIDATION_SPLIT = "backtest", "validation"
CUTS = ("path", "train_start", "train_end", "validation_end", "backtest_end")
"""Options that set the boundaries of the splits."""
FOLD_CUTS = ("folds", "embargo_bars", "tickers", "turbulence_threshold", "turbulence_days")
"""Options that place validation folds: their number and distance, the days that have prices of all stocks, and the
look-back of the features."""
SPLIT_SIMULATORS = ("stocks",)
"""Simulators that have these options."""

Options = Mapping[str, Any]


def leak(spec: TournamentSpec) -> str:
    """Returns how a specification would train, select or report on the wrong data; empty if it would not.

    Args:
        spec: Needs only its environment, its evaluation and its reports.
    """
    given, evaluated = (json_format.MessageToDict(part.options) for part in (spec.environment, spec.evaluation))
    for section, options in (("environment", given), ("evaluation", evaluated)):
        if options.get("split") == REPORT_SPLIT:
            return (
                f"{section}.options.split = {REPORT_SPLIT!r}: agents would be trained or selected on the data that "
                "tests the champion; use this split only in [reports]"
            )
    if simulator_of(spec.environment) not in SPLIT_SIMULATORS:
        return ""
    reports = {name: json_format.MessageToDict(report.options) for name, report in sorted(spec.reports.items())}
    found = (_report_leak(name, given, options) for name, options in reports.items())
    return _evaluation_leak(given, evaluated) or next(filter(None, found), "")


def _evaluation_leak(given: Options, evaluated: Options) -> str:
    folded = bool(given.get("folds") or evaluated.get("folds"))
    for name in CUTS + (FOLD_CUTS if folded else ()):
        if _differs(name, given, evaluated):
            data = "they are trained on" if name in FOLD_CUTS else "tests the champion"
            return (
                f"evaluation.options.{name} = {evaluated[name]!r}: differs from environment.options.{name}, so "
                f"agents could be selected on the data that {data}; set it only in [environment.options]"
            )
    return ""


def _report_leak(report: str, given: Options, options: Options) -> str:
    """Returns which option of a report could put data into it that agents are trained or selected on.

    A backtest that ends elsewhere, or begins later, has no such data. Folds do not change where it begins.
    """
    split = options.get("split", given.get("split"))
    if split not in (VALIDATION_SPLIT, REPORT_SPLIT):
        return ""
    folded = split == VALIDATION_SPLIT and bool(given.get("folds") or options.get("folds"))
    for name in CUTS + (FOLD_CUTS if folded else ()):
        later = name == "validation_end" and split == REPORT_SPLIT and _is_later(options.get(name), given.get(name))
        if _differs(name, given, options) and name != "backtest_end" and not later:
            return (
                f"reports.{report}.options.{name} = {options[name]!r}: differs from environment.options.{name}, so the "
                "report could contain data that agents are trained or selected on; set it only in [environment.options]"
            )
    return ""


def _differs(name: str, given: Options, options: Options) -> bool:
    return name in options and options[name] != given.get(name)


def _is_later(value: object, other: object) -> bool:
    """Returns whether two options are dates, the first one later."""
    try:
        return date.fromisoformat(str(value)) > date.fromisoformat(str(other))
    except ValueError:
        return False
