"""Defines requirements, the findings about them, and the report. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MOST_PROBLEMS = 20
"""More problems of one requirement are not listed."""


class RequirementState(StrEnum):
    """What was found about one requirement."""

    MET = "MET"
    """It was examined and is met."""
    VIOLATED = "VIOLATED"
    """It is violated."""
    ADVISED = "ADVISED"
    """The contract allows it, and podrace can do more with a service that does otherwise."""
    UNTESTED = "UNTESTED"
    """Nothing in the examination depended on it."""


@dataclass(frozen=True)
class Requirement:
    """One requirement of a contract."""

    name: str
    """Short name, unique in its contract."""
    words: str
    """What the contract says, literally."""
    where: str
    """Where the contract states it: a service, a method, a message or a field."""
    remedy: str
    """What to do if it is violated, in one sentence."""
    advice: bool = False
    """Whether the contract only recommends it."""


@dataclass(frozen=True)
class RequirementFinding:
    """What was found about one requirement: one line of the report."""

    requirement: Requirement
    grade: RequirementState
    problem: str = ""
    """What was observed, if the requirement is not met; else why it was not examined."""
    times: int = 0
    """How often it was examined, or how often it was violated."""
    problems: tuple[str, ...] = ()
    """Everything different that was observed, if the requirement is not met; at most MOST_PROBLEMS."""


class Violated(Exception):
    """A requirement is violated in a way that ends a part of the examination."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(problem)
        self.name, self.problem = name, problem


@dataclass
class Judge:
    """Records what is observed about the requirements of one contract.

    judge.expect("step-number", stepped.step == 3, f"the response to step 3 has step {stepped.step}")
    """

    requirements: Mapping[str, Requirement]
    _met: dict[str, int] = field(default_factory=dict)
    _violated: dict[str, list[str]] = field(default_factory=dict)
    _untested: dict[str, str] = field(default_factory=dict)

    def expect(self, name: str, holds: bool, problem: str) -> bool:
        """Records whether a requirement was met once; returns whether it was."""
        assert name in self.requirements, name
        if holds:
            self._met[name] = self._met.get(name, 0) + 1
        else:
            self._violated.setdefault(name, []).append(" ".join(problem.split()))
        return holds

    def require(self, name: str, holds: bool, problem: str) -> None:
        """Records like `expect`, and ends the part of the examination if the requirement is violated.

        Raises:
            Violated: It is violated.
        """
        if not self.expect(name, holds, problem):
            raise Violated(name, problem)

    def skip(self, name: str, reason: str) -> None:
        """Records why a requirement cannot be examined."""
        assert name in self.requirements, name
        self._untested[name] = reason

    def skip_rest(self, reason: str) -> None:
        """Records why the requirements that were neither examined nor skipped cannot be examined."""
        for name in self.requirements:
            self._untested.setdefault(name, reason)

    def is_violated(self, name: str) -> bool:
        """Whether a requirement has been found violated."""
        return name in self._violated

    def findings(self) -> list[RequirementFinding]:
        """Returns one finding for each requirement, the violated ones first."""
        found = [self._finding(requirement) for requirement in self.requirements.values()]
        order = [RequirementState.VIOLATED, RequirementState.ADVISED, RequirementState.MET, RequirementState.UNTESTED]
        return sorted(found, key=lambda finding: order.index(finding.grade))

    def _finding(self, requirement: Requirement) -> RequirementFinding:
        if problems := self._violated.get(requirement.name):
            grade = RequirementState.ADVISED if requirement.advice else RequirementState.VIOLATED
            different = tuple(dict.fromkeys(problems))[:MOST_PROBLEMS]
            return RequirementFinding(requirement, grade, problems[0], len(problems), different)
        if times := self._met.get(requirement.name):
            return RequirementFinding(requirement, RequirementState.MET, times=times)
        return RequirementFinding(
            requirement, RequirementState.UNTESTED, self._untested.get(requirement.name, "no case depended on it")
        )


@dataclass(frozen=True)
class Report:
    """The findings about one service."""

    contract: str
    """What was examined: `simulator`, `evolution`, `evaluator`, `worker` or `pod`."""
    address: str
    findings: tuple[RequirementFinding, ...]
    seconds: float
    unfinished: str = ""
    """Why the examination ended early; empty if it did not."""

    @property
    def conforms(self) -> bool:
        """Whether no requirement is violated, something was examined, and the examination was finished."""
        grades = {finding.grade for finding in self.findings}
        return RequirementState.VIOLATED not in grades and RequirementState.MET in grades and not self.unfinished

    def counts(self) -> dict[str, int]:
        """Returns the number of findings of each grade."""
        return {grade.value: sum(finding.grade == grade for finding in self.findings) for grade in RequirementState}


def line(finding: RequirementFinding) -> str:
    """Returns a finding as one human-readable line."""
    requirement = finding.requirement
    if finding.grade == RequirementState.MET:
        return f"{finding.grade} {requirement.name}: {requirement.words}"
    if finding.grade == RequirementState.UNTESTED:
        return f"{finding.grade} {requirement.name}: {finding.problem}"
    different = f", {len(finding.problems)} different, which --json lists" if len(finding.problems) > 1 else ""
    often = f" ({finding.times} times{different})" if finding.times > 1 else ""
    quoted = f'contract, {requirement.where}: "{requirement.words}"'
    return f"{finding.grade} {requirement.name}: {finding.problem}{often}; {quoted}; {requirement.remedy}"


def report_value(report: Report) -> dict[str, object]:
    """Returns a report as a JSON value."""
    return {
        "contract": report.contract,
        "address": report.address,
        "conforms": report.conforms,
        "seconds": round(report.seconds, 3),
        "unfinished": report.unfinished,
        "counts": report.counts(),
        "findings": [_value(finding) for finding in report.findings],
    }


def _value(finding: RequirementFinding) -> dict[str, object]:
    requirement = finding.requirement
    return {
        "name": requirement.name,
        "grade": finding.grade.value,
        "problem": finding.problem,
        "problems": list(finding.problems),
        "times": finding.times,
        "requirement": requirement.words,
        "where": requirement.where,
        "remedy": "" if finding.grade == RequirementState.MET else requirement.remedy,
    }


def by_name(requirements: Iterable[Requirement]) -> dict[str, Requirement]:
    """Returns requirements by their names, which are unique."""
    found = list(requirements)
    named = {requirement.name: requirement for requirement in found}
    assert len(named) == len(found), "the names of requirements are unique"
    return named
