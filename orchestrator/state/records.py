"""Maps the rows of the database to frozen dataclasses, one per table, and runs the queries on them.

A transaction reads a record, derives a new one with `dataclasses.replace`, and saves it; nothing else writes these
tables.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from google.protobuf.message import Message

from orchestrator.decisions.resources import Resources
from orchestrator.state.database import Transaction
from podrace.access.ownership import unknown_tournament
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.orchestrator.v1.orchestrator_pb2 import CreateEvaluationRequest
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

RUNNING = tournament_pb2.TOURNAMENT_STATE_RUNNING
ENDING = tournament_pb2.TOURNAMENT_STATE_ENDING
COMPLETED = tournament_pb2.TOURNAMENT_STATE_COMPLETED
CANCELLED = tournament_pb2.TOURNAMENT_STATE_CANCELLED
FAILED = tournament_pb2.TOURNAMENT_STATE_FAILED
END_STATES = (COMPLETED, CANCELLED, FAILED)


EXTERNAL_POD_NUMBER = -1
"""Number of a pod that the orchestrator did not start."""


class WorkPhase(StrEnum):
    """State of an agent or an evaluation."""

    UNFINISHED = "unfinished"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    """The strategy stopped the agent early; it has ended and has not failed."""


class PodPhase(StrEnum):
    """State of a pod."""

    INTENDED = "intended"
    """It is recorded; the launcher may or may not have started it."""
    SEEN = "seen"
    """The launcher has listed it."""
    GONE = "gone"
    """It has stopped, or was never started."""


@dataclass(frozen=True)
class TournamentRecord:
    """A tournament."""

    TABLE: ClassVar[str] = "tournaments"
    tournament_id: str
    sequence: int
    spec: TournamentSpec
    state: int
    reason: str
    create_time: float
    end_time: float | None
    running_seconds: float
    next_agent: int
    next_pod: int
    next_evaluation: int
    mesh_id: str
    agents_failed_in_row: int
    pods_died_in_row: int
    best: Candidate | None

    @property
    def pod_resources(self) -> Resources:
        """What each of its pods reserves."""
        pod = self.spec.pod
        # Not set in tournaments that were created before pods could have several hosts.
        return Resources(pod.cores, pod.memory_bytes, pod.gpus, pod.hosts or 1)

    @property
    def round_size(self) -> int:
        """Number of agents that are generated together: a round of a synchronous tournament, otherwise one."""
        return self.spec.pool.maximum_pods if self.spec.synchronous else 1

    @property
    def end_reason(self) -> str:
        """Why its agents are no longer trained; empty while it is running."""
        return "" if self.state == RUNNING else f"tournament {self.tournament_id}: {self.reason}"

    @property
    def selects_champion(self) -> bool:
        """Whether evaluations that select the champion may still be queued although no agents are trained."""
        return self.state == ENDING and bool(self.spec.champion.reevaluate_top)


@dataclass(frozen=True)
class OwnershipRecord:
    """The owner of a tournament."""

    TABLE: ClassVar[str] = "ownerships"
    tournament_id: str
    owner: str
    namespace: str


@dataclass(frozen=True)
class PauseRecord:
    """Whether a user has paused a tournament. It has an effect only while the tournament is running."""

    TABLE: ClassVar[str] = "pauses"
    tournament_id: str
    reason: str
    """Why; empty: it is not paused."""


@dataclass(frozen=True)
class LabelsRecord:
    """The labels of a tournament."""

    TABLE: ClassVar[str] = "labels"
    tournament_id: str
    labels: str
    """JSON object of texts."""


@dataclass(frozen=True)
class AgentRecord:
    """An agent; its row is written before the generator is called, so that no number is lost or used twice."""

    TABLE: ClassVar[str] = "agents"
    agent_id: str
    tournament_id: str
    number: int
    phase: WorkPhase
    lease_epoch: int
    pod_id: str
    """The pod that it was assigned to last and that has not given it back; empty if there is none."""
    incarnation: str
    environment_steps: int
    agent: Agent | None
    """None until the generator has responded."""

    @property
    def trial(self) -> int | None:
        """Number of the first agent of its trial; None until the generator has responded."""
        return self.agent and (self.agent.trial if self.agent.HasField("trial") else self.number)

    @property
    def work_id(self) -> str:
        """Id of the work."""
        return self.agent_id


@dataclass(frozen=True)
class EvaluationRecord:
    """An evaluation."""

    TABLE: ClassVar[str] = "evaluations"
    evaluation_id: str
    tournament_id: str
    number: int
    phase: WorkPhase
    lease_epoch: int
    pod_id: str
    incarnation: str
    request: CreateEvaluationRequest
    result: Evaluation | None
    error: str

    @property
    def work_id(self) -> str:
        """Id of the work."""
        return self.evaluation_id


@dataclass(frozen=True)
class PodRecord:
    """A pod; its row is written before the pod is started."""

    TABLE: ClassVar[str] = "pods"
    pod_id: str
    tournament_id: str
    number: int
    """Position among the pods of its tournament; EXTERNAL_POD_NUMBER for an external pod."""
    phase: PodPhase
    start_time: float
    layout: int
    cores: float
    memory_bytes: int
    gpus: int
    useful: bool
    """Whether its death is not that of a pod that could not start: it took environment steps, or completed an
    assignment, or it was killed because it no longer called, or its platform removed it."""
    drain_reason: str
    """Why it was asked to stop; empty if it was not."""

    @property
    def is_external(self) -> bool:
        """Whether it was started outside the orchestrator, and may return under the same id."""
        return self.number == EXTERNAL_POD_NUMBER

    @cached_property
    def reserved(self) -> Resources:
        """What the pod reserves."""
        return Resources(self.cores, self.memory_bytes, self.gpus)


@dataclass(frozen=True)
class EventRecord:
    """A decision or an occurrence; written by `Transaction.record_event`."""

    TABLE: ClassVar[str] = "events"
    sequence: int
    time: float
    tournament_id: str
    pod_id: str
    agent_id: str
    kind: str
    message: str


WorkRecord = AgentRecord | EvaluationRecord
Work = TypeVar("Work", AgentRecord, EvaluationRecord)
SavedRecord = TournamentRecord | OwnershipRecord | PauseRecord | LabelsRecord | WorkRecord | PodRecord
Record = TypeVar(
    "Record",
    TournamentRecord, OwnershipRecord, PauseRecord, LabelsRecord, AgentRecord, EvaluationRecord, PodRecord, EventRecord,
)  # fmt: skip


# --- reading and writing -----------------------------------------------------------------------------------------


def save(transaction: Transaction, record: SavedRecord) -> None:
    """Inserts a record, or replaces the one with the same first field."""
    names = list(DECODERS[type(record)])
    updates = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
    transaction.execute(
        f"INSERT INTO {record.TABLE} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        f" ON CONFLICT ({names[0]}) DO UPDATE SET {updates}",
        *(_encode(getattr(record, name)) for name in names),
    )
    transaction.saved.append(record)


def select(transaction: Transaction, kind: type[Record], condition: str, *values: object) -> list[Record]:
    """Returns the records of a kind that match an SQL condition."""
    decoders = DECODERS[kind]
    rows = transaction.execute(f"SELECT {', '.join(decoders)} FROM {kind.TABLE} WHERE {condition}", *values)
    return [kind(*(decode(value) for decode, value in zip(decoders.values(), row, strict=True))) for row in rows]


def find(transaction: Transaction, kind: type[Record], name: str) -> Record | None:
    """Returns the record whose first field is `name`; None if there is none."""
    found = select(transaction, kind, f"{next(iter(DECODERS[kind]))} = ?", name)
    return found[0] if found else None


def _encode(value: Any) -> Any:
    return value.SerializeToString() if isinstance(value, Message) else value


def _decoder(hint: Any) -> Any:
    if typing.get_origin(hint) is types.UnionType:
        decode = _decoder(next(option for option in typing.get_args(hint) if option is not types.NoneType))
        return lambda value: None if value is None else decode(value)
    return hint.FromString if issubclass(hint, Message) else hint


def _decoders(kind: type[Any]) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: _decoder(hints[field.name]) for field in dataclasses.fields(kind)}


KINDS = (
    *(TournamentRecord, OwnershipRecord, PauseRecord, LabelsRecord),
    *(AgentRecord, EvaluationRecord, PodRecord, EventRecord),
)
DECODERS: Mapping[type[Any], Mapping[str, Any]] = {kind: _decoders(kind) for kind in KINDS}
"""Decoder of each column, by record class and column name, in the order of the columns."""


# --- queries -----------------------------------------------------------------------------------------------------


def find_tournament(transaction: Transaction, tournament_id: str) -> TournamentRecord:
    """Returns a tournament by its id.

    Raises:
        NotFound: There is none; the message suggests the closest id.
    """
    found = find(transaction, TournamentRecord, tournament_id)
    if found is None:
        names = [row[0] for row in transaction.execute("SELECT tournament_id FROM tournaments ORDER BY sequence")]
        raise NotFound(unknown_tournament(tournament_id, names))
    return found


def find_work(transaction: Transaction, work_id: str) -> WorkRecord:
    """Returns an agent or an evaluation by its id.

    Raises:
        NotFound: There is neither.
    """
    found = find(transaction, AgentRecord, work_id) or find(transaction, EvaluationRecord, work_id)
    if found is None:
        raise NotFound(f"assignment of {work_id!r}: there is no such agent or evaluation")
    return found


def find_again(transaction: Transaction, work: WorkRecord) -> WorkRecord | None:
    """Returns the current record of an agent or evaluation."""
    if isinstance(work, AgentRecord):
        return find(transaction, AgentRecord, work.agent_id)
    return find(transaction, EvaluationRecord, work.evaluation_id)


def live_pods(transaction: Transaction) -> list[PodRecord]:
    """Returns the pods that are not gone, oldest first."""
    return select(transaction, PodRecord, "phase != ? ORDER BY start_time, pod_id", PodPhase.GONE)


def unfinished(transaction: Transaction, kind: type[Work], tournament_id: str) -> list[Work]:
    """Returns the unfinished agents or evaluations of a tournament, in order."""
    condition = "tournament_id = ? AND phase = ? ORDER BY number"
    return select(transaction, kind, condition, tournament_id, WorkPhase.UNFINISHED)


def first_unfinished(transaction: Transaction, tournament_id: str) -> int | None:
    """Returns the lowest number of an unfinished agent of a tournament; None if there is none."""
    condition = "tournament_id = ? AND phase = ?"
    rows = transaction.execute(f"SELECT min(number) FROM agents WHERE {condition}", tournament_id, WorkPhase.UNFINISHED)
    return None if rows[0][0] is None else int(rows[0][0])


def steps_below(transaction: Transaction, tournament_id: str, number: int) -> int:
    """Returns the environment steps of the agents of a tournament with a lower number."""
    condition = "tournament_id = ? AND number < ?"
    rows = transaction.execute(
        f"SELECT coalesce(sum(environment_steps), 0) FROM agents WHERE {condition}", tournament_id, number
    )
    return int(rows[0][0])


def events_after(transaction: Transaction, tournament_id: str, sequence: int, limit: int) -> list[EventRecord]:
    """Returns events after a sequence number, oldest first; of all tournaments for an empty `tournament_id`."""
    if not tournament_id:
        return select(transaction, EventRecord, "sequence > ? ORDER BY sequence LIMIT ?", sequence, limit)
    condition = "tournament_id = ? AND sequence > ? ORDER BY sequence LIMIT ?"
    return select(transaction, EventRecord, condition, tournament_id, sequence, limit)


def count_events(transaction: Transaction, tournament_id: str, kind: str) -> int:
    """Returns the number of events of a kind of a tournament."""
    condition = "tournament_id = ? AND kind = ?"
    return int(transaction.execute(f"SELECT count(*) FROM events WHERE {condition}", tournament_id, kind)[0][0])


def pods_of_agent(transaction: Transaction, tournament_id: str, agent_id: str) -> list[str]:
    """Returns the pods that an agent was ever assigned to, according to its events."""
    condition = "tournament_id = ? AND kind = 'agent_assigned' AND agent_id = ?"
    rows = transaction.execute(
        f"SELECT DISTINCT pod_id FROM events WHERE {condition} ORDER BY pod_id", tournament_id, agent_id
    )
    return [pod_id for (pod_id,) in rows]


def evaluation_of_request(transaction: Transaction, tournament_id: str, request_id: str) -> EvaluationRecord | None:
    """Returns the evaluation of a tournament that was queued with a request id; None if there is none."""
    found = select(transaction, EvaluationRecord, "tournament_id = ? ORDER BY number DESC", tournament_id)
    return next((one for one in found if one.request.request_id == request_id), None)


def next_tournament_sequence(transaction: Transaction) -> int:
    """Returns the sequence number of the next tournament."""
    return int(transaction.execute("SELECT coalesce(max(sequence), 0) + 1 FROM tournaments")[0][0])


def running_tournaments(transaction: Transaction) -> list[TournamentRecord]:
    """Returns the tournaments that are running."""
    return select(transaction, TournamentRecord, "state = ? ORDER BY sequence", RUNNING)


def left_algorithms(transaction: Transaction, tournament_id: str) -> set[str]:
    """Returns the algorithms that have been eliminated of a tournament, according to its events."""
    rows = transaction.execute(
        "SELECT message FROM events WHERE tournament_id = ? AND kind = 'algorithm_left'", tournament_id
    )
    return {message.partition(" ")[0] for (message,) in rows}
