"""Creates, reads, follows and changes tournaments."""

import functools
from collections.abc import AsyncIterator, Iterable, Mapping

from podrace import rpc
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.client.calls.channels import (
    ARCHIVE_SECONDS,
    BACK_UP_SECONDS,
    CHECK_SECONDS,
    DURABLE_SECONDS,
    PAGE_SIZE,
    QUICK_SECONDS,
    MeshChannels,
    new_request_id,
    pages,
)
from podrace.client.champion import members_of_champion
from podrace.client.discovery import get_caller, get_server
from podrace.client.reconnect import resumed
from podrace.discovery.v1.discovery_pb2 import GetCallerResponse
from podrace.errors import NotFound, Unimplemented
from podrace.leaderboard.v1.leaderboard_pb2 import DatabaseBackup
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import Tournament, TournamentSpec

END_STATES = {
    tournament_pb2.TOURNAMENT_STATE_COMPLETED,
    tournament_pb2.TOURNAMENT_STATE_CANCELLED,
    tournament_pb2.TOURNAMENT_STATE_FAILED,
}


class TournamentCalls(MeshChannels):
    """Calls the methods of the orchestrator that are about tournaments, their pods and their events."""

    async def create_tournament(
        self, spec: TournamentSpec, *, request_id: str = "", labels: Mapping[str, str] | None = None
    ) -> Tournament:
        """Creates a tournament and starts it.

        Args:
            spec: Resolved specification, for instance from `podrace.specification.files.load`.
            request_id: A unique text that makes the call idempotent: a second call with it within a day returns the
                tournament of the first. Default: a new one.
            labels: Short texts to find it by, with the rules of labels in Kubernetes.

        Raises:
            InvalidArgument: The specification or a label is invalid.
        """
        request = pb.CreateTournamentRequest(request_id=request_id or new_request_id(), spec=spec, labels=labels)
        return (await self._ask(self._orchestrator.CreateTournament, request, DURABLE_SECONDS)).tournament

    async def check_specification(self, spec: TournamentSpec) -> tuple[TournamentSpec, list[str]]:
        """Returns a specification with all defaults, and what could not be checked about it and why.

        Raises:
            InvalidArgument: It cannot be used there; `violations` has everything that is wrong, by key.
        """
        request = pb.CreateTournamentRequest(request_id=new_request_id(), spec=spec, validate_only=True)
        response = await self._ask(self._orchestrator.CreateTournament, request, CHECK_SECONDS)
        return response.tournament.spec, list(response.unchecked)

    async def get_tournament(self, tournament_id: str) -> Tournament:
        """Returns the current state of a tournament.

        Raises:
            NotFound: The orchestrator does not know the tournament.
        """
        request = pb.GetTournamentRequest(tournament_id=tournament_id)
        return (await self._ask(self._orchestrator.GetTournament, request, QUICK_SECONDS)).tournament

    async def list_tournaments(self, filter: str = "", order_by: str = "") -> list[Tournament]:
        """Returns tournaments, newest first.

        Args:
            filter: Which; empty: all. Conditions such as `state = RUNNING AND labels.team = rl`.
            order_by: Fields, each perhaps with `desc`, such as `end_time desc`; empty: newest first.

        Raises:
            InvalidArgument: The filter or the order cannot be used.
        """
        request = pb.ListTournamentsRequest(page_size=PAGE_SIZE, filter=filter, order_by=order_by)
        found = pages(self._address, self._orchestrator.ListTournaments, request, QUICK_SECONDS)
        return [tournament async for page in found for tournament in page.tournaments]

    async def follow(self, tournament: Tournament, resume_token: int = 0) -> AsyncIterator[pb.WatchTournamentResponse]:
        """Yields the tournament with its pods and new events after each change, until the tournament has ended.

        Reconnects when the orchestrator restarts. The last message has one of `END_STATES`.

        Args:
            tournament: The tournament to follow.
            resume_token: `resume_token` of the last message that is known; 0 yields all events.
        """
        watch = functools.partial(self.watch_tournament, tournament.tournament_id)
        async for update in resumed(watch, resume_token):
            yield update
            if update.tournament.state in END_STATES:
                return

    def watch_tournament(self, tournament_id: str, resume_token: int) -> AsyncIterator[pb.WatchTournamentResponse]:
        """Streams a tournament, its pods and its new events; `follow` also reconnects.

        Raises:
            Unavailable: The connection broke before the tournament had ended.
        """
        request = pb.WatchTournamentRequest(tournament_id=tournament_id, resume_token=resume_token)
        return rpc.stream(self._orchestrator.WatchTournament, request, deadline_seconds=None)

    async def get_champion(self, tournament: Tournament) -> Checkpoint:
        """Returns the checkpoint of the current champion, which is final once the tournament is complete.

        For an ensemble it is the first member; `get_champion_members` returns all.

        Raises:
            NotFound: The tournament has no candidate yet.
        """
        return (await self.get_champion_members(tournament))[0]

    async def get_champion_members(self, tournament: Tournament) -> list[Checkpoint]:
        """Returns the checkpoints that act together as the current champion: one, unless it is an ensemble.

        Raises:
            NotFound: The tournament has no candidate yet.
        """
        current = await self.get_tournament(tournament.tournament_id)
        members = members_of_champion(current)
        if not members:
            raise NotFound(f"tournament {current.tournament_id} has no candidate yet")
        return members

    async def cancel_tournament(self, tournament_id: str, reason: str) -> Tournament:
        """Cancels a tournament, with a reason for its record; `resume_tournament` continues it."""
        request = pb.CancelTournamentRequest(request_id=new_request_id(), tournament_id=tournament_id, reason=reason)
        return (await self._ask(self._orchestrator.CancelTournament, request, QUICK_SECONDS)).tournament

    async def update_tournament(self, tournament_id: str, changes: TournamentSpec) -> Tournament:
        """Changes the pool limits and the objective of a tournament; fields that are not set keep their values."""
        request = pb.UpdateTournamentRequest(
            request_id=new_request_id(),
            tournament_id=tournament_id,
            pool=changes.pool if changes.HasField("pool") else None,
            objective=changes.objective if changes.HasField("objective") else None,
        )
        return (await self._ask(self._orchestrator.UpdateTournament, request, QUICK_SECONDS)).tournament

    async def label_tournament(
        self, tournament_id: str, labels: Mapping[str, str], remove: Iterable[str] = (), *, etag: str = ""
    ) -> Tournament:
        """Sets labels of a tournament and removes others; also of one that has ended.

        Args:
            tournament_id: The tournament.
            labels: Labels to set.
            remove: Keys of labels to remove.
            etag: `etag` of the tournament that the change is based on; empty: of any.

        Raises:
            InvalidArgument: A label is invalid.
            Aborted: Another client has changed the tournament since.
        """
        request = pb.UpdateTournamentRequest(
            request_id=new_request_id(), tournament_id=tournament_id, labels=labels, etag=etag
        )
        request.update_mask.paths.extend(f"labels.{key}" for key in dict.fromkeys([*labels, *remove]))
        return (await self._ask(self._orchestrator.UpdateTournament, request, QUICK_SECONDS)).tournament

    async def delete_tournament(self, tournament_id: str, *, archive: bool = False) -> None:
        """Deletes a tournament that has ended; has no effect if there is none.

        Args:
            tournament_id: The tournament.
            archive: Whether it is archived in the checkpoint store first. The operator may have all archived.

        Raises:
            FailedPrecondition: It has not ended, or another tournament starts from one of its agents.
            Unimplemented: This server cannot archive; nothing was deleted.
        """
        if archive and "archive" not in (await get_server(self._address, self.token_for(self._address))).features:
            raise Unimplemented("archive: this server does not support archives; omit it, or upgrade the server")
        request = pb.DeleteTournamentRequest(tournament_id=tournament_id, archive=archive)
        await self._ask(self._orchestrator.DeleteTournament, request, ARCHIVE_SECONDS)

    async def get_caller(self) -> GetCallerResponse:
        """Returns who the orchestrator takes this client for, and its roles.

        Raises:
            Unauthenticated: The credentials are not valid there.
            Unimplemented: The orchestrator is of an earlier version.
        """
        return await get_caller(self._address, self.token_for(self._address))

    async def pause_tournament(self, tournament_id: str, reason: str = "") -> Tournament:
        """Pauses a running tournament: its pods publish and exit, and its clock stands still.

        `resume_tournament` continues it.

        Raises:
            FailedPrecondition: It is not running.
        """
        request = pb.PauseTournamentRequest(request_id=new_request_id(), tournament_id=tournament_id, reason=reason)
        return (await self._ask(self._orchestrator.PauseTournament, request, QUICK_SECONDS)).tournament

    async def resume_tournament(self, tournament_id: str) -> Tournament:
        """Resumes a paused, cancelled or failed tournament."""
        request = pb.ResumeTournamentRequest(request_id=new_request_id(), tournament_id=tournament_id)
        return (await self._ask(self._orchestrator.ResumeTournament, request, QUICK_SECONDS)).tournament

    async def back_up(self) -> list[DatabaseBackup]:
        """Backs up the databases of both services to the checkpoint store now, and returns the backups.

        Raises:
            PermissionDenied: The caller is no operator.
            Unimplemented: A database is on a server, which is backed up by its own tools.
        """
        request = pb.BackUpRequest()
        return list((await self._ask(self._orchestrator.BackUp, request, BACK_UP_SECONDS)).backups)

    async def list_pods(self, tournament_id: str, filter: str = "", order_by: str = "") -> list[pb.Pod]:
        """Returns the pods of a tournament, oldest first; `filter` and `order_by` as of `list_tournaments`."""
        request = pb.ListPodsRequest(tournament_id=tournament_id, filter=filter, order_by=order_by)
        found = pages(self._address, self._orchestrator.ListPods, request, QUICK_SECONDS)
        return [pod async for page in found for pod in page.pods]

    async def list_events(self, tournament_id: str, filter: str = "", order_by: str = "") -> list[pb.Event]:
        """Returns events of a tournament, oldest first; `filter` and `order_by` as of `list_tournaments`."""
        request = pb.ListEventsRequest(
            tournament_id=tournament_id, page_size=PAGE_SIZE, filter=filter, order_by=order_by
        )
        found = pages(self._address, self._orchestrator.ListEvents, request, QUICK_SECONDS)
        return [event async for page in found for event in page.events]
