"""Keeps what a pod does under one lease, and judges its calls."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from podrace.conformance.findings import Judge
from podrace.leaderboard.v1.leaderboard_pb2 import ORIGIN_FRESH, Agent
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

TOURNAMENT = "conformance"
OVERLAP_SECONDS = 0.25
"""Time after a new token in which a call with the token before may still arrive."""
UNKNOWN_DIRECTIVE = 99


@dataclass
class ExaminedLease:
    """One assignment, and the calls that the pod made for it."""

    assignment: pb.Assignment
    directive: int = pb.DIRECTIVE_CONTINUE
    """What is directed once the agent has taken steps."""
    goes_stale: bool = False
    """Whether the agent is assigned to another pod once it has taken steps."""
    clock: Callable[[], float] = time.monotonic
    acquired_at: float = 0.0
    ended_at: float | None = None
    """When the directive, or that the epoch is stale, was answered."""
    renewals: list[tuple[float, pb.RenewAssignmentRequest]] = field(default_factory=list)
    completions: list[tuple[float, pb.CompleteAssignmentRequest]] = field(default_factory=list)
    submissions: list[tuple[float, Any]] = field(default_factory=list)
    publications: list[tuple[float, str]] = field(default_factory=list)
    """Digests of manifests that the pointer was moved to."""
    tokens: list[tuple[float, str]] = field(default_factory=list)

    @property
    def agent_id(self) -> str:
        """The agent."""
        return self.assignment.train.agent_id

    @property
    def seconds(self) -> float:
        """Duration of the lease."""
        return self.assignment.lease_duration.ToTimedelta().total_seconds()

    def check_call(self, judge: Judge, name: str, epoch: int, token: str) -> None:
        """Judges the epoch and the token of a call."""
        wanted = self.assignment.lease_epoch
        judge.expect("epoch", epoch == wanted, f"{name} has lease_epoch {epoch} instead of {wanted}")
        valid = {self.tokens[-1][1]}
        if len(self.tokens) > 1 and self.clock() - self.tokens[-1][0] < OVERLAP_SECONDS:
            valid.add(self.tokens[-2][1])
        age = next((len(self.tokens) - n for n, (_, one) in enumerate(self.tokens, 1) if one == token), None)
        problem = "no token of this lease" if age is None else f"a token that was replaced {age} times"
        judge.expect("lease-token", token in valid, f"{name} has {problem}")

    def renew(self, judge: Judge, request: pb.RenewAssignmentRequest) -> pb.RenewAssignmentResponse:
        """Records a renewal and answers it."""
        now = self.clock()
        last = self.renewals[-1] if self.renewals else (self.acquired_at, None)
        judge.expect("renews", now - last[0] <= self.seconds, self.gap_problem(now - last[0]))
        steps = request.progress.environment_steps
        before = last[1].progress.environment_steps if last[1] else 0
        judge.expect("progress", steps >= before, f"the agent had {before} environment steps, and then {steps}")
        self.renewals.append((now, request))
        self.tokens.append((now, f"lease-token-{len(self.tokens)}"))
        response = pb.RenewAssignmentResponse(
            directive=pb.DIRECTIVE_CONTINUE,
            lease_duration=self.assignment.lease_duration,
            lease_token=self.tokens[-1][1],
        )
        if steps and self.directive != pb.DIRECTIVE_CONTINUE:
            response.directive = self.directive  # type: ignore[assignment]
            response.reason = "the examination directs it"
            self.ended_at = self.ended_at or now
        return response

    def gap_problem(self, seconds: float) -> str:
        """Describes a missing renewal."""
        return f"no renewal for {seconds:.1f} s, with a lease of {self.seconds:g} s"

    def silent_seconds(self) -> float:
        """Returns the time since the last renewal."""
        return self.clock() - (self.renewals[-1][0] if self.renewals else self.acquired_at)

    def afterwards(self, entries: list[tuple[float, Any]]) -> int:
        """Returns how many of some calls were made after the end."""
        return sum(self.ended_at is not None and moment > self.ended_at for moment, _ in entries)


class Leases:
    """Makes one assignment after another, each of another agent."""

    def __init__(self, spec: TournamentSpec, lease_seconds: float) -> None:
        self._spec, self._lease_seconds, self._numbers = spec, lease_seconds, itertools.count()

    def make(
        self, *, steps: int, known: bool = True, scores: pb.EvaluationWork | None = None, **changes: Any
    ) -> ExaminedLease:
        """Returns an assignment with a budget, or of an evaluation; without known work, it has none."""
        number = next(self._numbers)
        (algorithm,) = self._spec.algorithms
        agent = Agent(
            agent_id=f"{TOURNAMENT}-a{number}",
            tournament_id=TOURNAMENT,
            number=number,
            algorithm=algorithm,
            origin=ORIGIN_FRESH,
            seed=1000 + number,
            reason="drawn",
            assignment_environment_steps=steps,
        )
        for name, declared in self._spec.algorithms[algorithm].hyperparameters.items():
            agent.hyperparameters.fields[name].CopyFrom(declared.value)
        assignment = pb.Assignment(
            assignment_id=f"{agent.agent_id}.1",
            tournament_id=TOURNAMENT,
            spec=self._spec,
            lease_epoch=1,
            lease_token="lease-token-0",
        )
        assignment.lease_duration.FromMilliseconds(round(self._lease_seconds * 1000))
        if scores:
            assignment.evaluate.CopyFrom(scores)
        elif known:
            assignment.train.CopyFrom(agent)
        return ExaminedLease(assignment, tokens=[(0.0, "lease-token-0")], **changes)
