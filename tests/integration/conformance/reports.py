"""Reads reports of examinations."""

from podrace.conformance.findings import PromiseState, Report


def wrong(report: Report) -> dict[str, str]:
    """Broken promises, and those that are only advice, by their words."""
    graded = (PromiseState.BROKEN, PromiseState.ADVISED)
    return {f.promise.words: f"{f.promise.name}: {f.problem}" for f in report.findings if f.grade in graded}


def untested(report: Report) -> set[str]:
    """Names of promises that were not examined."""
    return {finding.promise.name for finding in report.findings if finding.grade == PromiseState.UNTESTED}


def assert_found(report: Report, words: str) -> None:
    """Checks that the promise is found, and little else."""
    found = wrong(report)
    assert any(words in promise for promise in found), found
    assert len(found) <= 4, found
