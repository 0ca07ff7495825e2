"""Runs continuous training: watches the data, runs a tournament for each version, and compares the champions.

Every step is recorded in the journal when it is done, and can be repeated until then: tournaments and evaluations have
fixed names, so requesting them twice returns the same ones. A mesh runs only while there is work to do.
"""

import asyncio
import contextlib
import time
import tomllib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from podrace.cli import session
from podrace.cli.continuous.champion_files import CHAMPION, deliver
from podrace.cli.continuous.dataset import DIGEST_CHARACTERS, DatasetVersion, discard, folder_of, take_version
from podrace.cli.continuous.decisions import Poller, PollResult, decide_champion, is_new
from podrace.cli.continuous.journal import (
    FAILED,
    FIRST,
    KEPT,
    REPLACED,
    SKIPPED,
    Journal,
    JournalEntry,
    PinnedVersion,
    ScoredAgent,
    VersionRun,
)
from podrace.cli.continuous.scores import read_champion, scores_of
from podrace.cli.continuous.source import Source
from podrace.cli.continuous.spec import OPTIONS_FILE, bind_version, spec_of_version
from podrace.cli.results.report import make_report
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings
from podrace.client import Client
from podrace.client.follow import TournamentView, follow_to_end, wait_for_pods_to_exit
from podrace.errors import Aborted, Cancelled, FailedPrecondition, InvalidArgument, NotFound, PodraceError
from podrace.mesh.home import Folders
from podrace.mesh.home_lock import Use
from podrace.tasks import cancel_all, first_finished, wait_at_most
from podrace.tournament.v1.tournament_pb2 import (
    TOURNAMENT_STATE_CANCELLED,
    TOURNAMENT_STATE_COMPLETED,
    TOURNAMENT_STATE_FAILED,
    Tournament,
    TournamentSpec,
)

SETTLE_SECONDS = 2.0
"""Longest time until the next poll after the data has changed."""
RETRY_SECONDS = 10.0
"""Delay before a failed step is retried."""
PODS_EXIT_SECONDS = 30.0
"""Time limit for the pods of a cancelled tournament to exit."""
STOP_REASON = "continuous training was stopped"


@dataclass(frozen=True)
class TrainingPlan:
    """What to train on and where to record it."""

    spec: TournamentSpec
    """Resolved specification whose options name the reference."""
    reference: str
    """The watched data, as written in the specification."""
    poll_seconds: float
    """Time between two polls."""
    folder: Path
    """Folder of this training, with its journal and versions."""

    @property
    def versions(self) -> Path:
        """Folder of the copied versions."""
        return self.folder / "versions"


class UnusableVersionError(PodraceError):
    """A version cannot produce a champion, and retrying would not help."""


