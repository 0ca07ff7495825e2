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
_PLACING = ("train_start", "train_end", "validation_end", *FOLD_CUTS)
"""All options that determine which days belong to folds."""
SPLIT_SIMULATORS = ("stocks",)
"""Simulators that have these options."""
DEFAULT_DATES = {"train_end": "2010-01-01", "validation_end": "2011-07-01"}
"""Values of options that are not given, except for synthetic prices, whose dates depend on their path."""
REMEDY = "or start without an ancestor (continuous training: with another --name)"

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


def ancestor_leak(spec: TournamentSpec, ancestor_spec: TournamentSpec) -> str:
    """Returns how an agent was trained or selected on data that another tournament evaluates on; empty if it was not.

    Training without folds may end later than that of the ancestor. Folds are spread over the time of training, so they
    must lie where the ancestor's training left them out, or after all its data. Dates that the options do not determine
    are not compared.

    Args:
        spec: Specification of the tournament that starts from the agent.
        ancestor_spec: Specification of the tournament of that agent.
    """
    if simulator_of(spec.environment) not in SPLIT_SIMULATORS:
        return ""
    here, there = (json_format.MessageToDict(one.environment.options) for one in (spec, ancestor_spec))
    moved = next((name for name in _PLACING if _value(here, name) != _value(there, name)), "")
    if here.get("folds") and not moved:
        return ""
    trained, validated = _trained_until(there), _validated_from(here)
    if validated == date.min or (trained and validated and trained > validated):
        if here.get("folds"):
            return (
                f"its training data contains days of the folds here, because environment.options.{moved} ="
                f" {_shown(here, moved)} was {_shown(there, moved)}: keep the options that place folds, {REMEDY}"
            )
        return (
            f"was trained on data until {trained}, but validation begins on {validated}: set"
            f" environment.options.train_end to {trained} or later, {REMEDY}"
        )
    selected, reported = _date(there, "validation_end"), _date(here, "validation_end")
    if selected and reported and selected > reported:
        return (
            f"was selected on data until {selected}, but the backtest begins on {reported}: set"
            f" environment.options.validation_end to {selected} or later, {REMEDY}"
        )
    return ""


def _trained_until(options: Options) -> date | None:
    """Returns the day before which all days of training are; None if it is not known."""
    to_the_end = options.get("folds") or options.get("split") == VALIDATION_SPLIT
    return _date(options, "validation_end" if to_the_end else "train_end")


def _validated_from(options: Options) -> date | None:
    """Returns the first day that may belong to validation; None if it is not known."""
    if options.get("folds"):
        return _date(options, "train_start") if options.get("train_start") else date.min
    return _date(options, "train_end")


def _value(options: Options, name: str) -> object:
    """Returns an option; None if it is not set, 0 or empty."""
    return options.get(name) or DEFAULT_DATES.get(name)


def _shown(options: Options, name: str) -> str:
    value = _value(options, name)
    return "not set" if value is None else repr(value)


def _date(options: Options, name: str) -> date | None:
    """Returns a date of the options; None if it is malformed, or depends on synthetic prices."""
    path = options.get("path") or ("synthetic:" if options.get("layout") == "minute" else "")
    if not options.get(name) and str(path).startswith("synthetic:"):
        return None
    try:
        return date.fromisoformat(str(_value(options, name)))
    except ValueError:
        return None


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
