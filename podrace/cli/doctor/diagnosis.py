"""Defines one line of the doctor's report, its JSON, and the exit code."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from podrace import __version__
from podrace.cli.terminal.formats import things


class Severity(StrEnum):
    """Meaning of a diagnosis."""

    OK = "ok"
    """It works."""
    WARNING = "warning"
    """It works with a limit, or it may fail later."""
    ERROR = "error"
    """It does not work."""


@dataclass(frozen=True)
class Diagnosis:
    """One line of the report."""

    area: str
    """What it belongs to: machine, packages, GPU, home, store, ports, server, cluster or manifests."""
    name: str
    """What was examined."""
    severity: Severity
    found: str
    """What was found, with units."""
    remedy: str = ""
    """What to do about it; empty if it is ok."""


def exit_code(diagnoses: Iterable[Diagnosis]) -> int:
    """Returns 1 if there is an error, otherwise 0. Pure."""
    return int(any(each.severity is Severity.ERROR for each in diagnoses))


def summary(diagnoses: Sequence[Diagnosis]) -> str:
    """Returns the last line of the report. Pure."""
    counts = Counter(each.severity for each in diagnoses)
    found = [things(counts[each], each.value) for each in (Severity.ERROR, Severity.WARNING) if counts[each]]
    return ", ".join(found) or f"no problems found in {things(len(diagnoses), 'check')}"


def report_value(diagnoses: Sequence[Diagnosis]) -> dict[str, object]:
    """Returns the whole report as a JSON value. Pure."""
    return {
        "healthy": exit_code(diagnoses) == 0,
        "podrace": __version__,
        "diagnoses": [asdict(each) for each in diagnoses],
    }