class Controller:
    """Keeps a champion up to date.

    with interrupts.polite() as stop:
        await Controller(settings, plan, source, journal, interrupts, stop, notify=print).run()
    """

    def __init__(
        self,
        settings: Settings,
        plan: TrainingPlan,
        source: Source,
        journal: Journal,
        interrupts: Interrupts,
        stop: asyncio.Event,
        *,
        notify: Callable[[str], None],
        draw: Callable[[TournamentView], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        deliver: Callable[..., Coroutine[Any, Any, None]] = deliver,
    ) -> None:
        """Creates a controller, which `run` starts.

        Args:
            settings: Options of the command, which name the mesh.
            plan: What to train on.
            source: The watched data.
            journal: The journal; the caller holds the lock of its folder.
            interrupts: Interrupts of the command.
            stop: When it is set, the running tournament is cancelled, and `run` returns.
            notify: Receives lines for the user.
            draw: Shows the running tournament.
            clock: Returns seconds since the epoch.
            deliver: Makes a new champion available to policy servers; see champion_files.
        """
        self._settings, self._plan, self._source, self._journal = settings, plan, source, journal
        self._interrupts, self._stop, self._notify, self._draw, self._clock = interrupts, stop, notify, draw, clock
        self._arrived, self._deliver = asyncio.Event(), deliver
        self._failed_here: set[str] = set()
        self._troubles: dict[str, str] = {}
        self._copying = False

    async def run(self) -> None:
        """Runs until `stop` is set."""
        watching, working = asyncio.create_task(self._watch()), asyncio.create_task(self._work())
        try:
            # Both tasks return only after `stop` is set. An exception before that is a bug.
            await asyncio.wait((watching, working), return_when=asyncio.FIRST_EXCEPTION)
            for task in (watching, working):
                if task.done():
                    task.result()
        finally:
            await cancel_all(watching, working)

    # --- the data -------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        poller = Poller()
        while not self._stop.is_set():
            soon = False
            try:
                soon = await self._poll(poller)
            except Cancelled:
                return
            except PodraceError as error:
                self._note("watch", error.message)
            else:
                self._note("watch", "")
            await self._pause(min(self._plan.poll_seconds, SETTLE_SECONDS) if soon else self._plan.poll_seconds)

    async def _poll(self, poller: Poller) -> bool:
        """Polls the data and takes a new version; returns whether to poll again soon."""
        signature = await asyncio.to_thread(self._source.signature)
        result = poller.observe(signature)
        if result is PollResult.LATER and not signature:
            raise NotFound(f"{self._plan.reference}: there is no data at the moment")
        if result is not PollResult.READ:
            return result is PollResult.SOON
        self._copying = True
        try:
            with contextlib.suppress(Aborted):
                version = await asyncio.to_thread(
                    take_version, self._source, self._plan.versions, cancelled=self._stop.is_set
                )
                self._take_in(version)
                poller.mark_read(signature)
        finally:
            self._copying = False
        self._tidy()
        return False

    def _take_in(self, version: DatasetVersion) -> None:
        """Queues a version for training; it replaces a version that is already waiting."""
        state = self._journal.state
        decided = {one.digest for one in state.history if one.verdict != FAILED} | self._failed_here
        taken = {one.digest for one in (state.work and state.work.version, state.pending) if one}
        late, new = state.pending, is_new(version.digest, decided=decided, taken=taken)
        if new:
            pinned = PinnedVersion(version.digest, str(version.path), self._clock())
            self._notify(f"new version {_short(version.digest)}")
            self._journal.change(pending=pinned, history=(*state.history, *self._skipped(late, version.digest)))
            self._arrived.set()
        elif late and late.digest != version.digest:
            self._journal.change(pending=None, history=(*state.history, *self._skipped(late, version.digest)))

    def _skipped(self, late: PinnedVersion | None, digest: str) -> list[JournalEntry]:
        if late is None:
            return []
        reason = f"version {_short(digest)} arrived before its tournament started"
        self._notify(f"version {_short(late.digest)} is skipped: {reason}")
        return [JournalEntry(late.digest, late.arrive_time, self._clock(), SKIPPED, reason)]

    def _tidy(self) -> None:
        """Deletes unused copies; keeps those of the current, waiting, last trained and champion's versions."""
        if self._copying:
            return  # the journal does not yet mention the new copy
        state = self._journal.state
        trained = [one.digest for one in state.history if one.number]
        kept = {state.champion_version, *trained[-1:]}
        kept |= {one.digest for one in (state.work and state.work.version, state.pending) if one}
        places = {folder_of(self._plan.versions, digest) for digest in kept if digest}
        for place in self._plan.versions.iterdir():
            if place not in places:
                discard(place)

    # --- tournaments ----------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while not self._stop.is_set():
            state = self._journal.state
            if state.work is None and state.pending is None:
                self._arrived.clear()
                await _first(self._arrived.wait(), self._stop.wait())
                continue
            try:
                await self._step()
            except PodraceError as error:
                self._note("work", error.message)
                await self._pause(RETRY_SECONDS)
            else:
                self._note("work", "")

    async def _step(self) -> None:
        """Starts with the waiting version if there is no current one, and trains on the current version."""
        state = self._journal.state
        if state.work is None and state.pending is not None:
            number = 1 + max((one.number for one in state.history), default=0)
            ancestor = state.champion.agent_id if state.champion else ""
            self._journal.change(pending=None, work=VersionRun(number, state.pending, ancestor))
        try:
            await self._do()
        except UnusableVersionError as error:
            self._fail(error.message)

    async def _do(self) -> None:
        """Continues with the current version from its last recorded step."""
        work = self._work_now()
        if not Path(work.version.path).exists():
            raise UnusableVersionError(f"its copy {work.version.path} does not exist any more")
        opened = session.open_client(self._settings, Use.TRAIN, self._interrupts, notify=self._notify)
        async with opened as client:
            tournament = await self._tournament(client, work)
            if tournament is not None and not self._stop.is_set():
                await self._compare(client, self._work_now(), tournament)

    async def _tournament(self, client: Client, work: VersionRun) -> Tournament | None:
        """Returns the tournament of a version after it has ended; None if `stop` was set before."""
        try:
            tournament = await self._begin(client, work)
        except InvalidArgument as error:
            raise UnusableVersionError(error.message) from None
        if work.challenger is None and not _has_ended(tournament):
            view = TournamentView(tournament)
            await follow_to_end(client, view, draw=self._draw, stop=self._stop, stop_reason=STOP_REASON)
            tournament = view.tournament
            if self._stop.is_set() and tournament.state != TOURNAMENT_STATE_COMPLETED:
                await wait_for_pods_to_exit(client, view, deadline_seconds=PODS_EXIT_SECONDS)
                return None
        if tournament.state == TOURNAMENT_STATE_FAILED:
            raise UnusableVersionError(f"tournament {tournament.tournament_id} failed: {tournament.reason}")
        if not tournament.champion_manifest_digest:
            raise UnusableVersionError(f"tournament {tournament.tournament_id} ended before any agent was scored")
        if work.challenger is None:
            best = await read_champion(client, tournament)
            self._journal.change(work=replace(self._work_now(), challenger=best))
            self._notify(f"{tournament.tournament_id} has ended: {tournament.reason}")
        return tournament

    async def _begin(self, client: Client, work: VersionRun) -> Tournament:
        """Creates the tournament of a version, or finds it and resumes it if it was cancelled."""
        state = self._journal.state
        name = f"{state.name}-{state.watch_id}-v{work.number}"
        # Found by name, newest first, because the tournament may have been created but not recorded.
        found = next((one for one in await client.list_tournaments() if one.spec.name == name), None)
        if found is None:
            spec = spec_of_version(
                self._bound(work), tournament_name=name, number=work.number, ancestor_agent_id=work.ancestor_agent_id
            )
            found = await client.create_tournament(spec, request_id=name)
            seeded = f", from the champion {work.ancestor_agent_id}" if work.ancestor_agent_id else ""
            self._notify(f"version {_short(work.version.digest)}: tournament {found.tournament_id}{seeded}")
        elif found.state == TOURNAMENT_STATE_CANCELLED and work.challenger is None:
            self._notify(f"resuming {found.tournament_id}, which was cancelled: {found.reason}")
            found = await client.resume_tournament(found.tournament_id)
        if work.tournament_id != found.tournament_id:
            self._journal.change(work=replace(work, tournament_id=found.tournament_id))
        return found

    def _bound(self, work: VersionRun) -> TournamentSpec:
        path = Path(work.version.path)
        try:
            options = tomllib.loads((path / OPTIONS_FILE).read_text())
        except (FileNotFoundError, NotADirectoryError):
            options = {}
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"{path / OPTIONS_FILE}: not valid TOML: {error}") from None
        return bind_version(self._plan.spec, self._plan.reference, path, options)

    # --- which agent is champion --------------------------------------------------------------------------------------

    async def _compare(self, client: Client, work: VersionRun, tournament: Tournament) -> None:
        """Scores challenger and champion on the new validation slice and records the decision."""
        state, challenger = self._journal.state, work.challenger
        assert challenger is not None
        scoring = asyncio.create_task(scores_of(client, tournament, challenger, state.champion))
        if not await _first(scoring, self._stop.wait()):
            return
        (new, why_not), (old, incumbent_failure) = scoring.result()
        if new is None:
            raise UnusableVersionError(f"the best of {tournament.tournament_id} could not be scored: {why_not}")
        if tournament.spec.reports and not await _first(self._report(client, tournament), self._stop.wait()):
            return
        decision = decide_champion(new, old, incumbent_failure=incumbent_failure)
        challenger = replace(challenger, score=new)
        if decision.replaces:
            # Before it is recorded, so that it is repeated if this process is killed meanwhile.
            target = self._plan.folder / CHAMPION
            delivery = asyncio.create_task(self._deliver(tournament, challenger, target, self._notify))
            if not await _first(delivery, self._stop.wait()):
                return
            delivery.result()
        incumbent = replace(state.champion, score=old) if state.champion else None
        verdict = KEPT if not decision.replaces else REPLACED if incumbent else FIRST
        entry = self._entry(work, verdict, decision.reason, challenger, incumbent)
        entry = replace(entry, difference=decision.difference, standard_error=decision.standard_error)
        champion = challenger if decision.replaces else incumbent
        scored = champion if champion and champion.score else state.champion
        version = work.version.digest if champion and champion.score else state.champion_version
        history = (*self._journal.state.history, entry)
        self._journal.change(work=None, champion=scored, champion_version=version, history=history)
        whose = f"{challenger.agent_id} {'becomes' if decision.replaces else 'does not become'} champion"
        self._notify(f"version {_short(work.version.digest)}: {whose}: {decision.reason}")
        self._tidy()

    async def _report(self, client: Client, tournament: Tournament) -> None:
        """Writes the same report as `podrace train`. The comparison does not depend on it."""
        folder = Folders.of(self._settings.home).tournament(tournament.tournament_id)
        try:
            orchestrator = self._settings.orchestrator
            await make_report(client, tournament, folder, orchestrator=orchestrator, notify=self._notify)
        except PodraceError as error:
            self._notify(f"no report of {tournament.tournament_id}: {error.message}")

    def _fail(self, reason: str) -> None:
        """Records that a version failed; the champion stays."""
        work, state = self._work_now(), self._journal.state
        self._failed_here.add(work.version.digest)
        entry = self._entry(work, FAILED, reason, work.challenger, None)
        self._journal.change(work=None, history=(*state.history, entry))
        self._notify(f"version {_short(work.version.digest)} failed: {reason}")
        self._tidy()

    def _entry(
        self, work: VersionRun, verdict: str, reason: str, challenger: ScoredAgent | None, incumbent: ScoredAgent | None
    ) -> JournalEntry:
        return JournalEntry(
            digest=work.version.digest,
            arrive_time=work.version.arrive_time,
            decide_time=self._clock(),
            verdict=verdict,
            reason=reason,
            number=work.number,
            tournament_id=work.tournament_id,
            challenger=challenger,
            incumbent=incumbent,
        )

    def _work_now(self) -> VersionRun:
        work = self._journal.state.work
        assert work is not None
        return work

    def _note(self, where: str, trouble: str) -> None:
        """Records a problem, or its end if `trouble` is empty, and reports each change once."""
        if self._troubles.get(where, "") != trouble:
            self._troubles[where] = trouble
            self._notify(f"{where}: {trouble or 'recovered'}")
        # If the disk is full, the problem is reported only in the log.
        with contextlib.suppress(FailedPrecondition):
            self._journal.change(trouble="; ".join(filter(None, self._troubles.values())))

    async def _pause(self, seconds: float) -> None:
        await wait_at_most(self._stop.wait(), seconds)


async def _first(wanted: Coroutine[Any, Any, Any] | asyncio.Task[Any], other: Coroutine[Any, Any, Any]) -> bool:
    """Waits for the first of two awaitables, cancels the other one, and returns whether `wanted` is done."""
    task = asyncio.ensure_future(wanted)
    return task in await first_finished(task, other)


def _has_ended(tournament: Tournament) -> bool:
    return tournament.state in (TOURNAMENT_STATE_COMPLETED, TOURNAMENT_STATE_FAILED)


def _short(digest: str) -> str:
    return digest[:DIGEST_CHARACTERS]
