"""Owns the loop that makes what is into what should be: observe, decide, act.

Level-triggered: every look begins anew from the database, the launcher's list and the machine. Nothing depends on
having seen an event, so that it can be killed at any moment.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from orchestrator.decisions import pool_size
from orchestrator.decisions.pool_size import Demand, Kill, Limits, PodView, Retire, Short, Start, Terminate
from orchestrator.decisions.resources import Capacity
from orchestrator.launchers.base import Launcher, ListedPod, NewPod
from orchestrator.leaderboard_client import Board
from orchestrator.pool import metrics, pod_lifecycle
from orchestrator.state import records
from orchestrator.state.clock import Clock
from orchestrator.state.database import State, Transaction
from orchestrator.state.observation import Observed, observe
from orchestrator.state.pod_views import Views
from orchestrator.state.records import RUNNING, PodRecord, TournamentRecord
from orchestrator.state.runtime import Live, write_down
from orchestrator.state.transitions import fail_tournament
from orchestrator.tournaments import lifecycle
from orchestrator.tournaments.completion import Referee
from orchestrator.tournaments.snapshots import ChampionSnapshots
from podrace.errors import InvalidArgument, PodraceError, Unavailable

NOTES_SECONDS = 2.0
"""So much progress is forgotten at most when the process is killed; pods tell it again."""
RESTS = 9.0
"""Times a look: so long the loop rests after it, however often it is woken, and leaves the time to the pods' calls."""
LONGEST_REST_SECONDS = 2.0
YIELD_SECONDS = 0.001
KILLED_SECONDS = 5.0
"""Processes that were killed are gone within this time."""
STOPPED = "the mesh was stopped"

_log = structlog.get_logger(__name__)

Decide = Callable[[float, Capacity, Sequence[Demand], Sequence[PodView], Limits], tuple[list[pool_size.Action], str]]
"""As scale.decide."""


@dataclass(frozen=True)
class Rules:
    """How many pods there are to be, and what is to be done about it."""

    decide: Decide = pool_size.decide
    """Compares what is with what should be."""
    adapt: Callable[[Demand], Demand] = lambda demand: demand
    """What a demand becomes before it is looked at."""


LAUNCHED = Rules()
"""For pods that are started here."""


