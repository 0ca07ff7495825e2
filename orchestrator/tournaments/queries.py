"""Answers the queries of users: tournaments, pods, events and evaluations, as far as the caller may see them.

A list leaves out what belongs to tournaments that the caller may not see, so such a tournament looks like one that does
not exist. Methods that name one tournament are called only if the caller may see it (podrace.access.guard).
"""

from dataclasses import dataclass

from orchestrator.state import records
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.lists import fields, queries
from orchestrator.state.records import (
    END_STATES,
    EvaluationRecord,
    EventRecord,
    PodRecord,
    TournamentRecord,
)
from orchestrator.state.runtime import RuntimeState
from podrace.access.authenticators.unix_socket import local_user
from podrace.access.ownership import Reach, reach, unknown_tournament, visible
from podrace.access.principal import Principal
from podrace.errors import NotFound
from podrace.listing.selection import Found, ListSelection
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.page_tokens import LARGEST_POSITION

DEFAULT_PAGE_SIZE = 100
MAXIMUM_PAGE_SIZE = 1000
MAXIMUM_SEQUENCE = LARGEST_POSITION
"""Larger than every sequence number."""
SCOPED_METHODS = frozenset(
    f"/podrace.orchestrator.v1.OrchestratorService/{name}" for name in ("ListPods", "ListEvents", "DeleteTournament")
)
"""Methods that also have an answer if no tournament is named, or none that the caller may see."""


@dataclass(frozen=True)
class TournamentView:
    """A tournament and its events, of the same moment, with its pods at that moment or shortly after."""

    tournament: TournamentRecord
    pods: list[PodRecord]
    events: list[EventRecord]


class Queries:
    """Queries of users. A caller of None is the user of this process."""

    def __init__(self, state: StateDatabase, runtime: RuntimeState) -> None:
        """Creates the queries.

        Args:
            state: Database of the orchestrator.
            runtime: State in memory.
        """
        self._state, self._runtime = state, runtime

    async def get(self, tournament_id: str) -> TournamentRecord:
        """Returns a tournament; raises NotFound."""
        return await self._state.transact(records.find_tournament, tournament_id)

    async def get_evaluation(self, evaluation_id: str) -> EvaluationRecord:
        """Returns an evaluation; raises NotFound."""
        found = await self._state.transact(records.find, EvaluationRecord, evaluation_id)
        if found is None:
            raise NotFound(f"evaluation_id {evaluation_id!r}: there is no such evaluation")
        return found

    async def page(self, request: pb.ListTournamentsRequest, caller: Principal | None) -> Found[TournamentRecord]:
        """Returns tournaments, newest first; raises InvalidArgument for a bad token, filter or order."""
        selection = ListSelection.of(request, fields.TOURNAMENT_FIELDS, ["tournaments"])
        seen, limit = self._visible(caller), page_limit(request.page_size)
        found = await self._state.transact(queries.tournaments, seen, selection, limit)
        return Found(found, selection, more=len(found) == limit)

    def page_of_pods(
        self, request: pb.ListPodsRequest, caller: Principal | None
    ) -> tuple[list[PodRecord], ListSelection]:
        """Returns all pods that a list selects, in its order; raises InvalidArgument, and NotFound."""
        selection = ListSelection.of(request, fields.POD_FIELDS, ["pods", request.tournament_id])
        found = self.pods(request.tournament_id, caller)
        return selection.apply(found, lambda pod, name: fields.pod_value(pod, name, self._runtime)), selection

    def pods(self, tournament_id: str, caller: Principal | None) -> list[PodRecord]:
        """Returns the pods of a tournament, or all pods for an empty id, oldest first; raises NotFound."""
        if tournament_id:
            self._check_known(tournament_id, caller)
        seen = frozenset({tournament_id}) if tournament_id else self._visible(caller)
        return [pod for pod in self._runtime.cache.pods.values() if seen is None or pod.tournament_id in seen]

    async def events(self, request: pb.ListEventsRequest, caller: Principal | None) -> Found[EventRecord]:
        """Returns events, oldest first; raises InvalidArgument for a bad token, filter or order, and NotFound."""
        name = request.tournament_id
        if name:
            self._check_known(name, caller)
        selection = ListSelection.of(request, fields.EVENT_FIELDS, ["events", name])
        seen, limit = frozenset({name}) if name else self._visible(caller), page_limit(request.page_size)
        found = await self._state.transact(queries.events, seen, selection, limit)
        return Found(found, selection, more=len(found) == limit)

    async def evaluations(
        self, request: pb.ListEvaluationsRequest, caller: Principal | None
    ) -> Found[EvaluationRecord]:
        """Returns evaluations, oldest first; raises InvalidArgument for a bad token, filter or order, and NotFound."""
        name, limit = request.tournament_id, page_limit(request.page_size)
        self._check_known(name, caller)
        selection = ListSelection.of(request, fields.EVALUATION_FIELDS, ["evaluations", name])
        found = await self._state.transact(queries.evaluations, name, selection, limit)
        return Found(found, selection, more=len(found) == limit)

    async def tournament_view(self, tournament_id: str, after: int) -> TournamentView:
        """Returns a tournament, its pods, and its events after a sequence number; raises NotFound."""
        tournament, events = await self._state.transact(tournament_view, tournament_id, min(after, MAXIMUM_SEQUENCE))
        return TournamentView(tournament, self.pods(tournament_id, None), events)

    def _check_known(self, tournament_id: str, caller: Principal | None) -> None:
        owned = self._runtime.cache.ownership_of(tournament_id)
        if owned is None or reach(caller or local_user(), tournament_id, owned) < Reach.READ:
            seen, known = self._visible(caller), self._runtime.cache.tournament_ids()
            raise NotFound(unknown_tournament(tournament_id, [one for one in known if seen is None or one in seen]))

    def _visible(self, caller: Principal | None) -> frozenset[str] | None:
        return visible(caller or local_user(), self._runtime.cache)


def tournament_view(
    transaction: Transaction, tournament_id: str, after: int
) -> tuple[TournamentRecord, list[EventRecord]]:
    """Reads a tournament and its events after a sequence number."""
    return (
        records.find_tournament(transaction, tournament_id),
        records.events_after(transaction, tournament_id, after, MAXIMUM_PAGE_SIZE),
    )


def has_ended(view: TournamentView) -> bool:
    """Whether the tournament has ended and this view includes its last event."""
    return view.tournament.state in END_STATES and len(view.events) < MAXIMUM_PAGE_SIZE


def page_limit(page_size: int) -> int:
    """Number of records on a page."""
    return min(page_size or DEFAULT_PAGE_SIZE, MAXIMUM_PAGE_SIZE)
