"""A pod that keeps the contract, and pods that break it; written from the protos alone.

A pod here trains nothing: it pretends to step, and publishes parameters that it made up, through StoreService.
`breaks` of a broken pod is the requirement that it breaks, in the words of the contract.
"""

import hashlib
import threading
import time
import urllib.error
import urllib.request
import uuid
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import safetensors.numpy

from podrace.checkpoint.v1 import store_pb2, store_pb2_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Manifest, Pointer
from podrace.checkpoint_store.manifest import canonical_json
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc

STEPS = 64
STEP_SECONDS = 0.02


class Stopped(Exception):
    """The assignment must be given up without another call for it."""


class Pod(threading.Thread):
    """Asks for work, pretends to train, renews, publishes, submits and completes."""

    breaks = ""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.channel = grpc.insecure_channel(address)
        self.orchestrator = pb_grpc.OrchestratorServiceStub(self.channel)
        self.updater = leaderboard_pb2_grpc.UpdaterServiceStub(self.channel)
        self.store = store_pb2_grpc.StoreServiceStub(self.channel)
        self.closing = threading.Event()
        self.exited = ""
        self.incarnation = uuid.uuid4().hex
        self.pod_token = ""

    def run(self) -> None:
        """Works until it is drained."""
        try:
            while not self.closing.is_set() and self.work():
                pass
        except grpc.RpcError as error:
            self.exited = f"{error.code()}: {error.details()}"
        finally:
            self.channel.close()

    def call(self, method: Any, request: Any) -> Any:
        """Makes a call, and repeats it while the service is unavailable."""
        for _ in range(50):
            try:
                metadata = [("authorization", f"Bearer {self.pod_token}")] if self.pod_token else []
                return method(request, timeout=10, metadata=metadata)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or self.closing.is_set():
                    raise
                time.sleep(0.05)
        raise Stopped

    def work(self) -> bool:
        """Takes one assignment; returns whether to continue."""
        request = pb.AcquireAssignmentRequest(pod_id="foreign-1", incarnation=self.incarnation)
        request.wait_duration.FromSeconds(1)
        answer = self.call(self.orchestrator.AcquireAssignment, request)
        self.pod_token = answer.pod_token or self.pod_token
        kind = answer.WhichOneof("answer")
        if kind == "drain":
            return self.drained()
        if kind == "retry_after":
            self.wait(answer.retry_after.ToTimedelta().total_seconds())
        elif kind == "assignment":
            try:
                return self.carry_out(answer.assignment)
            except Stopped:
                return True
        else:
            time.sleep(1)
        return True

    def drained(self) -> bool:
        """Exits."""
        return False

    def wait(self, seconds: float) -> None:
        """Waits before it asks again."""
        time.sleep(seconds)

    def carry_out(self, assignment: Any) -> bool:
        """Trains the agent of an assignment; returns whether to ask for more work."""
        self.assignment, self.token = assignment, assignment.lease_token
        self.steps, self.renewed, self.previous = 0, time.monotonic(), ""
        if assignment.WhichOneof("work") != "train":
            self.complete(pb.OUTCOME_DRAINED)
            return True
        self.claim()
        budget = assignment.train.assignment_environment_steps or assignment.spec.assignment.environment_steps
        while self.steps < budget:
            time.sleep(STEP_SECONDS)
            if self.closing.is_set():
                raise Stopped
            self.steps += STEPS
            if time.monotonic() - self.renewed >= assignment.lease_duration.ToTimedelta().total_seconds() / 3:
                directive = self.renew()
                if directive != pb.DIRECTIVE_CONTINUE:
                    return self.follow(directive)
        self.submit(self.publish())
        self.complete(pb.OUTCOME_FINISHED)
        return True

    def progress(self) -> pb.Progress:
        """The progress."""
        return pb.Progress(activity=pb.POD_ACTIVITY_TRAINING, environment_steps=self.steps)

    def renew(self) -> int:
        """Renews the lease; returns the directive."""
        sent = time.monotonic()
        request = pb.RenewAssignmentRequest(
            assignment_id=self.assignment.assignment_id,
            lease_epoch=self.assignment.lease_epoch,
            progress=self.progress(),
            lease_token=self.token,
            pod_id="foreign-1",
        )
        try:
            answer = self.call(self.orchestrator.RenewAssignment, request)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                return self.stale()
            raise
        self.renewed = sent
        self.token = answer.lease_token or self.token
        return int(answer.directive)

    def stale(self) -> int:
        """Stops: the agent belongs to another pod."""
        raise Stopped

    def follow(self, directive: int) -> bool:
        """Does what the orchestrator directs; returns whether to ask for more work."""
        if directive == pb.DIRECTIVE_CANCEL:
            return True
        if directive == pb.DIRECTIVE_STOP:
            self.complete(pb.OUTCOME_STOPPED)
            return True
        self.publish(scored=False)
        self.complete(pb.OUTCOME_DRAINED)
        return directive == pb.DIRECTIVE_YIELD

    def complete(self, outcome: int) -> None:
        """Ends the assignment."""
        request = pb.CompleteAssignmentRequest(
            request_id=f"{self.assignment.assignment_id}.complete",
            assignment_id=self.assignment.assignment_id,
            lease_epoch=self.assignment.lease_epoch,
            outcome=outcome,
            progress=self.progress(),
            lease_token=self.token,
            pod_id="foreign-1",
        )
        self.call(self.orchestrator.CompleteAssignment, request)

    def lease(self) -> dict[str, Any]:
        """The fields that every call of StoreService has."""
        return {
            "tournament_id": self.assignment.tournament_id,
            "agent_id": self.assignment.train.agent_id,
            "lease_epoch": self.assignment.lease_epoch,
            "lease_token": self.token,
        }

    def claim(self) -> None:
        """Takes the pointer of the agent over."""
        found = self.call(self.store.GetPointer, store_pb2.GetPointerRequest(**self.lease()))
        pointer = Pointer(agent_id=self.assignment.train.agent_id)
        pointer.MergeFrom(found.pointer)
        pointer.lease_epoch = self.assignment.lease_epoch
        self.previous = pointer.manifest_digest
        request = store_pb2.SwapPointerRequest(**self.lease(), pointer=pointer, etag=found.etag)
        self.call(self.store.SwapPointer, request)

    def publish(self, scored: bool = True) -> str:
        """Publishes a checkpoint; returns the digest of its manifest."""
        random = np.random.default_rng(self.steps)
        policy = {name: random.random((4, 4), np.float32) for name in ("actor.0.bias", "actor.0.weight")}
        files = [safetensors.numpy.save(policy)]
        manifest = self.manifest(files[0], scored)
        files.append(self.text(manifest))
        self.put(files)
        found = self.call(self.store.GetPointer, store_pb2.GetPointerRequest(**self.lease()))
        pointer = Pointer(
            agent_id=manifest.agent_id,
            lease_epoch=self.assignment.lease_epoch,
            manifest_digest=hashlib.sha256(files[1]).hexdigest(),
            previous_manifest_digest=found.pointer.manifest_digest,
        )
        swap = store_pb2.SwapPointerRequest(**self.lease(), pointer=pointer, etag=found.etag)
        self.call(self.store.SwapPointer, swap)
        self.previous = pointer.manifest_digest
        return pointer.manifest_digest

    def text(self, manifest: Manifest) -> bytes:
        """The manifest as it is stored."""
        return canonical_json(manifest)

    def manifest(self, policy: bytes, scored: bool) -> Manifest:
        """The manifest of a checkpoint with one part."""
        agent, digest = self.assignment.train, hashlib.sha256(policy).hexdigest()
        manifest = Manifest(
            format_version=1,
            tournament_id=self.assignment.tournament_id,
            agent_id=agent.agent_id,
            algorithm=agent.algorithm,
            hyperparameters=agent.hyperparameters,
            previous_manifest_digest=self.previous,
            environment_steps=self.steps,
            lineage_environment_steps=self.steps,
            seed=agent.seed,
            lease_epoch=self.assignment.lease_epoch,
        )
        manifest.parts.add(name="policy", digest=digest, size_bytes=len(policy))
        if scored:
            returns = [10.0, 20.0, 30.0, 40.0]
            manifest.evaluation.mean_return = float(np.mean(returns))
            manifest.evaluation.variance = float(np.var(returns, ddof=1))
            manifest.evaluation.episodes = len(returns)
            manifest.evaluation.episode_returns.extend(returns)
            manifest.evaluation.policy_digest = digest
        return manifest

    def put(self, files: list[bytes]) -> None:
        """Stores objects."""
        digests = [hashlib.sha256(data).hexdigest() for data in files]
        request = store_pb2.GrantUploadsRequest(**self.lease())
        for digest, data in zip(digests, files, strict=True):
            request.files.add(digest=digest, size_bytes=len(data))
        for data, upload in zip(files, self.call(self.store.GrantUploads, request).uploads, strict=True):
            sent = urllib.request.Request(upload.url, data=data, headers=dict(upload.headers), method="PUT")
            try:
                urllib.request.urlopen(sent, timeout=10).close()
            except urllib.error.HTTPError as error:
                if error.code != 412:
                    raise
                renewal = store_pb2.RenewObjectsRequest(**self.lease(), digests=[upload.digest])
                self.call(self.store.RenewObjects, renewal)

    def submit(self, manifest_digest: str) -> None:
        """Submits a candidate."""
        checkpoint = Checkpoint(agent_id=self.assignment.train.agent_id, manifest_digest=manifest_digest)
        request = leaderboard_pb2.SubmitCandidateRequest(
            request_id=manifest_digest,
            checkpoint=checkpoint,
            lease_epoch=self.assignment.lease_epoch,
            lease_token=self.token,
        )
        self.call(self.updater.SubmitCandidate, request)