class Reconciler:
    """Makes what is into what should be.

    running = asyncio.create_task(reconciler.run())
    ...
    reconciler.stop()
    await running
    await reconciler.dismiss(grace_seconds=20)  # only where the pods end with the service
    """

    def __init__(
        self,
        state: State,
        live: Live,
        board: Board,
        launcher: Launcher,
        clock: Clock,
        *,
        limits: Limits,
        period_seconds: float,
        rules: Rules = LAUNCHED,
        on_list: Callable[[Sequence[ListedPod]], None] = lambda _: None,
    ) -> None:
        self._state, self._live, self._launcher, self._clock = state, live, launcher, clock
        self._referee = Referee(state, live, board)
        self._snapshots = ChampionSnapshots(live, board)
        self._limits, self._period_seconds, self._rules = limits, period_seconds, rules
        self._on_list = on_list
        self._stopping = self._dismissing = False
        self._looked = self._noted = clock.monotonic()
        self._running: list[str] = []
        self._expired: frozenset[tuple[str, int]] = frozenset()
        # Monotonic times at which something was first noticed, by pod or tournament.
        self._absent: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._granted: Mapping[str, pool_size.Grant] = {}
        self._views = Views(live, clock)
        self._told: set[tuple[type[pool_size.Action], str]] = set()
        self._short: dict[str, set[str]] = {}
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._line = ""

    async def run(self) -> str:
        """Looks again and again, at least every period, until it is stopped."""
        while not self._stopping:
            begin = self._clock.monotonic()
            await self._cycle_safely()
            rest_seconds = min(LONGEST_REST_SECONDS, RESTS * (self._clock.monotonic() - begin))
            await asyncio.sleep(rest_seconds)
            await self._pause(max(0.0, self._period_seconds - rest_seconds))
        return "stopped"

    def stop(self) -> None:
        """Has `run` return after the look it is at."""
        self._stopping = True
        self._live.wake.set()

    async def dismiss(self, grace_seconds: float) -> None:
        """Ends every tournament and every pod: told to go, waited for, killed, swept."""
        self._dismissing = True
        self._limits = replace(self._limits, start_pods=False, terminate_seconds=0.0)
        await self._state.transact(lifecycle.cancel_running, STOPPED)
        self._live.bell.ring()
        for pod_id in await self._give_up_starts():
            await self._bury(pod_id, "")
        if not await self._until_none(grace_seconds):
            self._limits = replace(self._limits, kill_seconds=0.0)
            await self._until_none(KILLED_SECONDS)

    async def close(self) -> None:
        """Gives up what is being started, and writes down what must survive."""
        await self._give_up_starts()
        await self._snapshots.close()
        await write_down(self._state, self._live)

    async def cycle(self) -> None:
        """Looks at everything once: observes, decides, acts."""
        now = self._clock.monotonic()
        self._live.run(self._running, now - self._looked)
        self._looked = now
        silence = await self._settle_pods(now)
        # Before one of them is ended by what is judged next.
        self._snapshots.take_due(now, self._running)
        await self._referee.judge(now)
        await _let_others_go_first()
        observed = observe(self._live.roster)
        self._running = [found.tournament_id for found in observed.tournaments if found.state == RUNNING]
        self._live.runs_on(self._running, now)
        capacity = silence or await self._capacity()
        if isinstance(capacity, str):
            # What is there can neither grow nor shrink; what it does goes on.
            for name in self._running:
                await self._tell_short(name, capacity)
        else:
            await self._scale(now, capacity, observed)
        await _let_others_go_first()
        self._ring_if_leases_expired(now)
        if now - self._noted >= NOTES_SECONDS:
            self._noted = now
            await write_down(self._state, self._live)
        metrics.measure(observed, self._live)

    # --- pods that came and went ------------------------------------------------------------------------------

    async def _settle_pods(self, now: float) -> str:
        """Compares the records with the launcher's list; returns why there is none."""
        try:
            listed = await self._launcher.list()
        except Unavailable as error:
            return error.message
        self._on_list(listed)
        recorded = list(self._live.roster.pods.values())
        running = {pod.pod_id for pod in listed}
        self._absent = {pod_id: self._absent.get(pod_id, now) for pod_id in self._live.roster.pods.keys() - running}
        absent_seconds = {pod_id: now - since for pod_id, since in self._absent.items()}
        found = pod_lifecycle.census(recorded, listed, self._starts, absent_seconds)
        if found.appeared or found.unknown:
            await self._state.transact(pod_lifecycle.note_appearance, found)
        if found.gone:
            await asyncio.gather(*(self._bury(pod.pod_id, self._launcher.last_words(pod.pod_id)) for pod in found.gone))
            self._live.bell.ring()
        return ""

    async def _bury(self, pod_id: str, last_words: str) -> None:
        """Records that a pod is gone, and frees what it held."""
        tournament_id, deaths = await self._state.transact(pod_lifecycle.bury, pod_id, last_words)
        self._live.release_pod(pod_id)
        self._told -= {(Terminate, pod_id), (Kill, pod_id)}
        self._not_before[tournament_id] = self._clock.monotonic() + pool_size.backoff_seconds(deaths)

    # --- how many pods ----------------------------------------------------------------------------------------

    async def _capacity(self) -> Capacity | str:
        """What there is for pods, or why nobody knows."""
        try:
            return await self._launcher.capacity()
        except Unavailable as error:
            return error.message

    async def _scale(self, now: float, capacity: Capacity, observed: Observed) -> None:
        demands = [] if self._dismissing else self._demands(observed)
        views = self._views.of(now, observed.pods)
        actions, line = self._rules.decide(now, capacity, demands, views, self._limits)
        self._granted = pool_size.grant(now, capacity, demands)
        metrics.measure_wanted(metrics.wanted(demands, views, actions))
        if line != self._line:
            _log.debug(line)
            self._line = line
        short = {action.tournament_id for action in actions if isinstance(action, Short)}
        self._short = {name: said for name, said in self._short.items() if name in short}
        # Together: many changes share a commit.
        await asyncio.gather(*map(self._act, actions))
        if any(isinstance(action, Retire) for action in actions):
            self._live.bell.ring()
            self._live.wake.set()

    def _demands(self, observed: Observed) -> list[Demand]:
        return [
            self._rules.adapt(
                demand(
                    tournament,
                    evaluating=tournament.tournament_id in observed.evaluating,
                    not_before=self._not_before.get(tournament.tournament_id, 0.0),
                    granted=self._granted.get(tournament.tournament_id),
                )
            )
            for tournament in observed.tournaments
            if tournament.state == RUNNING or tournament.tournament_id in observed.evaluating
        ]

    async def _act(self, action: pool_size.Action) -> None:
        if isinstance(action, Start):
            pod = await self._state.transact(pod_lifecycle.intend, action.tournament_id, action.reason)
            self._starts[pod.pod_id] = asyncio.create_task(self._start(pod))
        elif isinstance(action, Retire):
            await self._state.transact(pod_lifecycle.retire, action.pod_id, action.reason)
        elif isinstance(action, Short):
            await self._tell_short(action.tournament_id, action.reason)
        else:
            kill = isinstance(action, Kill)
            word = "killed" if kill else "terminated"
            await self._tell_once(action, action.pod_id, f"pod_{word}", f"{action.pod_id} is {word}: {action.reason}")
            if not kill:
                self._views.note_terminated(action.pod_id)
            await self._launcher.stop(action.pod_id, kill=kill)

    async def _start(self, pod: NewPod) -> None:
        """Runs beside the loop: the first pod waits seconds for the nursery."""
        try:
            await self._launcher.start(pod)
        except InvalidArgument as error:
            await self._state.transact(fail_tournament, pod.tournament_id, error.message)
            await self._bury(pod.pod_id, error.message)
        except PodraceError as error:
            await self._bury(pod.pod_id, error.message)
        finally:
            del self._starts[pod.pod_id]
            self._live.wake.set()
            self._live.bell.ring()

    async def _give_up_starts(self) -> list[str]:
        """Waits for no pod that is being started; returns their names."""
        starts = dict(self._starts)
        for task in starts.values():
            task.cancel()
        await asyncio.gather(*starts.values(), return_exceptions=True)
        return list(starts)

    async def _tell_short(self, tournament_id: str, reason: str) -> None:
        """Records why a pool is short, unless the same, but for its numbers, was said since it is."""
        said = self._short.setdefault(tournament_id, set())
        words = re.sub(r"[\d.]+", "#", reason)
        if words not in said:
            said.add(words)
            await self._state.transact(tell, "pool_short", tournament_id, reason)

    async def _tell_once(self, action: pool_size.Action, name: str, kind: str, message: str) -> None:
        """Records an event unless the same is going on still."""
        if (type(action), name) in self._told:
            return
        self._told.add((type(action), name))
        await self._state.transact(tell, kind, name, message)

    # --- the rest ---------------------------------------------------------------------------------------------

    async def _cycle_safely(self) -> None:
        try:
            with metrics.RECONCILE.time():
                await self.cycle()
        except PodraceError as error:
            _log.error("could not reconcile; trying again", error=error.message)
        except Exception:
            # A defect; the next look starts afresh, and pods that train must not pay for it.
            _log.exception("could not reconcile; trying again")

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._live.wake.wait(), seconds)
        self._live.wake.clear()

    async def _until_none(self, seconds: float) -> bool:
        """Looks again and again until there is no pod any more, at most for so long; says whether there is none."""
        deadline = self._clock.monotonic() + seconds
        while True:
            await self._cycle_safely()
            if not self._starts and not self._live.roster.pods:
                return True
            if self._clock.monotonic() >= deadline:
                return False
            await self._pause(min(self._period_seconds, seconds))

    def _ring_if_leases_expired(self, now: float) -> None:
        expired = self._live.expired(now)
        if late := expired - self._expired:
            metrics.EXPIRED.inc(len(late))
            self._live.bell.ring()
        self._expired = expired


