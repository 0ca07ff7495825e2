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
from orchestrator.decisions.pool_size import (
    Demand,
    KillPod,
    Limits,
    PodView,
    PoolShort,
    RetirePod,
    StartPod,
    TerminatePod,
)
from orchestrator.decisions.resources import Capacity
from orchestrator.launchers.base import Launcher, ListedPod, NewPod
from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.pool import metrics, pod_lifecycle
from orchestrator.state import records
from orchestrator.state.clock import Clock
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.observation import Observation, observe
from orchestrator.state.pod_views import PodViews
from orchestrator.state.records import RUNNING, PodRecord, TournamentRecord
from orchestrator.state.runtime import RuntimeState, save_changes
from orchestrator.state.transitions import fail_tournament
from orchestrator.tournaments import lifecycle
from orchestrator.tournaments.completion import CompletionCheck
from orchestrator.tournaments.snapshots import ChampionSnapshots
from podrace.errors import InvalidArgument, PodraceError, Unavailable

SAVE_PERIOD_SECONDS = 2.0
"""So much progress is forgotten at most when the process is killed; pods tell it again."""
REST_FACTOR = 9.0
"""Times a look: so long the loop rests after it, however often it is woken, and leaves the time to the pods' calls."""
LONGEST_REST_SECONDS = 2.0
YIELD_SECONDS = 0.001
KILL_TIMEOUT_SECONDS = 5.0
"""Processes that were killed are gone within this time."""
STOPPED = "the mesh was stopped"

_log = structlog.get_logger(__name__)

Decide = Callable[[float, Capacity, Sequence[Demand], Sequence[PodView], Limits], tuple[list[pool_size.Action], str]]
"""As scale.decide."""


@dataclass(frozen=True)
class PoolRules:
    """How many pods there are to be, and what is to be done about it."""

    decide: Decide = pool_size.decide
    """Compares what is with what should be."""
    adapt: Callable[[Demand], Demand] = lambda demand_of: demand_of
    """What a demand becomes before it is looked at."""


