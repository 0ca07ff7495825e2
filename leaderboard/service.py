"""Translates between the gRPC contract and updater, generator, snapshots and queries; decides nothing."""

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from itertools import islice
from typing import Any

import grpc.aio

from leaderboard import decision_replay, queries, snapshots
from leaderboard.checkpoints.archiving import TournamentArchiving
from leaderboard.checkpoints.deletion import TournamentDeletion
from leaderboard.checkpoints.held_candidates import wanted_verification
from leaderboard.evolution.strategy import NoWork
from leaderboard.generator import Generator
from leaderboard.rebuilding.known import KnownTournaments
from leaderboard.snapshots import SnapshotRecorder
from leaderboard.store import records
from leaderboard.store.owners import TournamentOwners, ownership_in
from leaderboard.store.refusal_records import refusals_after
from leaderboard.store_access.access import StoreAccess
from leaderboard.store_access.backups import BackupAccess
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from podrace.access.lease_tokens import LeaseVerifier
from podrace.access.ownership import Ownership, Reach, reach
from podrace.access.principal import current_principal
from podrace.backup.copies import Backup, backup_message
from podrace.checkpoint.v1 import store_pb2 as store_pb
from podrace.checkpoint.v1 import store_pb2_grpc as store_pb_grpc
from podrace.database import Database
from podrace.errors import Unimplemented
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as pb_grpc
from podrace.page_bytes import fitting
from podrace.rpc import Service

WATCH_PAGE_SIZE = 100
LARGEST_REPORT = 1000
"""Most lines of differences in the answer of a replay."""
LONGEST_DIFFERENCE = 1000
"""Characters of such a line."""

STORE_SERVICE = (
    store_pb.DESCRIPTOR.services_by_name["StoreService"],
    store_pb_grpc.add_StoreServiceServicer_to_server,
)
Context = grpc.aio.ServicerContext[Any, Any]
BackUp = Callable[[], Awaitable[Backup]]
"""Makes a backup of the database."""
Register = Callable[[Mapping[str, Ownership]], Awaitable[None]]
"""Makes tournaments known, given the owner of each."""


def services(
    state: Database,
    watch: SubmissionWatch,
    updater: Updater,
    generator: Generator,
    kept: SnapshotRecorder,
    store_access: StoreAccess,
    leases: LeaseVerifier | None = None,
    owners: TournamentOwners | None = None,
    deletion: TournamentDeletion | None = None,
    archiving: TournamentArchiving | None = None,
    known: KnownTournaments | None = None,
    back_up: BackUp | None = None,
    backups: BackupAccess | None = None,
) -> list[Service]:
    """Returns the four services of a leaderboard.

    Args:
        state: The database.
        watch: Wakes the callers that wait for submissions.
        updater: Judges submissions.
        generator: Generates agents.
        kept: Records snapshots.
        store_access: Grants pods access to the checkpoint store.
        leases: Verifies the tokens of pods; None: none are required.
        owners: Which tournaments exist, and the owner of each; None: those of the generator.
        deletion: Deletes tournaments; None: they cannot be deleted.
        archiving: Archives tournaments; None: they cannot be archived.
        known: Lists all tournaments; None: they cannot be listed.
        back_up: Makes a backup of the database now; None: there are no backups.
        backups: Grants the orchestrator access to the backups of its database; None: it has none.
    """
    contract = pb.DESCRIPTOR.services_by_name
    leases, owners = leases or LeaseVerifier(None), owners or generator.owners
    return [
        Service(
            contract["LeaderboardService"],
            pb_grpc.add_LeaderboardServiceServicer_to_server,
            LeaderboardServicer(state, watch, owners),
        ),
        Service(
            contract["UpdaterService"],
            pb_grpc.add_UpdaterServiceServicer_to_server,
            UpdaterServicer(
                *(updater, kept, leases, functools.partial(owners.register, state), deletion, archiving, known, back_up)
            ),
        ),
        Service(
            contract["GeneratorService"],
            pb_grpc.add_GeneratorServiceServicer_to_server,
            GeneratorServicer(generator, state, owners),
        ),
        Service(*STORE_SERVICE, StoreServicer(store_access, leases, backups)),
    ]


