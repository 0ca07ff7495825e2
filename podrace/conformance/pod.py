"""Examines a pod: gives it one assignment after another, and judges what it calls."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from podrace import rpc
from podrace.checkpoint.v1 import store_pb2, store_pb2_grpc
from podrace.checkpoint_store import open_store
from podrace.conformance.fakes import manifests
from podrace.conformance.fakes import mesh as fakes
from podrace.conformance.fakes.guard import ExaminingGuard
from podrace.conformance.fakes.leases import TOURNAMENT, UNKNOWN_DIRECTIVE, ExaminedLease, Leases
from podrace.conformance.fakes.object_server import Objects, serving_objects
from podrace.conformance.findings import Judge, Violated
from podrace.errors import NotFound, PodraceError
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.specification.files import from_values
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

POLL_SECONDS = 0.02
RETRY_SECONDS = 1.0
QUIET_SECONDS = 1.5
"""Time without calls after which a drained pod has exited."""
BUDGET_STEPS = 8192
EPISODES = 3
LONG_STEPS = 10**9
SILENT_LEASES = 2.0
"""Durations of a lease without a renewal after which a pod is given up."""


def default_spec(environment: str) -> TournamentSpec:
    """Returns the specification of the assignments: a small network, and few evaluations."""
    network = {"horizon": 64, "minibatch_size": 128, "hidden_sizes": [16]}
    values = {
        "name": TOURNAMENT,
        "environment": {"id": environment, "count": 8},
        "algorithms": {"ppo": {"hyperparameters": network}},
        "objective": {"environment_steps": 10**12},
        "assignment": {"environment_steps": BUDGET_STEPS},
        "evaluation": {"episodes": 4, "every_environment_steps": 10**9},
    }
    return from_values(values, source="podrace conform")


@dataclass
class PodSubject:
    """What is examined."""

    judge: Judge
    calls: fakes.ExaminedCalls
    leases: Leases
    most_seconds: float
    notify: Callable[[str], None]
    stored_manifest: Callable[[str], str] | None = None
    """Reads the manifest that the pointer of an agent names, from a store that the pod writes to directly."""
    lost: str = ""
    """Why no further assignment can be given."""
    before: dict[str, str] = field(default_factory=dict)

    async def until(self, condition: Callable[[], bool], problem: str, lease: ExaminedLease | None = None) -> None:
        """Waits for something that the pod must do.

        Raises:
            Broken: It did not do it in time, or stopped renewing its lease.
        """
        end = time.monotonic() + self.most_seconds
        while not condition():
            await asyncio.sleep(POLL_SECONDS)
            if lease and lease.ended_at is None and lease.silent_seconds() > SILENT_LEASES * lease.seconds:
                self.lost = lease.gap_problem(lease.silent_seconds())
                self.judge.require("renews", False, self.lost)
            if time.monotonic() > end:
                self.lost = f"{problem} within {self.most_seconds:g} s"
                self.judge.require("deadline", False, self.lost)
        self.judge.expect("deadline", True, "")

    async def give(self, lease: ExaminedLease, what: str) -> ExaminedLease:
        """Gives an assignment to the pod, once it asks for one.

        Raises:
            Broken: It does not ask.
        """
        if self.lost:
            raise Violated("deadline", self.lost)
        self.calls.leases[lease.assignment.assignment_id] = lease
        if self.stored_manifest and lease.agent_id:
            self.before[lease.agent_id] = self.stored_manifest(lease.agent_id)
        asked = len(self.calls.answered)
        response = pb.AcquireAssignmentResponse(assignment=lease.assignment, pod_token=fakes.POD_TOKEN)
        await self.calls.answers.put(response)
        await self.until(lambda: len(self.calls.answered) > asked, f"the pod did not ask for work ({what})")
        return lease

    def published(self, lease: ExaminedLease) -> bool:
        """Whether the pod published a checkpoint of the agent."""
        if self.stored_manifest and self.stored_manifest(lease.agent_id) != self.before.get(lease.agent_id):
            return True
        return bool(lease.publications)


@asynccontextmanager
async def opened(
    judge: Judge,
    listen: str,
    *,
    spec: TournamentSpec,
    store: str,
    lease_seconds: float,
    most_seconds: float,
    insecure: bool,
    notify: Callable[[str], None],
) -> AsyncIterator[tuple[str, list[Callable[[], Awaitable[None]]]]]:
    """Listens as orchestrator and leaderboard; gives the address and the parts of the examination.

    Raises:
        Unavailable, FailedPrecondition, InvalidArgument: The address or the store cannot be used.
    """
    host = listen.rpartition(":")[0] if not listen.startswith("unix:") else "127.0.0.1"
    shared = open_store(store).within(TOURNAMENT) if store else None
    with nullcontext(Objects()) if shared else serving_objects(host) as objects:
        calls = fakes.ExaminedCalls(judge, _reader(shared) if shared else objects.get)
        services = [
            rpc.Service(
                pb.DESCRIPTOR.services_by_name["OrchestratorService"],
                pb_grpc.add_OrchestratorServiceServicer_to_server,
                fakes.FakeOrchestrator(calls),  # type: ignore[abstract]
            ),
            rpc.Service(
                leaderboard_pb2.DESCRIPTOR.services_by_name["UpdaterService"],
                leaderboard_pb2_grpc.add_UpdaterServiceServicer_to_server,
                fakes.FakeUpdater(calls),  # type: ignore[abstract]
            ),
            rpc.Service(
                store_pb2.DESCRIPTOR.services_by_name["StoreService"],
                store_pb2_grpc.add_StoreServiceServicer_to_server,
                fakes.FakeStore(calls, objects),  # type: ignore[abstract]
            ),
        ]
        config = rpc.ServerConfig(listen=listen, grace_seconds=0.0, insecure=insecure)
        server = await rpc.Server.start(config, services, guard=ExaminingGuard(judge))
        subject = PodSubject(judge, calls, Leases(spec, lease_seconds), most_seconds, notify)
        subject.stored_manifest = _pointer_reader(shared) if shared else None
        try:
            yield server.address, [lambda part=part: part(subject) for part in PARTS]  # type: ignore[misc]
        finally:
            await server.drain()


def _reader(store: Any) -> Callable[[str], bytes | None]:
    def read(digest: str) -> bytes | None:
        try:
            data: bytes = store.get_object(digest)
        except PodraceError:
            return None
        return data

    return read


def _pointer_reader(store: Any) -> Callable[[str], str]:
    def read(agent_id: str) -> str:
        try:
            found = store.read_pointer(agent_id)
        except NotFound:
            found = None
        return found[0].manifest_digest if found else ""

    return read


async def examine_start(subject: PodSubject) -> None:
    """Lets the pod wait for work."""
    calls = subject.calls
    wait = pb.AcquireAssignmentResponse()
    wait.retry_after.FromMilliseconds(round(RETRY_SECONDS * 1000))
    await calls.answers.put(wait)
    await subject.until(lambda: bool(calls.answered), "no pod asked for work")
    asked = len(calls.acquisitions)
    await subject.until(lambda: len(calls.acquisitions) > asked, "the pod did not ask for work again")
    waited = calls.acquisitions[asked][0] - calls.answered[0]
    problem = f"the pod asked again after {waited:.2f} s, retry_after was {RETRY_SECONDS:g} s"
    subject.judge.expect("retry-after", waited >= 0.9 * RETRY_SECONDS, problem)


async def examine_budget(subject: PodSubject) -> None:
    """Lets an agent finish; the first completion fails."""
    judge = subject.judge
    lease = await subject.give(subject.leases.make(steps=BUDGET_STEPS), "an agent with a small budget")
    subject.calls.refuse_completion = True
    await subject.until(lambda: len(lease.completions) > 1, "the assignment was not completed, and repeated", lease)
    judge.expect("completes-once", len({request.request_id for _, request in lease.completions}) == 1, _IDS)
    outcome = lease.completions[-1][1].outcome
    problem = f"an agent with a budget of {BUDGET_STEPS} steps is completed as {_outcome(outcome)}"
    judge.expect("finishes", outcome == pb.OUTCOME_FINISHED, problem)
    judge.expect("submits", bool(lease.submissions), "no candidate was submitted before the assignment was completed")
    silent = lease.completions[0][0] - (lease.renewals[-1][0] if lease.renewals else lease.acquired_at)
    judge.expect("renews", silent <= lease.seconds, lease.gap_problem(silent))


_IDS = "CompleteAssignment was repeated with another request_id after UNAVAILABLE"


def _outcome(value: int) -> str:
    return pb.Outcome.Name(value) if value in pb.Outcome.values() else str(value)  # type: ignore[arg-type]


async def examine_evaluation(subject: PodSubject) -> None:
    """Has the candidate that the pod has submitted evaluated."""
    judge = subject.judge
    known = [one for lease in subject.calls.leases.values() for _, one in lease.submissions]
    if not known:
        judge.skip("evaluates", "no candidate was submitted")
        return
    checkpoint = known[-1].checkpoint
    work = pb.EvaluationWork(evaluation_id=f"{TOURNAMENT}-e0", checkpoint=checkpoint, episodes=EPISODES, seed=7)
    lease = await subject.give(subject.leases.make(steps=0, scores=work), "an evaluation")
    await subject.until(lambda: bool(lease.completions), "an evaluation was not completed", lease)
    completed = lease.completions[0][1]
    if completed.outcome == pb.OUTCOME_DRAINED:
        judge.skip("evaluates", "the pod completes evaluations as DRAINED, as work that it does not know")
        return
    wanted = await asyncio.to_thread(manifests.policy_digest, subject.calls.read, checkpoint.manifest_digest)
    for problem in manifests.wrong_evaluation(completed.evaluation, EPISODES, wanted):
        judge.expect("evaluates", False, f"the evaluation of a candidate: {problem}")
    finished = completed.outcome == pb.OUTCOME_FINISHED
    problem = f"an evaluation is completed as {_outcome(completed.outcome)} ({completed.message})"
    judge.expect("evaluates", finished, problem)


async def examine_yield(subject: PodSubject) -> None:
    """Directs YIELD."""
    lease = subject.leases.make(steps=LONG_STEPS, directive=pb.DIRECTIVE_YIELD)
    await subject.give(lease, "an agent that yields")
    await _judge_drained(subject, lease, "yields", "DIRECTIVE_YIELD")


async def _judge_drained(subject: PodSubject, lease: ExaminedLease, requirement: str, directive: str) -> None:
    try:
        problem = f"the assignment was not completed after {directive}"
        await subject.until(lambda: bool(lease.completions), problem, lease)
    except Violated:
        if lease.ended_at is not None:
            subject.judge.expect(requirement, False, f"the pod continued after {directive}")
        raise
    outcome = lease.completions[0][1].outcome
    problem = f"after {directive} the assignment is completed as {_outcome(outcome)}"
    subject.judge.expect(requirement, outcome == pb.OUTCOME_DRAINED, problem)
    subject.judge.expect(requirement, subject.published(lease), f"no checkpoint was published after {directive}")


async def examine_stop(subject: PodSubject) -> None:
    """Directs STOP."""
    lease = subject.leases.make(steps=LONG_STEPS, directive=pb.DIRECTIVE_STOP)
    await subject.give(lease, "an agent that is stopped")
    await subject.until(lambda: bool(lease.completions), "the assignment was not completed after DIRECTIVE_STOP", lease)
    outcome = lease.completions[0][1].outcome
    problem = f"after DIRECTIVE_STOP the assignment is completed as {_outcome(outcome)}"
    subject.judge.expect("stops", outcome == pb.OUTCOME_STOPPED, problem)
    later = lease.afterwards(lease.publications)
    subject.judge.expect("stops", not later, "a checkpoint was published after DIRECTIVE_STOP")


async def examine_cancel(subject: PodSubject) -> None:
    """Directs CANCEL."""
    lease = subject.leases.make(steps=LONG_STEPS, directive=pb.DIRECTIVE_CANCEL)
    await subject.give(lease, "an agent that is cancelled")
    await _until_next(subject, lease, "DIRECTIVE_CANCEL")
    later = lease.afterwards(lease.publications) + lease.afterwards(lease.submissions)
    subject.judge.expect("cancels", not later, "a checkpoint was published or submitted after DIRECTIVE_CANCEL")


async def _until_next(subject: PodSubject, lease: ExaminedLease, what: str) -> None:
    """Waits until the pod asks for other work, after the end of a lease."""
    await subject.until(lambda: lease.ended_at is not None, "the agent took no steps", lease)

    def asked() -> bool:
        return any(moment > (lease.ended_at or 0.0) for moment, _ in subject.calls.acquisitions)

    await subject.until(asked, f"the pod did not ask for other work after {what}")


async def examine_stale(subject: PodSubject) -> None:
    """Assigns the agent to another pod."""
    lease = subject.leases.make(steps=LONG_STEPS, goes_stale=True)
    await subject.give(lease, "an agent that another pod gets")
    await _until_next(subject, lease, "STALE_EPOCH")
    later = lease.afterwards(lease.publications) + lease.afterwards(lease.submissions)
    subject.judge.expect("stale", not later, "a checkpoint was published or submitted after STALE_EPOCH")


async def examine_unknown_work(subject: PodSubject) -> None:
    """Gives an assignment without work that is known."""
    lease = await subject.give(subject.leases.make(steps=0, known=False), "an assignment without known work")
    await subject.until(lambda: bool(lease.completions), "an assignment without known work was not completed")
    outcome = lease.completions[0][1].outcome
    problem = f"an assignment without known work is completed as {_outcome(outcome)}"
    subject.judge.expect("unknown-work", outcome == pb.OUTCOME_DRAINED, problem)


async def examine_drain(subject: PodSubject) -> None:
    """Drains the pod, and waits until it is gone."""
    if subject.lost:
        return
    calls = subject.calls
    answered = len(calls.answered)
    await calls.answers.put(pb.AcquireAssignmentResponse(drain="the examination drains the pod"))
    await subject.until(lambda: len(calls.answered) > answered, "the pod did not ask for work")
    asked = len(calls.acquisitions)
    await asyncio.sleep(QUIET_SECONDS)
    gone = len(calls.acquisitions) == asked
    if not subject.judge.expect("drain", gone, "the pod asked for work again after it was drained"):
        subject.lost = "the pod does not exit"


async def examine_restart(subject: PodSubject) -> None:
    """Waits for another run of the pod, and gives it a directive that it cannot know."""
    if subject.lost:
        return
    calls, first = subject.calls, {request.incarnation for _, request in subject.calls.acquisitions}
    calls.expects_token = False
    asked = len(calls.acquisitions)
    subject.notify(f"the pod was drained: start it again within {subject.most_seconds:g} s for the last part")
    lease = subject.leases.make(steps=LONG_STEPS, directive=UNKNOWN_DIRECTIVE)
    end = time.monotonic() + subject.most_seconds
    while len(calls.acquisitions) == asked:
        await asyncio.sleep(POLL_SECONDS)
        if time.monotonic() > end:
            for name in ("incarnation", "unknown-directive"):
                subject.judge.skip(name, "the pod was not started again")
            return
    again = calls.acquisitions[asked][1].incarnation
    problem = f"two runs of the pod have the incarnation '{again}'"
    subject.judge.expect("incarnation", len(first) == 1 and again not in first, problem)
    await subject.give(lease, "an agent with an unknown directive")
    await _judge_drained(subject, lease, "unknown-directive", f"directive {UNKNOWN_DIRECTIVE}")
    await calls.answers.put(pb.AcquireAssignmentResponse(drain="the examination has finished"))
    await asyncio.sleep(POLL_SECONDS)


PARTS = (
    examine_start,
    examine_budget,
    examine_evaluation,
    examine_yield,
    examine_stop,
    examine_cancel,
    examine_stale,
    examine_unknown_work,
    examine_drain,
    examine_restart,
)
