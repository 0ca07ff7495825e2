"""Simulates pods: they use the real contracts over gRPC and publish real manifests, but training only takes time.

    python -m pools.pods < JOB > NOTES

A pod acquires an assignment, claims its agent in the store, renews every third of the lease, publishes and submits a
score whenever an evaluation is due, completes the assignment when its budget is used up, and acquires the next. Scores
follow learning curves (pools.curves). Simulated time runs `speed` times faster than real time: all pauses, including
those between renewals, are divided by `speed`; the services take their real time.
"""

import asyncio
import dataclasses
import gc
import json
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from harness.blank_policy import blank_policy

from podrace import rpc
from podrace.access.mesh_key import MeshKey
from podrace.access.sending import TokenChannel
from podrace.access.token_file import MESH_KEY, token_path
from podrace.access.tokens import pod_token
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation, Manifest, Part, Pointer
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.manifest import FORMAT_VERSION, manifest_bytes
from podrace.checkpoint_store.publish import advanced, claimed, read_manifest
from podrace.errors import PodraceError
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from pools.curves import Curves, SimulatedLearner, due_steps

WAIT_SECONDS = 5.0
DEADLINE_SECONDS = 60.0
RETRY_SECONDS = 0.5
TOKEN_SECONDS = 86_400.0
CURVE = "curve"
"""The metric by which children learn which curve to continue."""


@dataclasses.dataclass(frozen=True)
class Job:
    """The work of the pods of one process."""

    orchestrator: str
    leaderboard: str
    store: str
    tournament_id: str
    first_pod: int
    pods: int
    connections: int
    """Channels to each service; pods are assigned to them in turn."""
    begin: float
    """When the first pod acquires its first assignment; monotonic, as all times here."""
    ramp_seconds: float
    """Time after `begin` within which all pods have acquired one."""
    measured_from: float
    until: float
    speed: float
    """Simulated seconds per second."""
    steps_per_second: float
    """Environment steps per simulated second."""
    rollout_steps: int
    """An agent is evaluated only between rollouts of this many environment steps."""
    opening_seconds: float
    """Simulated seconds from an assignment to its first step."""
    spread: bool
    """Whether a pod's first assignment starts at a random point of its budget, as in a running tournament."""
    target_return: float | None
    curves: Sequence[Sequence[tuple[float, float]]]