class NeverRenews(Pod):
    """Trains until it has finished, without a renewal."""

    breaks = "Called by the leader of the pod every third of `lease_duration`"

    def renew(self) -> int:
        return int(pb.DIRECTIVE_CONTINUE)


class SubmitsAfterItsLease(Pod):
    """Submits what it has when the agent belongs to another pod already."""

    breaks = "if the agent has since been assigned to another pod: stop without publishing"

    def stale(self) -> int:
        with suppress(grpc.RpcError):
            self.submit(self.publish())
        raise Stopped


class OldToken(Pod):
    """Always sends the first token of the lease."""

    breaks = "`lease_token` of the assignment, or of the last renewal that had one"

    def renew(self) -> int:
        first = self.token
        directive = super().renew()
        self.token = first
        return directive


class IgnoresTheUnknown(Pod):
    """Continues where it does not know the directive."""

    breaks = "A pod treats a value that it does not know, UNSPECIFIED included, as DRAIN"

    def renew(self) -> int:
        directive = super().renew()
        return directive if directive in pb.Directive.values()[1:] else int(pb.DIRECTIVE_CONTINUE)


class StaysAfterDrain(Pod):
    """Asks for work again after it was drained."""

    breaks = "Exit: the pool shrinks, or the tournament has ended"

    def drained(self) -> bool:
        time.sleep(0.1)
        return True


