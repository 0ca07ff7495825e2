"""Pods whose requests break the contract; written from the protos alone, like those of foreign_pods.py."""

from contextlib import suppress

import grpc
from foreign_pods import Pod

from podrace.orchestrator.v1 import orchestrator_pb2 as pb


class OutOfBounds(Pod):
    """Sends a request with two fields that are out of bounds before each renewal."""

    breaks = "A service refuses a request with INVALID_ARGUMENT if a field is out of bounds"

    def renew(self) -> int:
        request = pb.RenewAssignmentRequest(
            assignment_id=self.assignment.assignment_id,
            lease_epoch=self.assignment.lease_epoch,
            lease_token=self.token,
            pod_id="a pod",
        )
        request.progress.environment_steps = 2**63
        with suppress(grpc.RpcError):
            self.call(self.orchestrator.RenewAssignment, request)
        return super().renew()


class OtherMessage(Pod):
    """Sends bytes that are no message of the method before each renewal."""

    breaks = "A service refuses a request with INVALID_ARGUMENT if a field is out of bounds"

    def renew(self) -> int:
        method = self.channel.unary_unary("/podrace.orchestrator.v1.OrchestratorService/RenewAssignment")
        with suppress(grpc.RpcError):
            method(b"\xff\xff\xff", timeout=10)
        return super().renew()


class ScoresAnotherPolicy(Pod):
    """Completes an evaluation with the score of some policy."""

    breaks = "Result of a successful evaluation."

    def complete(self, outcome: int) -> None:
        if self.assignment.WhichOneof("work") != "evaluate":
            super().complete(outcome)
            return
        request = pb.CompleteAssignmentRequest(
            request_id=f"{self.assignment.assignment_id}.complete",
            assignment_id=self.assignment.assignment_id,
            lease_epoch=self.assignment.lease_epoch,
            outcome=pb.OUTCOME_FINISHED,
            lease_token=self.token,
            pod_id="foreign-1",
        )
        request.evaluation.episodes = self.assignment.evaluate.episodes
        request.evaluation.policy_digest = "0" * 64
        self.call(self.orchestrator.CompleteAssignment, request)


BROKEN = [ScoresAnotherPolicy, OutOfBounds, OtherMessage]
