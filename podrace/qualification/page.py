"""Writes the report of a qualification as text."""

from collections import Counter
from collections.abc import Iterator, Sequence

from podrace.printable import printable
from podrace.qualification.findings import Finding, Grade, exit_code

NAME_WIDTH = 30


def lines_of(finding: Finding) -> Iterator[str]:
    """Yields the lines of one finding: what was measured, and below it what it is compared with and what to do.

    What passed is one line with its bound, and what is absent is one line with what it needs.
    """
    note = {Grade.PASS: finding.expected, Grade.ABSENT: finding.remedy}.get(finding.grade, "")
    shown = " ".join(filter(None, (finding.measured, f"({note})" if note else "")))
    yield printable(f"{finding.grade:<6}  {finding.part:<11}  {finding.name:<{NAME_WIDTH}}  {shown}".rstrip())
    indent, remarkable = " " * 21, finding.grade in (Grade.SLOW, Grade.FAIL)
    if finding.expected and remarkable:
        yield printable(f"{indent}expected: {finding.expected}")
    if finding.reference:
        yield printable(f"{indent}reference: {finding.reference}")
    if finding.remedy and remarkable:
        yield printable(f"{indent}remedy: {finding.remedy}")


def summary(findings: Sequence[Finding], seconds: float) -> str:
    """Returns the last line of the report: the verdict, how many findings have each grade, and the time taken."""
    counts = Counter(finding.grade for finding in findings)
    grades = ", ".join(f"{counts[grade]} {grade}" for grade in Grade if counts[grade]) or "nothing was examined"
    if exit_code(findings) == 0:
        verdict = "qualified"
    elif counts[Grade.FAIL]:
        verdict = "not qualified"
    else:
        verdict = "not qualified: nothing was shown on a GPU"
    return f"{verdict} ({grades}) in {seconds:.0f} s"