class LeaderboardServicer(pb_grpc.LeaderboardServiceServicer):
    """Answers queries; the contract describes the methods.

    The guard of the server answers callers who may not see a tournament exactly as if it did not exist.
    """

    def __init__(self, state: Database, watch: SubmissionWatch, owners: TournamentOwners) -> None:
        self._state, self._watch, self._owners = state, watch, owners

    def _check_known(self, tournament_id: str) -> None:
        self._owners.check_known(tournament_id, current_principal())

    def _sees(self, tournament_id: str) -> bool:
        caller = current_principal()
        owned = self._owners.ownership_of(tournament_id)
        return caller is None or reach(caller, tournament_id, owned) >= Reach.READ

    async def GetAgent(self, request: pb.GetAgentRequest, context: Context) -> pb.GetAgentResponse:
        """Reads; see the contract."""
        generation = await self._state.transact(records.get_generation, request.agent_id)
        return pb.GetAgentResponse(agent=generation.agent)

    async def ListCandidates(self, request: pb.ListCandidatesRequest, context: Context) -> pb.ListCandidatesResponse:
        """Reads a page; see the contract."""
        self._check_known(request.tournament_id)
        return await self._state.transact(queries.page_of_candidates, request)

    async def GetLineage(self, request: pb.GetLineageRequest, context: Context) -> pb.GetLineageResponse:
        """Reads a lineage; see the contract."""
        if not request.agent_id:
            self._check_known(request.tournament_id)
        return await queries.lineage(self._state, request, self._sees)

    async def NameChampion(self, request: pb.NameChampionRequest, context: Context) -> pb.NameChampionResponse:
        """Reads and decides; see the contract."""
        return await queries.champion(self._state, request)

    async def WatchCandidates(
        self, request: pb.WatchCandidatesRequest, context: Context
    ) -> AsyncIterator[pb.WatchCandidatesResponse]:
        """Sends existing submissions, then new ones; see the contract."""
        name, token = request.tournament_id, request.resume_token
        with self._watch.watching(name):
            while True:
                # In each round, because the tournament may be deleted.
                self._check_known(name)
                page = await self._state.transact(queries.submissions_after, name, token, WATCH_PAGE_SIZE)
                for candidate in page:
                    token = candidate.sequence
                    yield pb.WatchCandidatesResponse(candidate=candidate, resume_token=token)
                if not page:
                    await self._watch.wait_after(name, token)

    async def ListSnapshots(self, request: pb.ListSnapshotsRequest, context: Context) -> pb.ListSnapshotsResponse:
        """Reads a page; see the contract."""
        self._check_known(request.tournament_id)
        return await self._state.transact(snapshots.page_of_snapshots, request)

    async def GetStatistics(self, request: pb.GetStatisticsRequest, context: Context) -> pb.GetStatisticsResponse:
        """Reads and computes; see the contract."""
        self._check_known(request.tournament_id)
        return await queries.statistics(self._state, request)

    async def ReplayTournament(
        self, request: pb.ReplayTournamentRequest, context: Context
    ) -> pb.ReplayTournamentResponse:
        """Makes all decisions again, in a thread; see the contract."""
        self._check_known(request.tournament_id)
        if not await self._state.transact(records.find_spec, request.tournament_id):
            return pb.ReplayTournamentResponse()  # It has no agent yet.
        log = await self._state.transact(queries.decision_log, request.tournament_id)
        lines = await asyncio.to_thread(lambda: list(islice(decision_replay.differences(log), LARGEST_REPORT)))
        counts = pb.ReplayTournamentResponse(agents=len(log.generations), submissions=len(log.submissions))
        counts.differences.extend(line[:LONGEST_DIFFERENCE] for line in lines)
        return counts