class Impatient(Pod):
    """Asks again at once where there is no work."""

    breaks = "There is no work now; ask again after this time"

    def wait(self, seconds: float) -> None:
        time.sleep(0.05)


class ScoreOfAnother(Pod):
    """States the digest of another policy with its score."""

    breaks = "It must equal the digest of that part in the manifest"

    def manifest(self, policy: bytes, scored: bool) -> Manifest:
        manifest = super().manifest(policy, scored)
        if scored:
            manifest.evaluation.policy_digest = hashlib.sha256(b"a better one").hexdigest()
        return manifest


class PrettyManifest(Pod):
    """Stores its manifests as JSON with spaces."""

    breaks = "Writers must use this form"

    def text(self, manifest: Manifest) -> bytes:
        return canonical_json(manifest).replace(b'":', b'": ')


class PublishesWhenStopped(Pod):
    """Publishes again when the strategy has no more use for the agent."""

    breaks = "complete the assignment as STOPPED without publishing again"

    def follow(self, directive: int) -> bool:
        if directive == pb.DIRECTIVE_STOP:
            self.publish(scored=False)
        return super().follow(directive)


class AnotherRequest(Pod):
    """Gives each repeat of a completion another id."""

    breaks = "Answers once the outcome is durable; a repeat has no further effect"

    def complete(self, outcome: int) -> None:
        for attempt in range(50):
            request = pb.CompleteAssignmentRequest(
                request_id=f"{self.assignment.assignment_id}.{time.monotonic_ns()}",
                assignment_id=self.assignment.assignment_id,
                lease_epoch=self.assignment.lease_epoch,
                outcome=outcome,
                progress=self.progress(),
                lease_token=self.token,
            )
            try:
                self.orchestrator.CompleteAssignment(request, timeout=10)
                return
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or attempt == 49:
                    raise
                time.sleep(0.05)


BROKEN = [
    NeverRenews,
    SubmitsAfterItsLease,
    OldToken,
    IgnoresTheUnknown,
    StaysAfterDrain,
    Impatient,
    ScoreOfAnother,
    PrettyManifest,
    PublishesWhenStopped,
    AnotherRequest,
]
