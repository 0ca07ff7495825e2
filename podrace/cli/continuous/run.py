"""Trains whenever there is a new version: watches, begins tournaments, compares their best with the champion.

Every step is written down when it is done and can be done again until then: tournaments and evaluations are named so
that asking for them twice gets the same ones. A mesh is up only while there is something to do.
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
from podrace.cli.continuous.dataset import DIGEST_CHARACTERS, Source, Version, discard, folder_of, take_version
from podrace.cli.continuous.decisions import Look, Looks, is_news, judge
from podrace.cli.continuous.scores import scores_of
from podrace.cli.continuous.spec import OPTIONS_FILE, bound, spec_of_version
from podrace.cli.continuous.state import FAILED, FIRST, KEPT, REPLACED, SKIPPED, Contestant, Diary, Entry, Pinned, Work
from podrace.cli.results.report import make_report
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings
from podrace.client import Client
from podrace.client.follow import TournamentView, follow_to_end, wait_for_pods_to_exit
from podrace.errors import Aborted, Cancelled, FailedPrecondition, InvalidArgument, NotFound, PodraceError
from podrace.mesh.home import Folders
from podrace.mesh.home_lock import Use
from podrace.tournament.v1.tournament_pb2 import (
    TOURNAMENT_STATE_CANCELLED,
    TOURNAMENT_STATE_COMPLETED,
    TOURNAMENT_STATE_FAILED,
    Tournament,
    TournamentSpec,
)

SETTLE_SECONDS = 2.0
"""The next look after one that showed something new comes this soon, if looks are rarer."""
RETRY_SECONDS = 10.0
"""Before what failed and may pass is tried again."""
PODS_GO_SECONDS = 30.0
STOP_REASON = "continuous training was stopped"


@dataclass(frozen=True)
class Plan:
    """What is to be done."""

    spec: TournamentSpec
    """Resolved; options name the reference."""
    reference: str
    """What is watched, as in the specification."""
    poll_seconds: float
    """Between two looks."""
    folder: Path
    """Of this training: its diary, its versions."""

    @property
    def versions(self) -> Path:
        """The copies."""
        return self.folder / "versions"


class _FruitlessError(PodraceError):
    """No champion comes of a version, however often it is tried."""


class Keeper:
    """Keeps a champion up to date.

    with interrupts.polite() as stop:
        await Keeper(settings, plan, source, diary, interrupts, stop, tell=print).run()
    """

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        source: Source,
        diary: Diary,
        interrupts: Interrupts,
        stop: asyncio.Event,
        *,
        tell: Callable[[str], None],
        draw: Callable[[TournamentView], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Does nothing yet.

        Args:
            settings: Which mesh.
            plan: What is to be done.
            source: Of the data.
            diary: What was done; its folder's lock is held.
            interrupts: Of the command.
            stop: When it is set, the tournament is stopped and kept, and `run` returns.
            tell: Takes lines for a person.
            draw: Shows a tournament that runs.
            clock: Seconds since the epoch.
        """
        self._settings, self._plan, self._source, self._diary = settings, plan, source, diary
        self._interrupts, self._stop, self._tell, self._draw, self._clock = interrupts, stop, tell, draw, clock
        self._arrived = asyncio.Event()
        self._failed_here: set[str] = set()
        self._troubles: dict[str, str] = {}
        self._copying = False

    async def run(self) -> None:
        """Goes on until it is stopped."""
        watching, working = asyncio.create_task(self._watch()), asyncio.create_task(self._work())
        try:
            # Neither ends before it is stopped, unless by a bug.
            await asyncio.wait((watching, working), return_when=asyncio.FIRST_EXCEPTION)
            for task in (watching, working):
                if task.done():
                    task.result()
        finally:
            for task in (watching, working):
                task.cancel()
            await asyncio.gather(watching, working, return_exceptions=True)

    # --- the data -------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        looks = Looks()
        while not self._stop.is_set():
            soon = False
            try:
                soon = await self._look(looks)
            except Cancelled:
                return
            except PodraceError as error:
                self._note("watch", error.message)
            else:
                self._note("watch", "")
            await self._pause(min(self._plan.poll_seconds, SETTLE_SECONDS) if soon else self._plan.poll_seconds)

    async def _look(self, looks: Looks) -> bool:
        """Looks once, and takes what is new; returns whether to look again soon."""
        signature = await asyncio.to_thread(self._source.look)
        look = looks.look(signature)
        if look is Look.LATER and not signature:
            raise NotFound(f"{self._plan.reference}: there is nothing at the moment")
        if look is not Look.READ:
            return look is Look.SOON
        self._copying = True
        try:
            with contextlib.suppress(Aborted):
                version = await asyncio.to_thread(
                    take_version, self._source, self._plan.versions, cancelled=self._stop.is_set
                )
                self._take_in(version)
                looks.read(signature)
        finally:
            self._copying = False
        self._tidy()
        return False

    def _take_in(self, version: Version) -> None:
        """Has a version wait for its turn, in the place of one that waits already."""
        memory = self._diary.memory
        decided = {one.digest for one in memory.history if one.verdict != FAILED} | self._failed_here
        taken = {one.digest for one in (memory.work and memory.work.version, memory.pending) if one}
        late, news = memory.pending, is_news(version.digest, decided=decided, taken=taken)
        if news:
            pinned = Pinned(version.digest, str(version.path), self._clock())
            self._tell(f"new version {_short(version.digest)}")
            self._diary.change(pending=pinned, history=(*memory.history, *self._skipped(late, version.digest)))
            self._arrived.set()
        elif late and late.digest != version.digest:
            self._diary.change(pending=None, history=(*memory.history, *self._skipped(late, version.digest)))

    def _skipped(self, late: Pinned | None, digest: str) -> list[Entry]:
        if late is None:
            return []
        reason = f"version {_short(digest)} came before it was its turn"
        self._tell(f"version {_short(late.digest)} is skipped: {reason}")
        return [Entry(late.digest, late.arrive_time, self._clock(), SKIPPED, reason)]

    def _tidy(self) -> None:
        """Removes the copies that nothing refers to: who is to train or was decided last, and the champion's, stay."""
        if self._copying:
            return  # what was copied is not written down yet
        memory = self._diary.memory
        trained = [one.digest for one in memory.history if one.number]
        kept = {memory.champion_version, *trained[-1:]}
        kept |= {one.digest for one in (memory.work and memory.work.version, memory.pending) if one}
        places = {folder_of(self._plan.versions, digest) for digest in kept if digest}
        for place in self._plan.versions.iterdir():
            if place not in places:
                discard(place)

    # --- tournaments ----------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while not self._stop.is_set():
            memory = self._diary.memory
            if memory.work is None and memory.pending is None:
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
        """Takes up the version that waits, if none is trained on, and goes on with it as far as it goes."""
        memory = self._diary.memory
        if memory.work is None and memory.pending is not None:
            number = 1 + max((one.number for one in memory.history), default=0)
            ancestor = memory.champion.agent_id if memory.champion else ""
            self._diary.change(pending=None, work=Work(number, memory.pending, ancestor))
        try:
            await self._do()
        except _FruitlessError as error:
            self._fail(error.message)

    async def _do(self) -> None:
        """Goes on with the version that is trained on, from wherever it stands."""
        work = self._work_now()
        if not Path(work.version.path).exists():
            raise _FruitlessError(f"its copy {work.version.path} is gone")
        opened = session.open_client(self._settings, Use.TRAIN, self._interrupts, notify=self._tell)
        async with opened as client:
            tournament = await self._tournament(client, work)
            if tournament is not None and not self._stop.is_set():
                await self._compare(client, self._work_now(), tournament)

    async def _tournament(self, client: Client, work: Work) -> Tournament | None:
        """The tournament of a version when it is over; None if that is not to be waited for."""
        try:
            tournament = await self._begin(client, work)
        except InvalidArgument as error:
            raise _FruitlessError(error.message) from None
        if work.challenger is None and not _is_over(tournament):
            view = TournamentView(tournament)
            await follow_to_end(client, view, draw=self._draw, stop=self._stop, stop_reason=STOP_REASON)
            tournament = view.tournament
            if self._stop.is_set() and tournament.state != TOURNAMENT_STATE_COMPLETED:
                await wait_for_pods_to_exit(client, view, deadline_seconds=PODS_GO_SECONDS)
                return None
        if tournament.state == TOURNAMENT_STATE_FAILED:
            raise _FruitlessError(f"tournament {tournament.tournament_id} failed: {tournament.reason}")
        if not tournament.champion_manifest_digest:
            raise _FruitlessError(f"tournament {tournament.tournament_id} ended before any agent was scored")
        if work.challenger is None:
            best = Contestant(tournament.best_agent_id, tournament.tournament_id, tournament.champion_manifest_digest)
            self._diary.change(work=replace(self._work_now(), challenger=best))
            self._tell(f"{tournament.tournament_id} is over: {tournament.reason}")
        return tournament

    async def _begin(self, client: Client, work: Work) -> Tournament:
        """Creates the tournament of a version, or finds it and has it go on."""
        memory = self._diary.memory
        name = f"{memory.name}-{memory.watch_id}-v{work.number}"
        # Newest first. Asked by name, because the answer to its creation may never have been written down.
        found = next((one for one in await client.list_tournaments() if one.spec.name == name), None)
        if found is None:
            spec = spec_of_version(
                self._bound(work), tournament_name=name, number=work.number, ancestor_agent_id=work.ancestor_agent_id
            )
            found = await client.create_tournament(spec, request_id=name)
            seeded = f", from the champion {work.ancestor_agent_id}" if work.ancestor_agent_id else ""
            self._tell(f"version {_short(work.version.digest)}: tournament {found.tournament_id}{seeded}")
        elif found.state == TOURNAMENT_STATE_CANCELLED and work.challenger is None:
            self._tell(f"{found.tournament_id} goes on; it had ended: {found.reason}")
            found = await client.resume_tournament(found.tournament_id)
        if work.tournament_id != found.tournament_id:
            self._diary.change(work=replace(work, tournament_id=found.tournament_id))
        return found

    def _bound(self, work: Work) -> TournamentSpec:
        path = Path(work.version.path)
        try:
            options = tomllib.loads((path / OPTIONS_FILE).read_text())
        except (FileNotFoundError, NotADirectoryError):
            options = {}
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"{path / OPTIONS_FILE}: not valid TOML: {error}") from None
        return bound(self._plan.spec, self._plan.reference, path, options)

    # --- who is champion ------------------------------------------------------------------------------------------

    async def _compare(self, client: Client, work: Work, tournament: Tournament) -> None:
        """Scores both on the new validation slice, and writes down who is champion from now on."""
        memory, challenger = self._diary.memory, work.challenger
        assert challenger is not None
        scoring = asyncio.create_task(scores_of(client, tournament, challenger, memory.champion))
        if not await _first(scoring, self._stop.wait()):
            return
        (new, why_not), (old, incumbent_failure) = scoring.result()
        if new is None:
            raise _FruitlessError(f"the best of {tournament.tournament_id} could not be scored: {why_not}")
        if tournament.spec.reports and not await _first(self._report(client, tournament), self._stop.wait()):
            return
        judgement = judge(new, old, incumbent_failure=incumbent_failure)
        challenger = replace(challenger, score=new)
        incumbent = replace(memory.champion, score=old) if memory.champion else None
        verdict = KEPT if not judgement.replaces else REPLACED if incumbent else FIRST
        entry = self._entry(work, verdict, judgement.reason, challenger, incumbent)
        entry = replace(entry, difference=judgement.difference, standard_error=judgement.standard_error)
        champion = challenger if judgement.replaces else incumbent
        scored = champion if champion and champion.score else memory.champion
        version = work.version.digest if champion and champion.score else memory.champion_version
        history = (*self._diary.memory.history, entry)
        self._diary.change(work=None, champion=scored, champion_version=version, history=history)
        whose = f"{challenger.agent_id} {'becomes' if judgement.replaces else 'does not become'} champion"
        self._tell(f"version {_short(work.version.digest)}: {whose}: {judgement.reason}")
        self._tidy()

    async def _report(self, client: Client, tournament: Tournament) -> None:
        """What `podrace train` leaves of a tournament; a comparison does not depend on it."""
        folder = Folders.of(self._settings.home).tournament(tournament.tournament_id)
        try:
            await make_report(client, tournament, folder, tell=self._tell)
        except PodraceError as error:
            self._tell(f"no report of {tournament.tournament_id}: {error.message}")

    def _fail(self, reason: str) -> None:
        """Gives a version up; the champion stays."""
        work, memory = self._work_now(), self._diary.memory
        self._failed_here.add(work.version.digest)
        entry = self._entry(work, FAILED, reason, work.challenger, None)
        self._diary.change(work=None, history=(*memory.history, entry))
        self._tell(f"version {_short(work.version.digest)} came to nothing: {reason}")
        self._tidy()

    def _entry(
        self, work: Work, verdict: str, reason: str, challenger: Contestant | None, incumbent: Contestant | None
    ) -> Entry:
        return Entry(
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

    def _work_now(self) -> Work:
        work = self._diary.memory.work
        assert work is not None
        return work

    def _note(self, where: str, trouble: str) -> None:
        """Notes what goes wrong, or that it does no longer; says so once."""
        if self._troubles.get(where, "") != trouble:
            self._troubles[where] = trouble
            self._tell(f"{where}: {trouble or 'well again'}")
        # A full disk is a trouble that only the log can tell of.
        with contextlib.suppress(FailedPrecondition):
            self._diary.change(trouble="; ".join(filter(None, self._troubles.values())))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)


async def _first(wanted: Coroutine[Any, Any, Any] | asyncio.Task[Any], other: Coroutine[Any, Any, Any]) -> bool:
    """Waits for the first of two, ends the other, and says whether what is wanted was done."""
    tasks = [asyncio.ensure_future(wanted), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_over(tournament: Tournament) -> bool:
    return tournament.state in (TOURNAMENT_STATE_COMPLETED, TOURNAMENT_STATE_FAILED)


def _short(digest: str) -> str:
    return digest[:DIGEST_CHARACTERS]
