"""Defines the findings of a qualification: one line of the report each."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum


class Grade(StrEnum):
    """What a finding says about one property of the machine."""

    PASS = "PASS"
    """It works, and as fast as expected."""
    SLOW = "SLOW"
    """It works, but more slowly than expected."""
    FAIL = "FAIL"
    """It does not work."""
    ABSENT = "ABSENT"
    """The machine has no such device, or a package is missing, so nothing was shown."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    part: str
    """Key of podrace.qualification.parts.PARTS."""
    name: str
    """What was examined."""
    grade: Grade
    measured: str = ""
    """What was measured, with units."""
    expected: str = ""
    """The bound that the grade follows from."""
    reference: str = ""
    """A published figure to compare with."""
    remedy: str = ""
    """What to do about it; empty if it passed."""

    def on_processors(self) -> "Finding":
        """Returns what a finding is worth if the CPU took the place of the GPU: it never passes.

        A failure remains one.
        """
        if self.grade in (Grade.FAIL, Grade.ABSENT):
            return self
        measured = f"on the CPU: {self.measured}" if self.measured else ""
        return replace(self, grade=Grade.ABSENT, measured=measured, remedy="needs a GPU")


def exit_code(findings: Iterable[Finding]) -> int:
    """Returns 0 if something passed and nothing failed, otherwise 1. Pure.

    A machine on which everything is absent is therefore not qualified. What is slow, works.
    """
    grades = {finding.grade for finding in findings}
    shown = grades & {Grade.PASS, Grade.SLOW}
    return 0 if shown and Grade.FAIL not in grades else 1


def to_json(finding: Finding) -> str:
    """Returns a finding as one line of JSON."""
    return json.dumps(asdict(finding))


def from_json(line: str) -> Finding:
    """Reads what `to_json` returned.

    Raises:
        ValueError: The line is not a finding.
    """
    try:
        values = json.loads(line)
        return Finding(**values | {"grade": Grade(values["grade"])})
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a finding: {line!r}") from error


def report_value(findings: Iterable[Finding], seconds: float, version: str) -> dict[str, object]:
    """Returns the whole report as a JSON value. Pure."""
    listed = list(findings)
    return {
        "qualified": exit_code(listed) == 0,
        "podrace": version,
        "seconds": round(seconds, 1),
        "findings": [asdict(finding) for finding in listed],
    }