LAUNCHED_POD_RULES = PoolRules()
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
        state: StateDatabase,
        runtime: RuntimeState,
        leaderboard: LeaderboardClient,
        launcher: Launcher,
        clock: Clock,
        *,
        limits: Limits,
        period_seconds: float,
        rules: PoolRules = LAUNCHED_POD_RULES,
        on_list: Callable[[Sequence[ListedPod]], None] = lambda _: None,
    ) -> None:
        self._state, self._runtime, self._launcher, self._clock = state, runtime, launcher, clock
        self._completion_check = CompletionCheck(state, runtime, leaderboard)
        self._snapshots = ChampionSnapshots(runtime, leaderboard)
        self._limits, self._period_seconds, self._rules = limits, period_seconds, rules
        self._on_list = on_list
        self._stopping = self._stopping_pods = False
        self._last_cycle = self._last_save = clock.monotonic()
        self._running: list[str] = []
        self._expired: frozenset[tuple[str, int]] = frozenset()
        # Monotonic times at which something was first noticed, by pod or tournament.
        self._absent: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._granted: Mapping[str, pool_size.PoolGrant] = {}
        self._views = PodViews(runtime, clock)
        self._recorded_actions: set[tuple[type[pool_size.Action], str]] = set()
        self._recorded_shortages: dict[str, set[str]] = {}
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._line = ""

    async def run(self) -> str:
        """Looks again and again, at least every period, until it is stopped."""
        while not self._stopping:
            begin = self._clock.monotonic()
            await self._cycle_safely()
            rest_seconds = min(LONGEST_REST_SECONDS, REST_FACTOR * (self._clock.monotonic() - begin))
            await asyncio.sleep(rest_seconds)
            await self._pause(max(0.0, self._period_seconds - rest_seconds))
        return "stopped"

    def stop(self) -> None:
        """Has `run` return after the look it is at."""
        self._stopping = True
        self._runtime.reconcile_requested.set()

    async def stop_all_pods(self, grace_seconds: float) -> None:
        """Ends every tournament and every pod: told to go, waited for, killed, swept."""
        self._stopping_pods = True
        self._limits = replace(self._limits, start_pods=False, terminate_seconds=0.0)
        await self._state.transact(lifecycle.cancel_running, STOPPED)
        self._runtime.changes.notify_all()
        for pod_id in await self._cancel_starts():
            await self._mark_gone(pod_id, "")
        if not await self._wait_until_no_pods(grace_seconds):
            self._limits = replace(self._limits, kill_seconds=0.0)
            await self._wait_until_no_pods(KILL_TIMEOUT_SECONDS)

    async def close(self) -> None:
        """Gives up what is being started, and writes down what must survive."""
        await self._cancel_starts()
        await self._snapshots.close()
        await save_changes(self._state, self._runtime)

    async def cycle(self) -> None:
        """Looks at everything once: observes, decides, acts."""
        now = self._clock.monotonic()
        self._runtime.running_time.add(self._running, now - self._last_cycle)
        self._last_cycle = now
        silence = await self._compare_pods(now)
        # Before one of them is ended by what is judged next.
        self._snapshots.take_due(now, self._running)
        await self._completion_check.check_all(now)
        await _yield_to_calls()
        observed = observe(self._runtime.cache)
        self._running = [found.tournament_id for found in observed.tournaments if found.state == RUNNING]
        self._runtime.running_time.set_running(self._running, now)
        capacity = silence or await self._capacity()
        if isinstance(capacity, str):
            # What is there can neither grow nor shrink; what it does goes on.
            for name in self._running:
                await self._record_short(name, capacity)
        else:
            await self._scale(now, capacity, observed)
        await _yield_to_calls()
        self._signal_expired_leases(now)
        if now - self._last_save >= SAVE_PERIOD_SECONDS:
            self._last_save = now
            await save_changes(self._state, self._runtime)
        metrics.measure(observed, self._runtime)

    # --- pods that came and went ------------------------------------------------------------------------------

    async def _compare_pods(self, now: float) -> str:
        """Compares the records with the launcher's list; returns why there is none."""
        try:
            listed = await self._launcher.list()
        except Unavailable as error:
            return error.message
        self._on_list(listed)
        recorded = list(self._runtime.cache.pods.values())
        running = {pod.pod_id for pod in listed}
        self._absent = {pod_id: self._absent.get(pod_id, now) for pod_id in self._runtime.cache.pods.keys() - running}
        absent_seconds = {pod_id: now - since for pod_id, since in self._absent.items()}
        found = pod_lifecycle.compare(recorded, listed, self._starts, absent_seconds)
        if found.appeared or found.unknown:
            await self._state.transact(pod_lifecycle.record_appearance, found)
        if found.gone:
            await asyncio.gather(
                *(self._mark_gone(pod.pod_id, self._launcher.last_log_line(pod.pod_id)) for pod in found.gone)
            )
            self._runtime.changes.notify_all()
        return ""

    async def _mark_gone(self, pod_id: str, last_log_line: str) -> None:
        """Records that a pod is gone, and frees what it held."""
        tournament_id, deaths = await self._state.transact(pod_lifecycle.mark_gone, pod_id, last_log_line)
        self._runtime.release_pod(pod_id)
        self._recorded_actions -= {(TerminatePod, pod_id), (KillPod, pod_id)}
        self._not_before[tournament_id] = self._clock.monotonic() + pool_size.backoff_seconds(deaths)

    # --- how many pods ----------------------------------------------------------------------------------------

    async def _capacity(self) -> Capacity | str:
        """What there is for pods, or why nobody knows."""
        try:
            return await self._launcher.capacity()
        except Unavailable as error:
            return error.message

    async def _scale(self, now: float, capacity: Capacity, observed: Observation) -> None:
        demands = [] if self._stopping_pods else self._demands(observed)
        views = self._views.views_of(now, observed.pods)
        actions, line = self._rules.decide(now, capacity, demands, views, self._limits)
        self._granted = pool_size.grant(now, capacity, demands)
        metrics.measure_wanted(metrics.wanted(demands, views, actions))
        if line != self._line:
            _log.debug(line)
            self._line = line
        short = {action.tournament_id for action in actions if isinstance(action, PoolShort)}
        self._recorded_shortages = {
            name: recorded for name, recorded in self._recorded_shortages.items() if name in short
        }
        # Together: many changes share a commit.
        await asyncio.gather(*map(self._act, actions))
        if any(isinstance(action, RetirePod) for action in actions):
            self._runtime.changes.notify_all()
            self._runtime.reconcile_requested.set()

    def _demands(self, observed: Observation) -> list[Demand]:
        return [
            self._rules.adapt(
                demand_of(
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
        if isinstance(action, StartPod):
            pod = await self._state.transact(pod_lifecycle.record_intent, action.tournament_id, action.reason)
            self._starts[pod.pod_id] = asyncio.create_task(self._start(pod))
        elif isinstance(action, RetirePod):
            await self._state.transact(pod_lifecycle.retire, action.pod_id, action.reason)
        elif isinstance(action, PoolShort):
            await self._record_short(action.tournament_id, action.reason)
        else:
            kill = isinstance(action, KillPod)
            word = "killed" if kill else "terminated"
            await self._record_once(action, action.pod_id, f"pod_{word}", f"{action.pod_id} is {word}: {action.reason}")
            if not kill:
                self._views.mark_terminated(action.pod_id)
            await self._launcher.stop(action.pod_id, kill=kill)

    async def _start(self, pod: NewPod) -> None:
        """Runs beside the loop: the first pod waits seconds for the nursery."""
        try:
            await self._launcher.start(pod)
        except InvalidArgument as error:
            await self._state.transact(fail_tournament, pod.tournament_id, error.message)
            await self._mark_gone(pod.pod_id, error.message)
        except PodraceError as error:
            await self._mark_gone(pod.pod_id, error.message)
        finally:
            del self._starts[pod.pod_id]
            self._runtime.reconcile_requested.set()
            self._runtime.changes.notify_all()

    async def _cancel_starts(self) -> list[str]:
        """Waits for no pod that is being started; returns their names."""
        starts = dict(self._starts)
        for task in starts.values():
            task.cancel()
        await asyncio.gather(*starts.values(), return_exceptions=True)
        return list(starts)

    async def _record_short(self, tournament_id: str, reason: str) -> None:
        """Records why a pool is short, unless the same, but for its numbers, was said since it is."""
        recorded = self._recorded_shortages.setdefault(tournament_id, set())
        words = re.sub(r"[\d.]+", "#", reason)
        if words not in recorded:
            recorded.add(words)
            await self._state.transact(record_pool_event, "pool_short", tournament_id, reason)

    async def _record_once(self, action: pool_size.Action, name: str, kind: str, message: str) -> None:
        """Records an event unless the same is going on still."""
        if (type(action), name) in self._recorded_actions:
            return
        self._recorded_actions.add((type(action), name))
        await self._state.transact(record_pool_event, kind, name, message)

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
            await asyncio.wait_for(self._runtime.reconcile_requested.wait(), seconds)
        self._runtime.reconcile_requested.clear()

    async def _wait_until_no_pods(self, seconds: float) -> bool:
        """Looks again and again until there is no pod any more, at most for so long; says whether there is none."""
        deadline = self._clock.monotonic() + seconds
        while True:
            await self._cycle_safely()
            if not self._starts and not self._runtime.cache.pods:
                return True
            if self._clock.monotonic() >= deadline:
                return False
            await self._pause(min(self._period_seconds, seconds))

    def _signal_expired_leases(self, now: float) -> None:
        expired = self._runtime.leases.expired(now)
        if late := expired - self._expired:
            metrics.EXPIRED.inc(len(late))
            self._runtime.changes.notify_all()
        self._expired = expired


async def _yield_to_calls() -> None:
    """Lets calls be answered that came meanwhile: a look at thousands of pods takes long."""
    # What is asleep for no time at all goes on before the loop has looked who calls.
    await asyncio.sleep(YIELD_SECONDS)


def demand_of(
    tournament: TournamentRecord, *, evaluating: bool, not_before: float, granted: pool_size.PoolGrant | None = None
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


def record_pool_event(transaction: Transaction, kind: str, name: str, message: str) -> None:
    """Records an event about a pod or a tournament."""
    pod = records.find(transaction, PodRecord, name)
    transaction.record(kind, message, tournament_id=pod.tournament_id if pod else name, pod_id=name if pod else "")
