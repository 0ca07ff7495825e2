"""Reads reports of examinations."""

from podrace.conformance.findings import Report, RequirementState


def wrong(report: Report) -> dict[str, str]:
    """Violated requirements, and those that are only advice, by their words."""
    graded = (RequirementState.VIOLATED, RequirementState.ADVISED)
    return {f.requirement.words: f"{f.requirement.name}: {f.problem}" for f in report.findings if f.grade in graded}


def untested(report: Report) -> set[str]:
    """Names of requirements that were not examined."""
    return {finding.requirement.name for finding in report.findings if finding.grade == RequirementState.UNTESTED}


def assert_found(report: Report, words: str) -> None:
    """Checks that the requirement is found, and little else."""
    found = wrong(report)
    assert any(words in requirement for requirement in found), found
    assert len(found) <= 4, found