async def _let_others_go_first() -> None:
    """Lets calls be answered that came meanwhile: a look at thousands of pods takes long."""
    # What is asleep for no time at all goes on before the loop has looked who calls.
    await asyncio.sleep(YIELD_SECONDS)


def demand(
    tournament: TournamentRecord, *, evaluating: bool, not_before: float, granted: pool_size.Grant | None = None
) -> Demand:
    """What a tournament with work asks for: its pool, or a single pod for evaluations after its end."""
    pool = tournament.spec.pool
    running = tournament.state == RUNNING
    return Demand(
        tournament_id=tournament.tournament_id,
        pod=tournament.pod_resources,
        minimum_pods=max(pool.minimum_pods if running else 0, int(evaluating)),
        maximum_pods=(pool.maximum_pods if pool.HasField("maximum_pods") else None) if running else 1,
        not_before=not_before,
        step_pods=pool.step_pods if pool.HasField("step_pods") else None,
        cooldown_seconds=pool.cooldown_duration.ToNanoseconds() / 1e9,
        granted=granted,
    )


def tell(transaction: Transaction, kind: str, name: str, message: str) -> None:
    """Records an event about a pod or a tournament."""
    pod = records.find(transaction, PodRecord, name)
    transaction.record(kind, message, tournament_id=pod.tournament_id if pod else name, pod_id=name if pod else "")
