"""Defines promises, the findings about them, and the report. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MOST_PROBLEMS = 20
"""More problems of one promise are not listed."""


class PromiseState(StrEnum):
    """What was found about one promise."""

    KEPT = "KEPT"
    """It was examined and is kept."""
    BROKEN = "BROKEN"
    """It is broken."""
    ADVISED = "ADVISED"
    """The contract allows it, and podrace can do more with a service that does otherwise."""
    UNTESTED = "UNTESTED"
    """Nothing in the examination depended on it."""


@dataclass(frozen=True)
class Promise:
    """One promise of a contract."""

    name: str
    """Short name, unique in its contract."""
    words: str
    """What the contract says, literally."""
    where: str
    """Where the contract states it: a service, a method, a message or a field."""
    remedy: str
    """What to do if it is broken, in one sentence."""
    advice: bool = False
    """Whether the contract only recommends it."""


@dataclass(frozen=True)
class PromiseFinding:
    """What was found about one promise: one line of the report."""

    promise: Promise
    grade: PromiseState
    problem: str = ""
    """What was observed, if the promise is not kept; else why it was not examined."""
    times: int = 0
    """How often it was examined, or how often it was broken."""
    problems: tuple[str, ...] = ()
    """Everything different that was observed, if the promise is not kept; at most MOST_PROBLEMS."""


class Broken(Exception):
    """A promise is broken in a way that ends a part of the examination."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(problem)
        self.name, self.problem = name, problem


@dataclass
class Judge:
    """Records what is observed about the promises of one contract.

    judge.expect("step-number", stepped.step == 3, f"the response to step 3 has step {stepped.step}")
    """

    promises: Mapping[str, Promise]
    _kept: dict[str, int] = field(default_factory=dict)
    _broken: dict[str, list[str]] = field(default_factory=dict)
    _untested: dict[str, str] = field(default_factory=dict)

    def expect(self, name: str, holds: bool, problem: str) -> bool:
        """Records whether a promise was kept once; returns whether it was."""
        assert name in self.promises, name
        if holds:
            self._kept[name] = self._kept.get(name, 0) + 1
        else:
            self._broken.setdefault(name, []).append(" ".join(problem.split()))
        return holds

    def require(self, name: str, holds: bool, problem: str) -> None:
        """Records like `expect`, and ends the part of the examination if the promise is broken.

        Raises:
            Broken: It is broken.
        """
        if not self.expect(name, holds, problem):
            raise Broken(name, problem)

    def skip(self, name: str, reason: str) -> None:
        """Records why a promise cannot be examined."""
        assert name in self.promises, name
        self._untested[name] = reason

    def skip_rest(self, reason: str) -> None:
        """Records why the promises that were neither examined nor skipped cannot be examined."""
        for name in self.promises:
            self._untested.setdefault(name, reason)

    def is_broken(self, name: str) -> bool:
        """Whether a promise has been found broken."""
        return name in self._broken

    def findings(self) -> list[PromiseFinding]:
        """Returns one finding for each promise, the broken ones first."""
        found = [self._finding(promise) for promise in self.promises.values()]
        order = [PromiseState.BROKEN, PromiseState.ADVISED, PromiseState.KEPT, PromiseState.UNTESTED]
        return sorted(found, key=lambda finding: order.index(finding.grade))

    def _finding(self, promise: Promise) -> PromiseFinding:
        if problems := self._broken.get(promise.name):
            grade = PromiseState.ADVISED if promise.advice else PromiseState.BROKEN
            different = tuple(dict.fromkeys(problems))[:MOST_PROBLEMS]
            return PromiseFinding(promise, grade, problems[0], len(problems), different)
        if times := self._kept.get(promise.name):
            return PromiseFinding(promise, PromiseState.KEPT, times=times)
        return PromiseFinding(
            promise, PromiseState.UNTESTED, self._untested.get(promise.name, "no case depended on it")
        )


@dataclass(frozen=True)
class Report:
    """The findings about one service."""

    contract: str
    """What was examined: `simulator`, `evolution`, `evaluator`, `worker` or `pod`."""
    address: str
    findings: tuple[PromiseFinding, ...]
    seconds: float
    unfinished: str = ""
    """Why the examination ended early; empty if it did not."""

    @property
    def conforms(self) -> bool:
        """Whether no promise is broken, something was examined, and the examination was finished."""
        grades = {finding.grade for finding in self.findings}
        return PromiseState.BROKEN not in grades and PromiseState.KEPT in grades and not self.unfinished

    def counts(self) -> dict[str, int]:
        """Returns the number of findings of each grade."""
        return {grade.value: sum(finding.grade == grade for finding in self.findings) for grade in PromiseState}


def line(finding: PromiseFinding) -> str:
    """Returns a finding as one human-readable line."""
    promise = finding.promise
    if finding.grade == PromiseState.KEPT:
        return f"{finding.grade} {promise.name}: {promise.words}"
    if finding.grade == PromiseState.UNTESTED:
        return f"{finding.grade} {promise.name}: {finding.problem}"
    different = f", {len(finding.problems)} different, which --json lists" if len(finding.problems) > 1 else ""
    often = f" ({finding.times} times{different})" if finding.times > 1 else ""
    quoted = f'contract, {promise.where}: "{promise.words}"'
    return f"{finding.grade} {promise.name}: {finding.problem}{often}; {quoted}; {promise.remedy}"


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


def _value(finding: PromiseFinding) -> dict[str, object]:
    promise = finding.promise
    return {
        "name": promise.name,
        "grade": finding.grade.value,
        "problem": finding.problem,
        "problems": list(finding.problems),
        "times": finding.times,
        "promise": promise.words,
        "where": promise.where,
        "remedy": "" if finding.grade == PromiseState.KEPT else promise.remedy,
    }


def by_name(promises: Iterable[Promise]) -> dict[str, Promise]:
    """Returns promises by their names, which are unique."""
    found = list(promises)
    named = {promise.name: promise for promise in found}
    assert len(named) == len(found), "the names of promises are unique"
    return named