@dataclasses.dataclass
class Measurements:
    """The measurements of the pods of one process."""

    seconds: dict[str, list[float]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    """Durations of the calls within the measured time, by method."""
    ramp_seconds: dict[str, list[float]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    """Durations of the calls before it."""
    errors: dict[str, int] = dataclasses.field(default_factory=lambda: defaultdict(int))
    reached: tuple[float, float, float] | None = None
    """When the first score at or above the target was on the board (monotonic), and how long the pod that earned it had
    trained and waited until then, in seconds."""
    trained_seconds: float = 0.0
    """Simulated training time of all pods."""
    waited_seconds: float = 0.0
    """Real time in which pods waited for answers that they need for training."""


class Pod:
    """One simulated pod."""

    def __init__(self, pod_id: str, job: Job, notes: Measurements, store: FolderStore, stubs: tuple[Any, Any]) -> None:
        self._pod_id, self._job, self._notes, self._store = pod_id, job, notes, store
        self._policies: dict[bytes, str] = {}
        self._orchestrator, self._updater = stubs
        self._random = random.Random(pod_id)
        self._lease_token = ""
        self._curves = Curves(job.curves)
        self._fresh_start = job.spread
        self._trained_seconds = self._waited_seconds = 0.0

    async def run(self, delay_seconds: float) -> None:
        """Works until the measurement ends or the pod is drained."""
        await asyncio.sleep(self._job.begin + delay_seconds - time.monotonic())
        while time.monotonic() < self._job.until:
            try:
                begin = time.monotonic()
                answer = await self.acquire()
                self._waited(begin)
                if answer.WhichOneof("answer") == "assignment":
                    await self._train(answer.assignment)
                elif answer.WhichOneof("answer") == "retry_after" or "not known" in answer.drain:
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    return
            except PodraceError:
                # Another pod got the agent, or a service does not answer.
                await asyncio.sleep(RETRY_SECONDS)

    async def acquire(self) -> Any:
        """Requests work."""
        request = pb.AcquireAssignmentRequest(pod_id=self._pod_id, incarnation="one")
        request.wait_duration.FromNanoseconds(int(WAIT_SECONDS * 1e9))
        answer = await self._call("AcquireAssignment", self._orchestrator.AcquireAssignment, request)
        self._lease_token = answer.assignment.lease_token
        return answer

    async def _train(self, assignment: pb.Assignment) -> None:
        """Trains until the budget is used up, the pod is drained, or the measurement ends."""
        job, budget = self._job, assignment.spec.assignment.environment_steps
        learner = self.learner(assignment.train, self.claim(assignment.train.agent_id, assignment.lease_epoch))
        if self._fresh_start:
            learner.steps += int(self._random.random() * budget)
            self._fresh_start = False
        await asyncio.sleep(job.opening_seconds / job.speed)
        self._trained(job.opening_seconds)
        renew_seconds = assignment.lease_duration.ToNanoseconds() / 1e9 / 3 / job.speed
        now = time.monotonic()
        next_renewal = now + renew_seconds * self._random.random()
        while learner.steps < budget:
            every = assignment.spec.evaluation.every_environment_steps
            scored_steps = due_steps(learner.steps, every, budget, job.rollout_steps)
            seconds = (scored_steps - learner.steps) / job.steps_per_second
            due = now + seconds / job.speed
            while next_renewal < min(due, job.until):
                await asyncio.sleep(next_renewal - time.monotonic())
                if (await self.renew(assignment, learner)).directive != pb.DIRECTIVE_CONTINUE:
                    await self._complete(assignment, learner, pb.OUTCOME_DRAINED)
                    return
                next_renewal += renew_seconds
            if due > job.until:
                await asyncio.sleep(job.until - time.monotonic())
                return
            await asyncio.sleep(due - time.monotonic())
            self._trained(seconds)
            learner.steps = scored_steps
            await self.submit(assignment, learner)
            now = time.monotonic()
        await self._complete(assignment, learner, pb.OUTCOME_FINISHED)
        self._waited(now)

    def _trained(self, seconds: float) -> None:
        self._trained_seconds += seconds
        self._notes.trained_seconds += seconds

    def _waited(self, begin: float) -> None:
        seconds = time.monotonic() - begin
        self._waited_seconds += seconds
        self._notes.waited_seconds += seconds

    def learner(self, work: Agent, pointer: Pointer) -> SimulatedLearner:
        """Starts the agent from its own last checkpoint, else from its parent's, else from nothing."""
        steps, start = 0, None
        if pointer.manifest_digest:
            start = read_manifest(self._store, pointer.manifest_digest)
            steps = start.environment_steps
        elif work.HasField("starting_checkpoint"):
            start = read_manifest(self._store, work.starting_checkpoint.manifest_digest)
        if start is None:
            return SimulatedLearner(self._curves, work.number, steps, 0, None)
        inherited_steps = start.lineage_environment_steps - steps
        return SimulatedLearner(
            self._curves, int(start.evaluation.metrics[CURVE]), steps, inherited_steps, start.evaluation.mean_return
        )

    # --- publication: without waiting for the disk, because the files may be lost --------------------------------

    def claim(self, agent_id: str, lease_epoch: int) -> Pointer:
        """Raises the lease epoch in the pointer of an agent."""
        found = self._store.read_pointer(agent_id) or (Pointer(agent_id=agent_id), None)
        pointer = claimed(found[0], lease_epoch)
        self._store.swap_pointer(agent_id, pointer, found[1])
        return pointer

    async def submit(self, assignment: pb.Assignment, learner: SimulatedLearner) -> None:
        """Publishes a checkpoint and submits it."""
        agent = assignment.train
        score = learner.score
        policy = blank_policy(agent)
        if policy not in self._policies:
            self._policies[policy] = self._store.put_object(policy)
        policy_digest = self._policies[policy]
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            tournament_id=agent.tournament_id,
            agent_id=agent.agent_id,
            algorithm=agent.algorithm,
            hyperparameters=agent.hyperparameters,
            seed=agent.seed,
            parts=[Part(name="policy", digest=policy_digest, size_bytes=len(policy))],
            environment_steps=learner.steps,
            lineage_environment_steps=learner.lineage_steps,
            evaluation=Evaluation(
                mean_return=score,
                variance=1e-6 * max(1.0, score * score),
                episodes=32,
                policy_digest=policy_digest,
                metrics={CURVE: learner.number},
            ),
            lease_epoch=assignment.lease_epoch,
        )
        name = self._store.put_object(manifest_bytes(manifest))
        found = self._store.read_pointer(agent.agent_id)
        if found:
            self._store.swap_pointer(agent.agent_id, advanced(found[0], assignment.lease_epoch, name), found[1])
        request = leaderboard_pb2.SubmitCandidateRequest(
            request_id=name,
            checkpoint=Checkpoint(agent_id=agent.agent_id, manifest_digest=name),
            lease_epoch=assignment.lease_epoch,
            lease_token=self._lease_token,
        )
        begin = time.monotonic()
        await self._call("SubmitCandidate", self._updater.SubmitCandidate, request)
        self._waited(begin)
        target = self._job.target_return
        if target is not None and score >= target and self._notes.reached is None:
            self._notes.reached = time.monotonic(), self._trained_seconds, self._waited_seconds

    # --- calls -----------------------------------------------------------------------------------------------------

    def _progress(self, learner: SimulatedLearner) -> pb.Progress:
        return pb.Progress(
            activity=pb.POD_ACTIVITY_TRAINING,
            environment_steps=learner.steps,
            policy_version=learner.steps // 2048,
            steps_per_second=self._job.steps_per_second,
            policy_lag=0.5,
            training_return=learner.score,
            score=learner.score,
            plane="memory",
        )

    async def renew(self, assignment: pb.Assignment, learner: SimulatedLearner) -> Any:
        """Renews the lease."""
        request = pb.RenewAssignmentRequest(
            assignment_id=assignment.assignment_id,
            lease_epoch=assignment.lease_epoch,
            progress=self._progress(learner),
            lease_token=self._lease_token,
        )
        answer = await self._call("RenewAssignment", self._orchestrator.RenewAssignment, request)
        self._lease_token = answer.lease_token or self._lease_token
        return answer

    async def _complete(
        self, assignment: pb.Assignment, learner: SimulatedLearner, outcome: pb.Outcome.ValueType
    ) -> None:
        request = pb.CompleteAssignmentRequest(
            request_id=assignment.assignment_id,
            assignment_id=assignment.assignment_id,
            lease_epoch=assignment.lease_epoch,
            outcome=outcome,
            progress=self._progress(learner),
            lease_token=self._lease_token,
        )
        await self._call("CompleteAssignment", self._orchestrator.CompleteAssignment, request)

    async def _call(self, method: str, stub: Any, request: Any) -> Any:
        begin = time.monotonic()
        try:
            answer = await rpc.call(stub, request, deadline_seconds=DEADLINE_SECONDS)
        except PodraceError as error:
            self._notes.errors[f"{method}: {error.code}"] += 1
            raise
        seconds = time.monotonic() - begin
        if not (method == "AcquireAssignment" and answer.WhichOneof("answer") != "assignment"):
            notes = self._notes.seconds if begin >= self._job.measured_from else self._notes.ramp_seconds
            notes[method].append(seconds)
        return answer


def stubs_of(pod_id: str, job: Job, orchestrator: grpc.aio.Channel, leaderboard: grpc.aio.Channel) -> tuple[Any, Any]:
    """Returns the stubs of a pod, which sends its own token on the shared channels if the services have ports."""
    on_ports = not job.orchestrator.startswith("unix:")
    key = MeshKey.load_or_make(token_path().with_name(MESH_KEY)) if on_ports else None
    token = pod_token(key, pod_id, job.tournament_id, time.time() + TOKEN_SECONDS) if key else ""
    return token_stubs(token, orchestrator, leaderboard)


def token_stubs(token: str, orchestrator: grpc.aio.Channel, leaderboard: grpc.aio.Channel) -> tuple[Any, Any]:
    """Returns the stubs of a pod, which sends a token; empty: it sends none."""
    if token:
        orchestrator, leaderboard = (TokenChannel(each, lambda: token) for each in (orchestrator, leaderboard))
    return pb_grpc.OrchestratorServiceStub(orchestrator), leaderboard_pb2_grpc.UpdaterServiceStub(leaderboard)


async def work(job: Job) -> Measurements:
    """Runs all pods of a job."""
    store, notes = FolderStore(Path(job.store)), Measurements()
    channels = []
    for _ in range(min(job.connections, job.pods)):
        orchestrator = rpc.connect(job.orchestrator, pb.DESCRIPTOR)
        leaderboard = rpc.connect(job.leaderboard, leaderboard_pb2.DESCRIPTOR)
        channels.append((orchestrator, leaderboard))
    names = [f"{job.tournament_id}-p{job.first_pod + index}" for index in range(job.pods)]
    pods = [
        Pod(name, job, notes, store, stubs_of(name, job, *channels[index % len(channels)]))
        for index, name in enumerate(names)
    ]
    gc.freeze()
    delays = [job.ramp_seconds * index / job.pods for index in range(job.pods)]
    await asyncio.gather(*(pod.run(delay) for pod, delay in zip(pods, delays, strict=True)))
    return notes


def main() -> None:
    """Reads a job, runs it, and prints the measurements."""
    job = Job(**json.load(sys.stdin))
    # A process that simulates thousands of pods must not wait for the disk for each of them.
    os.fsync = lambda fd: None
    notes = asyncio.run(work(job), debug=False)
    print(json.dumps(vars(notes)), flush=True)
    # Closing thousands of channels takes long.
    os._exit(0)


if __name__ == "__main__":
    main()
