"""Defines which fields filters and orders of the lists of tournaments, pods, events and evaluations may name."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import EnumDescriptor

from orchestrator.state.records import PodPhase, PodRecord, WorkPhase
from orchestrator.state.runtime import RuntimeState
from podrace.listing.filters import Field, Kind
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import Layout, TournamentState

ID_SUFFIX = 7
"""Characters that an id of a tournament has after its name."""


def choices(enum: EnumDescriptor, prefix: str) -> Mapping[str, int]:
    """Returns the numbers of the values of an enum, by their names and by those without the prefix."""
    return {name: one.number for one in enum.values for name in (one.name.removeprefix(prefix), one.name)}


def _other(table: str, column: str) -> str:
    """Returns an expression for a column of another table that has at most one row for each tournament."""
    return f"(SELECT {column} FROM {table} WHERE {table}.tournament_id = tournaments.tournament_id)"


TOURNAMENT_FIELDS = {
    "tournament_id": Field(Kind.TEXT, "tournament_id"),
    "name": Field(Kind.TEXT, f"substr(tournament_id, 1, length(tournament_id) - {ID_SUFFIX})"),
    "state": Field(Kind.CHOICE, "state", choices(TournamentState.DESCRIPTOR, "TOURNAMENT_STATE_")),
    "create_time": Field(Kind.TIME, "create_time"),
    "end_time": Field(Kind.TIME, "end_time"),
    "owner": Field(Kind.TEXT, _other("ownerships", "owner")),
    "namespace": Field(Kind.TEXT, _other("ownerships", "namespace")),
    "labels": Field(Kind.LABELS, _other("labels", "labels")),
}
POD_FIELDS = {
    "pod_id": Field(Kind.TEXT),
    "tournament_id": Field(Kind.TEXT),
    "agent_id": Field(Kind.TEXT),
    "activity": Field(Kind.CHOICE, "", choices(pb.PodActivity.DESCRIPTOR, "POD_ACTIVITY_")),
    "layout": Field(Kind.CHOICE, "", choices(Layout.DESCRIPTOR, "LAYOUT_")),
    "start_time": Field(Kind.TIME),
}
EVENT_FIELDS = {
    "sequence": Field(Kind.NUMBER, "sequence"),
    "time": Field(Kind.TIME, "time"),
    "kind": Field(Kind.TEXT, "kind"),
    "tournament_id": Field(Kind.TEXT, "tournament_id"),
    "pod_id": Field(Kind.TEXT, "pod_id"),
    "agent_id": Field(Kind.TEXT, "agent_id"),
}

EVALUATION_FIELDS = {
    "evaluation_id": Field(Kind.TEXT, "evaluation_id"),
    "number": Field(Kind.NUMBER, "number"),
    "done": Field(Kind.CHOICE, f"(phase != '{WorkPhase.UNFINISHED}')", {"false": 0, "true": 1}),
    "error": Field(Kind.TEXT, "error"),
}


def activity_of(record: PodRecord, runtime: RuntimeState) -> pb.PodActivity.ValueType:
    """Returns what a pod is doing."""
    if record.drain_reason:
        return pb.POD_ACTIVITY_DRAINING
    lease = runtime.leases.latest_of_pod(record.pod_id)
    if lease:
        return lease.progress.activity or pb.POD_ACTIVITY_OPENING
    if record.pod_id in runtime.connected_pods:
        return pb.POD_ACTIVITY_IDLE
    return pb.POD_ACTIVITY_STARTING if record.phase == PodPhase.SEEN else pb.POD_ACTIVITY_UNSPECIFIED


def pod_value(pod: PodRecord, name: str, runtime: RuntimeState) -> Any:
    """Returns the value of a field of POD_FIELDS."""
    if name == "activity":
        return activity_of(pod, runtime)
    if name == "agent_id":
        lease = runtime.leases.latest_of_pod(pod.pod_id)
        return lease.work_id if lease and lease.trains else ""
    return getattr(pod, name)
