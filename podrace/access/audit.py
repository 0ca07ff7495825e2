"""Records decisions about access: who did what to which resource, from where, and whether it was allowed.

There is one record for each call that may change something, and one for each refusal. Renewals of leases and the
transfers inside pods are recorded only when they are refused, because there are hundreds of them per second.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import structlog

from podrace.access.audit_file import AuditFile
from podrace.access.principal import Principal
from podrace.access.rules import NONE, Decision, Resource, Rule, kind_name
from podrace.errors import FailedPrecondition

FREQUENT = frozenset({"/inference.GRPCInferenceService/ModelInfer"}) | frozenset(
    f"/podrace.{method}"
    for method in (
        "orchestrator.v1.OrchestratorService/AcquireAssignment",
        "orchestrator.v1.OrchestratorService/RenewAssignment",
        "agentpod.v1.WorkerService/CollectRollout",
        "agentpod.v1.LearnerService/JoinFusion",
        "agentpod.v1.LearnerService/CommitFusion",
        "leaderboard.v1.UpdaterService/RegisterTournaments",
        "tensor.v1.TensorService/WriteTensors",
        "tensor.v1.TransferService/JoinTransfer",
        "tensor.v1.TransferService/SendTensors",
        "tensor.v1.TransferService/ReceiveTensors",
        "simulator.v1.SimulatorService/StreamSteps",
        "policy.v1.PolicyService/Act",
        "policy.v1.PolicyService/EndSession",
    )
)
"""Methods whose allowed calls are not recorded, because they are frequent: calls of running pods, requests for actions,
and calls that keep the two services consistent."""

_log = structlog.get_logger("podrace.access.audit")


class AuditLog:
    """The audit log of a service: a file with one JSON object a line, or lines of the service's log.

    audit = AuditLog.open("/var/log/podrace/audit.log")
    audit(principal, "ipv4:192.0.2.1:40000", rule, resource, decision)
    """

    def __init__(self, file: AuditFile | None = None, now: Callable[[], float] = time.time) -> None:
        """Creates the log.

        Args:
            file: The file; None: the log of the service.
            now: Returns the seconds since 1970.
        """
        self._file, self._now = file, now

    @classmethod
    def open(cls, path: str, *, most_bytes: int = 0, kept_files: int = 1) -> Self:
        """Opens the file, which only this user can read; empty: the log of the service.

        Args:
            path: The file.
            most_bytes: Length at which it is rotated; 0: it is not.
            kept_files: Rotated files that are kept.

        Raises:
            FailedPrecondition: It cannot be written.
        """
        if not path:
            return cls()
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return cls(AuditFile(Path(path), most_bytes=most_bytes, kept_files=kept_files))
        except OSError as error:
            raise FailedPrecondition(
                f"access.audit_log = {path!r}: cannot be written: {error.strerror}; choose another file"
            ) from None

    def __call__(
        self, principal: Principal | None, peer: str, rule: Rule, resource: Resource, decision: Decision
    ) -> None:
        """Records a decision, unless it allowed a call of a frequent method."""
        if decision.allowed and rule.method in FREQUENT:
            return
        record = {
            "principal": principal.name if principal else "",
            "via": principal.via if principal else "",
            "peer": peer,
            "method": rule.method,
            "resource": "" if resource.kind == NONE else f"{kind_name(resource.kind)}/{resource.id}",
            "allowed": decision.allowed,
            "reason": decision.reason,
        }
        if self._file is None:
            _log.log(20 if decision.allowed else 30, "access", **record)
            return
        line = json.dumps({"time": round(self._now(), 3), **record}) + "\n"
        try:
            self._file.append(line.encode())
        except OSError as error:
            _log.error("the audit log cannot be written", error=error.strerror, **record)