class UpdaterServicer(pb_grpc.UpdaterServiceServicer):
    """Takes submissions of candidates and snapshots."""

    def __init__(
        self,
        updater: Updater,
        kept: SnapshotRecorder,
        leases: LeaseVerifier,
        register: Register,
        deletion: TournamentDeletion | None = None,
        archiving: TournamentArchiving | None = None,
        known: KnownTournaments | None = None,
        back_up: BackUp | None = None,
    ) -> None:
        self._known, self._back_up = known, back_up
        self._updater, self._snapshots, self._leases, self._register = updater, kept, leases, register
        self._deletion, self._archiving = deletion, archiving

    def _check_lease(self, method: str, token: str, agent_id: str, lease_epoch: int | None = None) -> None:
        """Refuses a call of a pod that does not hold the agent; raises PermissionDenied."""
        epoch = {} if lease_epoch is None else {"lease_epoch": lease_epoch}
        self._leases.check(method, token, current_principal(), work_id=agent_id, **epoch)

    async def SubmitCandidate(self, request: pb.SubmitCandidateRequest, context: Context) -> pb.SubmitCandidateResponse:
        """Judges a candidate; see the contract."""
        self._check_lease("SubmitCandidate", request.lease_token, request.checkpoint.agent_id, request.lease_epoch)
        return await self._updater.submit(request)

    async def PlanEvaluation(self, request: pb.PlanEvaluationRequest, context: Context) -> pb.PlanEvaluationResponse:
        """Plans an evaluation; see the contract."""
        self._check_lease("PlanEvaluation", request.lease_token, request.agent_id)
        return await self._updater.plan_evaluation(request)

    async def ListExperience(self, request: pb.ListExperienceRequest, context: Context) -> pb.ListExperienceResponse:
        """Lists replay memories of other agents; see the contract."""
        self._check_lease("ListExperience", request.lease_token, request.agent_id)
        return await self._updater.list_experience(request)

    async def SubmitSnapshot(self, request: pb.SubmitSnapshotRequest, context: Context) -> pb.SubmitSnapshotResponse:
        """Records a snapshot; see the contract."""
        self._check_lease("SubmitSnapshot", request.lease_token, request.checkpoint.agent_id, request.lease_epoch)
        return await self._snapshots.submit(request)

    async def RecordVerification(
        self, request: pb.RecordVerificationRequest, context: Context
    ) -> pb.RecordVerificationResponse:
        """Decides about a held candidate; see the contract."""
        return await self._updater.record_verification(request)

    async def RegisterTournaments(
        self, request: pb.RegisterTournamentsRequest, context: Context
    ) -> pb.RegisterTournamentsResponse:
        """Makes tournaments known; see the contract."""
        await self._register({one.tournament_id: ownership_in(one) for one in request.tournaments})
        return pb.RegisterTournamentsResponse()

    async def ArchiveTournament(
        self, requests: AsyncIterable[pb.ArchiveTournamentRequest], context: Context
    ) -> pb.ArchiveTournamentResponse:
        """Archives a tournament; see the contract."""
        if self._archiving is None:
            raise Unimplemented("ArchiveTournament: this leaderboard archives nothing")
        return pb.ArchiveTournamentResponse(manifest_digest=await self._archiving.archive(requests))

    async def DeleteTournament(
        self, request: pb.DeleteTournamentRequest, context: Context
    ) -> pb.DeleteTournamentResponse:
        """Deletes a tournament; see the contract."""
        if self._deletion is None:
            raise Unimplemented("DeleteTournament: this leaderboard deletes nothing")
        await self._deletion.delete(request.tournament_id)
        return pb.DeleteTournamentResponse()

    async def ListKnownTournaments(
        self, request: pb.ListKnownTournamentsRequest, context: Context
    ) -> pb.ListKnownTournamentsResponse:
        """Reads a page; see the contract."""
        if self._known is None:
            raise Unimplemented("ListKnownTournaments: this leaderboard lists nothing")
        return await self._known.page(request)

    async def BackUp(self, request: pb.BackUpRequest, context: Context) -> pb.BackUpResponse:
        """Makes a backup; see the contract."""
        if self._back_up is None:
            raise Unimplemented("BackUp: this leaderboard makes no backups")
        return pb.BackUpResponse(backup=backup_message(await self._back_up()))

    async def SnapshotChampion(
        self, request: pb.SnapshotChampionRequest, context: Context
    ) -> pb.SnapshotChampionResponse:
        """Records a snapshot; see the contract."""
        return await self._snapshots.champion(request)


