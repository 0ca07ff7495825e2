"""Builds the messages of the contract from records and from the state in memory."""

from typing import cast

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from orchestrator.assignments.service import assignment_id
from orchestrator.assignments.successors import Prepare
from orchestrator.assignments.transactions import AssignedWork
from orchestrator.state.lists.fields import activity_of
from orchestrator.state.records import (
    AgentRecord,
    EvaluationRecord,
    EventRecord,
    PodRecord,
    TournamentRecord,
    WorkPhase,
    WorkRecord,
)
from orchestrator.state.runtime import RuntimeState
from orchestrator.tournaments.updates import etag_of
from podrace.access.lease_tokens import HeldLease
from podrace.access.ownership import Ownership
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2


def duration(seconds: float) -> Duration:
    """Converts seconds to a Duration."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def timestamp(seconds: float) -> Timestamp:
    """Converts seconds since 1970 to a Timestamp."""
    message = Timestamp()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def tournament_message(
    record: TournamentRecord, runtime: RuntimeState, now: float, leaderboard_address: str
) -> tournament_pb2.Tournament:
    """Builds the message of a tournament; `now` is monotonic."""
    name = record.tournament_id
    ownership = runtime.cache.ownership_of(name) or Ownership("")
    message = tournament_pb2.Tournament(
        owner=ownership.owner,
        namespace=ownership.namespace,
        tournament_id=name,
        spec=record.spec,
        state=cast(tournament_pb2.TournamentState.ValueType, record.state),
        reason=record.reason,
        create_time=timestamp(record.create_time),
        end_time=None if record.end_time is None else timestamp(record.end_time),
        running_duration=duration(runtime.running_time.seconds(name)),
        environment_steps=runtime.counters.environment_steps(name),
        agents=runtime.cache.generated_agents(name),
        failed_agents=runtime.counters.failed_agents(name),
        stopped_agents=runtime.counters.stopped_agents(name),
        steps_per_second=runtime.leases.steps_per_second(name, now),
        leaderboard_address=leaderboard_address,
        etag=etag_of(record.spec, runtime.cache.labels.get(name, {})),
        labels=runtime.cache.labels.get(name),
        pause_reason=runtime.pause_reason(name) if record.state == tournament_pb2.TOURNAMENT_STATE_RUNNING else "",
    )
    best = runtime.best.by_tournament.get(name)
    if best:
        message.best_score = best.score
        message.best_score_standard_error = best.standard_error
        message.best_agent_id = best.agent_id
        message.champion_manifest_digest = best.candidate_id
        if best.HasField("selection"):
            message.champion_selection.CopyFrom(best.selection)
    return message


def pod_message(record: PodRecord, runtime: RuntimeState) -> pb.Pod:
    """Builds the message of a pod."""
    lease = runtime.leases.latest_of_pod(record.pod_id)
    return pb.Pod(
        pod_id=record.pod_id,
        tournament_id=record.tournament_id,
        activity=activity_of(record, runtime),
        agent_id=lease.work_id if lease and lease.trains else "",
        progress=lease.progress if lease else None,
        start_time=timestamp(record.start_time),
        layout=cast(tournament_pb2.Layout.ValueType, record.layout),
    )


def event_message(record: EventRecord) -> pb.Event:
    """Builds the message of an event."""
    return pb.Event(
        sequence=record.sequence,
        time=timestamp(record.time),
        tournament_id=record.tournament_id,
        pod_id=record.pod_id,
        agent_id=record.agent_id,
        kind=record.kind,
        message=record.message,
    )


def assignment_message(
    assigned: AssignedWork, lease_seconds: float, running_seconds: float, evaluation_epoch: int
) -> pb.Assignment:
    """Builds the message of assigned work; the last two describe its tournament."""
    work = assigned.work
    message = pb.Assignment(
        assignment_id=assignment_id(work),
        tournament_id=work.tournament_id,
        spec=assigned.tournament.spec,
        lease_epoch=work.lease_epoch,
        lease_duration=duration(lease_seconds),
        running_duration=duration(running_seconds),
        evaluation_epoch=evaluation_epoch,
    )
    if isinstance(work, AgentRecord):
        message.train.MergeFrom(work.agent or Agent())
        message.maximum_environment_steps = assigned.maximum_environment_steps
    else:
        message.evaluate.CopyFrom(_evaluation_work(work))
    return message


def preparation_message(prepare: Prepare) -> pb.Assignment:
    """Builds the message of an agent that another pod still trains: without a lease."""
    tournament, agent = prepare.tournament, prepare.agent
    return pb.Assignment(tournament_id=tournament.tournament_id, spec=tournament.spec, train=agent.agent)


def held_lease(work: WorkRecord) -> HeldLease:
    """Returns what the token of the lease on assigned work says."""
    return HeldLease(assignment_id(work), work.tournament_id, work.work_id, work.lease_epoch, work.pod_id)


def _evaluation_work(work: EvaluationRecord) -> pb.EvaluationWork:
    request = work.request
    return pb.EvaluationWork(
        evaluation_id=work.evaluation_id,
        checkpoint=request.checkpoint,
        members=request.members,
        episodes=request.episodes,
        options=request.options,
        seed=request.seed,
        stochastic=request.stochastic,
        lanes=request.lanes,
        opponents=request.opponents,
    )


def evaluation_entry(record: EvaluationRecord) -> pb.EvaluationEntry:
    """Builds the list entry of an evaluation, without traces, which can be large."""
    entry = pb.EvaluationEntry(
        work=_evaluation_work(record), done=record.phase != WorkPhase.UNFINISHED, error=record.error
    )
    if record.result is not None:
        entry.evaluation.CopyFrom(record.result)
        entry.evaluation.ClearField("traces")
    return entry


def duration_seconds(message: Duration) -> float:
    """Converts a Duration to seconds; a negative one becomes 0."""
    return max(0.0, message.seconds + message.nanos / 1e9)
