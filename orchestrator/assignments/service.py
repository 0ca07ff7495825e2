"""Runs the lifecycle of assignments: acquire, renew, complete.

The rules are in `decisions.dispatch`, the transactions in `assignments.transactions`.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

import prometheus_client
import structlog

from orchestrator.assignments import successors, transactions
from orchestrator.assignments.adoption import Adoption
from orchestrator.assignments.external_pods import ExternalPods
from orchestrator.assignments.generation_slots import GenerationSlots
from orchestrator.assignments.known_agents import register_again
from orchestrator.assignments.step_limits import StepLimits
from orchestrator.assignments.successors import Prepare, TrainingGaps
from orchestrator.assignments.transactions import AssignedWork, HeldWork, record_evaluator_fault
from orchestrator.decisions import dispatch
from orchestrator.decisions.dispatch import Holder
from orchestrator.decisions.quotas import NO_QUOTAS, Quotas
from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.state import pauses
from orchestrator.state.clock import Clock
from orchestrator.state.database import StateDatabase
from orchestrator.state.records import AgentRecord, EvaluationRecord, TournamentRecord, WorkPhase, WorkRecord
from orchestrator.state.runtime import RuntimeState
from orchestrator.state.transitions import fail_tournament, forget_losses
from podrace.access.ownership import Ownership
from podrace.errors import InvalidArgument, NotFound, PodraceError, ResourceExhausted
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.printable import printable
from podrace.tasks import wait_at_most

MAXIMUM_WAIT_SECONDS = 30.0
RETRY_SECONDS = 1.0
MAXIMUM_STEPS = 10**15
"""Largest plausible number of environment steps of an agent."""
COMPLETED_ASSIGNMENTS = prometheus_client.Counter(
    "podrace_orchestrator_assignments_completed", "Assignments completed by their pods", ["outcome"]
)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RetryLater:
    """The pod must request again: its agent could not be generated now."""

    reason: str


AcquireResult = AssignedWork | Prepare | RetryLater | dispatch.Wait | dispatch.Drain


class Assignments:
    """Assigns work to pods, renews their leases, and completes assignments."""

    def __init__(
        self,
        state: StateDatabase,
        runtime: RuntimeState,
        leaderboard: LeaderboardClient,
        clock: Clock,
        *,
        external_pods: ExternalPods | None = None,
        quotas: Quotas = NO_QUOTAS,
    ) -> None:
        """Creates the service.

        Args:
            state: Database of the orchestrator.
            runtime: State in memory, which is updated with each lease.
            leaderboard: Generates agents.
            clock: Time of leases and of waiting calls.
            external_pods: Assigns work to external pods; None if all pods are started by a launcher.
            quotas: What each owner may have.
        """
        self._state, self._runtime, self._leaderboard, self._clock = state, runtime, leaderboard, clock
        self._external_pods, self._quotas = external_pods, quotas
        self._adoption = Adoption(state, runtime, clock, external=external_pods is not None)
        self._closing, self._gaps, self._step_limits = False, TrainingGaps(state), StepLimits(state, runtime)
        self._generation_slots = GenerationSlots()
        # A report of a stuck role can arrive twice at the same time.
        self._recording_stuck_roles = asyncio.Lock()
        # What a pod holds is read before the transaction that assigns more, so requests of one pod are serialized.
        self._pod_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def close(self) -> None:
        """Answers the pods that wait for work."""
        self._closing = True
        self._runtime.changes.notify_all()

    # --- acquire ----------------------------------------------------------------------------------------------

    async def acquire(self, requester: Holder, wait_seconds: float, prepared_agent_id: str = "") -> AcquireResult:
        """Assigns work to a pod, and waits for work if there is none.

        Args:
            requester: The pod.
            wait_seconds: How long to wait, at most MAXIMUM_WAIT_SECONDS.
            prepared_agent_id: Agent of another pod for which this one is ready; empty: for none.

        Raises:
            InvalidArgument: `pod_id` or `incarnation` is missing.
        """
        if not requester.pod_id or not requester.incarnation:
            raise InvalidArgument("AcquireAssignment: pod_id and incarnation must both be set")
        contacts, external = self._runtime.contacts, self._external_pods
        with (
            external.waiting_call(requester.pod_id) if external else nullcontext(),
            contacts.waiting_call(requester.pod_id, self._clock.monotonic),
        ):
            answer = await self._acquire(requester, wait_seconds, prepared_agent_id)
        if isinstance(answer, dispatch.Drain):
            # The pod exits.
            contacts.forget(requester.pod_id)
        return answer

    async def _acquire(self, requester: Holder, wait_seconds: float, prepared_agent_id: str) -> AcquireResult:
        deadline = self._clock.monotonic() + min(wait_seconds, MAXIMUM_WAIT_SECONDS)
        while True:
            change = self._runtime.changes.next_change()
            answer = await self._try_acquire(requester, prepared_agent_id)
            remaining_seconds = deadline - self._clock.monotonic()
            if not isinstance(answer, dispatch.Wait) or remaining_seconds <= 0 or self._closing:
                return answer
            if not await wait_at_most(change.wait(), remaining_seconds):
                return answer

    async def _try_acquire(self, requester: Holder, prepared_agent_id: str) -> AcquireResult:
        # If the call is cancelled now, the assigned work must still get a lease, which can expire.
        answer = await asyncio.shield(self._assign_work(requester, prepared_agent_id))
        if not isinstance(answer, AssignedWork) or isinstance(answer.work, EvaluationRecord):
            return answer
        limit = await self._step_limits.of(answer.tournament, answer.work)
        if self._step_limits.is_used_up(answer.tournament, answer.work, limit):
            return self._without_work(answer.work, "all environment steps of the objective are assigned")
        if limit is not None:
            # Before the agent is generated, because other pods may ask meanwhile.
            self._step_limits.record(answer.work, limit)
        assigned: AcquireResult = answer
        if answer.work.agent is None:
            assigned = await self._generate(answer.tournament, answer.work)
        else:
            await register_again(self._leaderboard, self._runtime.cache, answer.tournament, answer.work.agent)
        if isinstance(assigned, AssignedWork) and limit is not None:
            return replace(assigned, maximum_environment_steps=max(1, limit))
        return assigned

    def _without_work(self, agent: AgentRecord, reason: str) -> dispatch.Wait:
        """Makes a pod wait that holds the number of an agent; without a lease, it does not count as training."""
        self._step_limits.forget(agent)
        self._runtime.leases.release(agent.work_id, agent.lease_epoch)
        return dispatch.Wait(reason)

    async def _assign_work(self, requester: Holder, prepared_agent_id: str) -> successors.Answer:
        async with self._pod_locks.setdefault(requester.pod_id, asyncio.Lock()):
            answer = await (
                self._external_pods.assign_work(requester)
                if self._external_pods
                else self._assign_to_launched_pod(requester, prepared_agent_id)
            )
        if not isinstance(answer, dispatch.Drain):
            self._runtime.connected_pods.add(requester.pod_id)
        if isinstance(answer, AssignedWork):
            self._runtime.grant_lease(answer.work, self._clock.monotonic())
        return answer

    async def _assign_to_launched_pod(self, requester: Holder, prepared_agent_id: str) -> successors.Answer:
        expired = self._runtime.leases.expired(self._clock.monotonic())
        works = self._runtime.cache.assignable_work(requester.pod_id, (work_id for work_id, _ in expired))
        incumbents = {name: one.agent_id for name, one in self._runtime.incumbents.items()}
        inputs = transactions.DispatchInputs(expired, dict(self._runtime.judged_rounds), works, incumbents)
        return await self._state.transact(successors.assign_work, requester, inputs, prepared_agent_id)

    async def _generate(self, tournament: TournamentRecord, agent: AgentRecord) -> AcquireResult:
        """Generates an agent whose number is committed; if this fails, the next pod that gets it tries again."""
        name = tournament.tournament_id
        try:
            async with self._generation_slots.hold(tournament):
                agents = self._runtime.cache.unfinished_agents(name)
                for ungenerated, others in generation_order(agents, agent, synchronous=tournament.spec.synchronous):
                    if self._runtime.shortage:
                        raise ResourceExhausted(self._runtime.shortage)
                    failed = self._runtime.cache.failed_agent_ids(tournament.tournament_id)
                    owner = self._runtime.cache.ownership_of(name) or Ownership("")
                    response = await self._leaderboard.generate(
                        tournament,
                        ungenerated,
                        others,
                        failed,
                        ownership=owner,
                        running_seconds=self._runtime.running_time.seconds(name, self._clock.monotonic()),
                        environment_steps=self._runtime.counters.environment_steps(name),
                        maximum_stored_bytes=self._quotas.limit("stored_bytes", owner)[0],
                    )
                    self._runtime.without_space.pop(name, None)
                    if not response.HasField("agent"):
                        return self._without_work(agent, response.no_work_reason)
                    await self._state.transact(transactions.save_generated_agent, response.agent)
        except InvalidArgument as error:
            await self._state.transact(
                fail_tournament, tournament.tournament_id, f"no agent can be generated: {error.message}"
            )
            self._runtime.reconcile_requested.set()
            return dispatch.Drain(error.message)
        except PodraceError as error:
            if isinstance(error, ResourceExhausted):
                self._runtime.without_space[name] = printable(error.message)
            _log.warning("could not generate an agent", agent_id=agent.agent_id, error=error.message)
            return RetryLater(f"no agent is generated: {error.message}")
        held = await self._state.transact(transactions.still_held, agent)
        if held is None:
            return RetryLater(f"{agent.agent_id} was assigned to another pod in the meantime")
        self._runtime.grant_lease(held, self._clock.monotonic())
        return AssignedWork(tournament, held)

    # --- renew ------------------------------------------------------------------------------------------------

    async def renew(
        self,
        assignment_id: str,
        lease_epoch: int,
        progress: pb.Progress,
        stuck_roles: Sequence[pb.StuckRole] = (),
        pod_id: str = "",
    ) -> dispatch.LeaseDirective:
        """Renews a lease, records roles that were stuck, and returns what the pod must do.

        Raises:
            InvalidArgument: The reported progress is implausible.
            NotFound: There is no such assignment.
            FailedPrecondition: The lease epoch is outdated (STALE_EPOCH).
        """
        _check_progress(progress)
        work_id = work_of(assignment_id)
        # Renewals are the most frequent calls, so they are answered from memory in the normal case.
        await self._adoption.adopt_if_newer(work_id, lease_epoch, pod_id)
        if self._adoption.is_unmanaged(work_id, pod_id):
            return dispatch.LeaseDirective(pb.DIRECTIVE_CONTINUE)
        held = transactions.known_lease(self._runtime.cache, work_id)
        if held is None:
            held = await self._state.transact(transactions.read_lease, work_id)
        dispatch.check_epoch(work_id, held.work.lease_epoch, lease_epoch)
        holds = held.work.phase == WorkPhase.UNFINISHED and bool(held.work.pod_id)
        directive = dispatch.direct(
            held=holds,
            training=isinstance(held.work, AgentRecord),
            drain_reason=held.drain_reason,
            end_reason=pauses.known_why_not_trained(self._runtime.cache, held.tournament),
            selects_champion=held.tournament.selects_champion,
            yield_reason=self._runtime.leases.yield_reason(work_id, lease_epoch),
            stop_reason=self._runtime.stops.get(held.work.tournament_id, {}).get(work_id, ""),
        )
        if holds:
            # Before anything is written: while the disk is full, leases are renewed as well.
            new_fault = self._new_fault(work_id, progress)
            trains = self._trains_first(held, progress, stuck=bool(stuck_roles))
            self._runtime.renew_lease(work_id, lease_epoch, progress, self._clock.monotonic())
            await self._record_progress(held, progress, new_fault, trains=trains)
            await self._record_stuck_roles(held.work, stuck_roles)
        return directive

    def _trains_first(self, held: HeldWork, progress: pb.Progress, *, stuck: bool) -> bool:
        """Whether a report is the first one that shows that the pod can train."""
        lease = self._runtime.leases.held.get(held.work.work_id)
        known = (lease.progress.environment_steps if lease else 0) or held.environment_steps
        return not held.useful and dispatch.has_trained(progress, known, stuck=stuck)

    async def _record_progress(self, held: HeldWork, progress: pb.Progress, new_fault: str, *, trains: bool) -> None:
        """Records what follows from a renewal; what cannot be written now follows from the next one as well."""
        work, lease = held.work, self._runtime.leases.held.get(held.work.work_id)
        try:
            if trains:
                await self._state.transact(transactions.mark_useful, work.pod_id)
            if dispatch.has_advanced(progress) and lease and not lease.advanced:
                await self._state.transact(forget_losses, work.work_id)
                lease.advanced = True
            await self._gaps.resumed(lease, progress, self._clock.monotonic())
            if new_fault:
                await self._state.transact(record_evaluator_fault, work.tournament_id, work.pod_id, new_fault)
        except PodraceError as error:
            if new_fault and lease:
                lease.progress.ClearField("evaluator_fault")
            _log.warning("a renewal could not be recorded", assignment_id=assignment_id(work), error=error.message)

    async def _record_stuck_roles(self, work: WorkRecord, stuck_roles: Sequence[pb.StuckRole]) -> None:
        """Records reports that were not recorded before: the pod repeats them until it gets an answer."""
        if not stuck_roles:
            return
        async with self._recording_stuck_roles:
            lease = self._runtime.leases.held.get(work.work_id)
            new = [stuck for stuck in stuck_roles if lease and stuck.number > lease.stuck_reports]
            if lease and new:
                await self._state.transact(transactions.record_stuck_roles, work, new)
                # Only now: a report that could not be written must not count as known when the pod repeats it.
                lease.stuck_reports = max(stuck.number for stuck in new)

    # --- complete ---------------------------------------------------------------------------------------------

    async def complete(self, request: pb.CompleteAssignmentRequest, pod_id: str = "") -> None:
        """Completes an assignment: its work is finished, failed, or drained.

        Raises:
            InvalidArgument: The outcome is missing, or the reported progress is implausible.
            NotFound: There is no such assignment.
            FailedPrecondition: The lease epoch is outdated (STALE_EPOCH).
        """
        if request.outcome not in transactions.OUTCOMES:
            raise InvalidArgument(
                f"CompleteAssignment: outcome = {request.outcome}: expected one of the contract's Outcome values"
            )
        _check_progress(request.progress)
        work_id = work_of(request.assignment_id)
        await self._adoption.adopt_if_newer(work_id, request.lease_epoch, pod_id)
        await asyncio.shield(self._complete(work_id, request))

    async def _complete(self, work_id: str, request: pb.CompleteAssignmentRequest) -> None:
        fault = self._new_fault(work_id, request.progress)
        completed = await self._state.transact(transactions.complete_lease, work_id, request, fault)
        if completed is None:
            return
        # No await from here on, so that all state in memory changes at once.
        self._runtime.renew_lease(work_id, request.lease_epoch, request.progress, self._clock.monotonic())
        self._runtime.leases.release(work_id, request.lease_epoch)
        if isinstance(completed, AgentRecord):
            if completed.phase == WorkPhase.UNFINISHED:
                self._gaps.ended(work_id, request.progress, self._clock.monotonic())
            # The lease may have been released before, because the pod was considered dead.
            self._runtime.counters.count_steps(completed.tournament_id, work_id, completed.environment_steps)
            if completed.phase == WorkPhase.FAILED:
                self._runtime.counters.count_failure(completed.tournament_id)
            if completed.phase == WorkPhase.STOPPED:
                self._runtime.counters.count_stop(completed.tournament_id)
            self._runtime.step_limits.pop((work_id, request.lease_epoch), None)
        COMPLETED_ASSIGNMENTS.labels(pb.Outcome.Name(request.outcome).removeprefix("OUTCOME_").lower()).inc()
        if not isinstance(completed, AgentRecord) or completed.phase not in (WorkPhase.FINISHED, WorkPhase.STOPPED):
            # The work can be assigned again, the tournament has failed, or a caller waits for the evaluation. After a
            # finished agent, the reconcile loop notifies pods, so that not every pod requests again after each agent.
            self._runtime.changes.notify_all()
        self._runtime.reconcile_requested.set()

    def _new_fault(self, work_id: str, progress: pb.Progress) -> str:
        """Why the tournament's evaluator did not score; empty if the pod reported the same fault last time."""
        held = self._runtime.leases.held.get(work_id)
        fault = progress.evaluator_fault
        return fault if held and fault != held.progress.evaluator_fault else ""