class GeneratorServicer(pb_grpc.GeneratorServiceServicer):
    """Takes requests for agents."""

    def __init__(self, generator: Generator, state: Database, owners: TournamentOwners) -> None:
        self._generator, self._state, self._owners = generator, state, owners

    async def GenerateAgent(self, request: pb.GenerateAgentRequest, context: Context) -> pb.GenerateAgentResponse:
        """Generates an agent; see the contract."""
        answer = await self._generator.generate(request)
        if isinstance(answer, NoWork):
            return pb.GenerateAgentResponse(no_work_reason=answer.reason)
        return pb.GenerateAgentResponse(agent=answer)

    async def ReviewAgents(self, request: pb.ReviewAgentsRequest, context: Context) -> pb.ReviewAgentsResponse:
        """Reviews the agents in training; see the contract."""
        self._owners.check_known(request.tournament_id, current_principal())
        found = await self._generator.review(request.tournament_id)
        # What does not fit is listed in the next review.
        stops = fitting(
            pb.AgentStop(agent_id=agent_id, reason=reason) for agent_id, reason in sorted(found.stops.items())
        )
        refusals = await self._state.transact(refusals_after, request.tournament_id, request.refusals_after)
        verification, waiting = await self._state.transact(wanted_verification, request.tournament_id)
        return pb.ReviewAgentsResponse(
            stops=stops,
            refusals=fitting(refusals),
            verification=verification,
            waiting=waiting,
            incumbent=pb.Incumbent(**dataclasses.asdict(found.improvement)) if found.improvement else None,
            quota_report=self._generator.quota_report(request.tournament_id),
        )


class StoreServicer(store_pb_grpc.StoreServiceServicer):
    """Takes requests for access to the checkpoint store."""

    def __init__(self, access: StoreAccess, leases: LeaseVerifier, backups: BackupAccess | None = None) -> None:
        self._access, self._leases, self._granted_backups = access, leases, backups

    def _check_lease(self, method: str, request: Any) -> None:
        """Refuses a call of a pod that does not hold the assignment; raises PermissionDenied."""
        expected = {"tournament_id": request.tournament_id, "lease_epoch": request.lease_epoch}
        if request.agent_id:
            expected["work_id"] = request.agent_id
        self._leases.check(method, request.lease_token, current_principal(), **expected)

    async def GetPointer(self, request: store_pb.GetPointerRequest, context: Context) -> store_pb.GetPointerResponse:
        """Reads a pointer; see the contract."""
        self._check_lease("GetPointer", request)
        return await self._access.get_pointer(request)

    async def SwapPointer(self, request: store_pb.SwapPointerRequest, context: Context) -> store_pb.SwapPointerResponse:
        """Replaces a pointer; see the contract."""
        self._check_lease("SwapPointer", request)
        return await self._access.swap_pointer(request)

    async def GrantUploads(
        self, request: store_pb.GrantUploadsRequest, context: Context
    ) -> store_pb.GrantUploadsResponse:
        """Signs URLs; see the contract."""
        self._check_lease("GrantUploads", request)
        return await self._access.grant_uploads(request)

    async def GrantReads(self, request: store_pb.GrantReadsRequest, context: Context) -> store_pb.GrantReadsResponse:
        """Signs URLs; see the contract."""
        self._check_lease("GrantReads", request)
        return await self._access.grant_reads(request)

    async def RenewObjects(
        self, request: store_pb.RenewObjectsRequest, context: Context
    ) -> store_pb.RenewObjectsResponse:
        """Resets the age of objects; see the contract."""
        self._check_lease("RenewObjects", request)
        return await self._access.renew_objects(request)

    async def ListBackupPointers(
        self, request: store_pb.ListBackupPointersRequest, context: Context
    ) -> store_pb.ListBackupPointersResponse:
        """Reads pointers; see the contract."""
        return await self._backups().list_pointers(request)

    async def SwapBackupPointer(
        self, request: store_pb.SwapBackupPointerRequest, context: Context
    ) -> store_pb.SwapBackupPointerResponse:
        """Replaces or deletes a pointer; see the contract."""
        return await self._backups().swap_pointer(request)

    async def GrantBackupTransfers(
        self, request: store_pb.GrantBackupTransfersRequest, context: Context
    ) -> store_pb.GrantBackupTransfersResponse:
        """Signs URLs; see the contract."""
        return await self._backups().grant_transfers(request)

    def _backups(self) -> BackupAccess:
        if self._granted_backups is None:
            raise Unimplemented("this leaderboard grants no access to backups")
        return self._granted_backups