def generation_order(
    unfinished: Mapping[str, AgentRecord], agent: AgentRecord, *, synchronous: bool
) -> Iterator[tuple[AgentRecord, list[str]]]:
    """Lists the agents to generate before `agent` can be assigned, each with the agents that the generator is given.

    A synchronous round is generated as a whole, in order, before any of its agents trains, and the generator is given
    only the earlier agents of the round. Its input is therefore the same however fast the pods are.

    Args:
        unfinished: Unfinished agents by id, in order; may change while agents are generated.
        agent: The agent to assign.
        synchronous: Whether agents are generated in rounds.
    """
    if not synchronous:
        yield agent, [agent_id for agent_id in unfinished if agent_id != agent.agent_id]
        return
    earlier: list[str] = []
    for other in tuple(unfinished.values()):
        if other.agent is None:
            # Copied for one request at a time: lists for a whole round at once would take quadratic memory.
            yield other, earlier.copy()
        earlier.append(other.agent_id)


def assignment_id(work: WorkRecord) -> str:
    """Id of an assignment: the work and the lease epoch."""
    return f"{work.work_id}.{work.lease_epoch}"


def work_of(assignment_id: str) -> str:
    """Returns the id of the work of an assignment.

    Raises:
        NotFound: This is not the id of an assignment.
    """
    work_id, dot, epoch = assignment_id.rpartition(".")
    if not dot or not epoch.isdigit():
        raise NotFound(f"assignment_id {assignment_id!r}: there is no such assignment")
    return work_id


def _check_progress(progress: pb.Progress) -> None:
    """Rejects a step count that would corrupt the tournament's total permanently."""
    if progress.environment_steps > MAXIMUM_STEPS:
        raise InvalidArgument(
            f"progress.environment_steps = {progress.environment_steps}: expected at most {MAXIMUM_STEPS}"
        )
