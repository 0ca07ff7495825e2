"""Runs the reconcile loop: observes tournaments and pods, decides, and acts.

Every cycle starts from the current state of the database, the launcher's list and the capacity. Nothing depends on
having received an event, so the process can be killed at any moment.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import structlog

from orchestrator.decisions import fair_share, pool_size
from orchestrator.decisions.fair_share import Demand, PoolGrant
from orchestrator.decisions.pod_silence import SilenceLimits
from orchestrator.decisions.pool_size import Limits, PoolShort, RetirePod, StartPod
from orchestrator.decisions.quotas import NO_QUOTAS, Quotas
from orchestrator.decisions.resources import Capacity, Resources
from orchestrator.launchers.base import Launcher, ListedPod
from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.pool import metrics, pod_lifecycle
from orchestrator.pool.demands import demands_of
from orchestrator.pool.pod_sizing import PodSizing
from orchestrator.pool.pod_starts import PodStarts
from orchestrator.pool.pod_stops import PodStops
from orchestrator.pool.pool_rules import LAUNCHED_POD_RULES, PoolRules
from orchestrator.pool.silent_pods import NEVER_SILENT, SilentPods
from orchestrator.pool.storage_watch import StorageWatch
from orchestrator.state.clock import Clock
from orchestrator.state.database import StateDatabase
from orchestrator.state.observation import Observation, observe
from orchestrator.state.pod_views import PodViews
from orchestrator.state.records import RUNNING
from orchestrator.state.runtime import RuntimeState, save_changes
from orchestrator.tournaments import lifecycle
from orchestrator.tournaments.completion import CompletionCheck
from orchestrator.tournaments.deletion import Deletion
from orchestrator.tournaments.registration import Registration
from orchestrator.tournaments.snapshots import ChampionSnapshots
from podrace.database.leadership import CheckLeads, only_replica
from podrace.errors import PodraceError, ResourceExhausted, Unavailable
from podrace.tasks import wait_at_most

SAVE_PERIOD_SECONDS = 2.0
"""Progress that is lost at most when the process is killed; pods report it again."""
REST_FACTOR = 9.0
"""After a cycle of t seconds the loop rests for this many times t, even if another cycle is requested, so that most of
the time is left for the calls of pods."""
LONGEST_REST_SECONDS = 2.0
YIELD_SECONDS = 0.001
KILL_TIMEOUT_SECONDS = 5.0
"""Time within which killed processes have stopped."""
STOPPED = "the mesh was stopped"
_log = structlog.get_logger(__name__)

NO_CAPACITY = Capacity(Resources(0.0, 0, 0), 0)
TICK_SECONDS = 1.0


class Reconciler:
    """Brings the pods in line with the tournaments.

    running = asyncio.create_task(reconciler.run())
    ...
    reconciler.stop()
    await running
    await reconciler.stop_all_pods(grace_seconds=20)  # only if the pods end with the service
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
        silence: SilenceLimits = NEVER_SILENT,
        on_list: Callable[[Sequence[ListedPod]], None] = lambda _: None,
        deletion: Deletion | None = None,
        quotas: Quotas = NO_QUOTAS,
        registration: Registration | None = None,
        check_leads: CheckLeads = only_replica,
        find_shortage: Callable[[], str] = lambda: "",
    ) -> None:
        self._state, self._runtime, self._launcher, self._clock = state, runtime, launcher, clock
        self._completion_check = CompletionCheck(state, runtime, leaderboard)
        self._snapshots = ChampionSnapshots(runtime, leaderboard)
        self._storage_watch, self._sizing = StorageWatch(state, runtime, find_shortage), PodSizing(state, runtime)
        self._silent_pods = SilentPods(runtime, silence)
        self._limits, self._period_seconds, self._rules = limits, period_seconds, rules
        self._on_list, self._deletion, self._quotas = on_list, deletion, quotas
        self._registration = registration
        self._stopping = self._stopping_pods = False
        self._last_cycle = self._last_save = clock.monotonic()
        self._running, self._clocked = list[str](), list[str]()
        self._expired: frozenset[tuple[str, int]] = frozenset()
        # Monotonic times at which something was first noticed, by pod or tournament.
        self._absent: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._granted: Mapping[str, PoolGrant] | None = None
        self._views = PodViews(runtime, clock)
        self._stops = PodStops(state, launcher, self._views, check_leads)
        self._recorded_shortages: dict[str, set[str]] = {}
        self._starts = PodStarts(state, launcher, self._mark_gone, self._mark_refused, self._request_cycle, check_leads)
        self._line = ""

    @property
    def starting(self) -> Collection[str]:
        """Ids of the pods that are being started."""
        return self._starts.pod_ids

    async def run(self) -> str:
        """Runs cycles, at least one per period, until it is stopped."""
        ticking = asyncio.create_task(self._tick())
        try:
            await self._run_cycles()
        finally:
            ticking.cancel()
        return "stopped"

    async def _tick(self) -> None:
        while True:
            self._runtime.contacts.tick(self._clock.monotonic())
            await asyncio.sleep(TICK_SECONDS)

    async def _run_cycles(self) -> None:
        while not self._stopping:
            begin = self._clock.monotonic()
            await self._cycle_safely()
            rest_seconds = min(LONGEST_REST_SECONDS, REST_FACTOR * (self._clock.monotonic() - begin))
            await asyncio.sleep(rest_seconds)
            await self._pause(max(0.0, self._period_seconds - rest_seconds))

    def stop(self) -> None:
        """Makes `run` return after the current cycle."""
        self._stopping = True
        self._runtime.reconcile_requested.set()

    async def stop_all_pods(self, grace_seconds: float) -> None:
        """Cancels all tournaments and stops all pods; those still running after `grace_seconds` are killed."""
        self._stopping_pods = True
        self._limits = replace(self._limits, start_pods=False, terminate_seconds=0.0)
        try:
            await self._state.transact(lifecycle.cancel_running, STOPPED)
        except ResourceExhausted as error:
            # The next run cancels them, and pods exit when they notice by their lifeline that the mesh has stopped.
            _log.error("the tournaments could not be cancelled", error=error.message)
            return
        self._runtime.changes.notify_all()
        for pod_id in await self._starts.cancel():
            await self._mark_gone(pod_id, "")
        if not await self._wait_until_no_pods(grace_seconds):
            self._limits = replace(self._limits, kill_seconds=0.0)
            await self._wait_until_no_pods(KILL_TIMEOUT_SECONDS)

    async def close(self, *, save: bool = True) -> None:
        """Cancels starting pods, snapshots and deletions, and saves what must survive.

        Args:
            save: False if another replica does that now.
        """
        await self._starts.cancel()
        await self._snapshots.close()
        if self._deletion:
            await self._deletion.close()
        if self._registration:
            await self._registration.close()
        if save:
            try:
                await save_changes(self._state, self._runtime)
            except ResourceExhausted as error:
                _log.error("the latest progress could not be saved", error=error.message)

    async def cycle(self) -> None:
        """Runs one cycle: observes, decides, acts."""
        now = self._clock.monotonic()
        self._count_running_time(now)
        await self._state.probe()
        if self._state.fault:
            await self._cycle_without_database(now)
            return
        await self._stops.record_missing()
        if self._registration:
            self._registration.register_missing()
        unavailable = await self._compare_pods(now)
        # Before the completion check, which may end one of these tournaments.
        self._snapshots.take_due(now, self._running)
        await self._completion_check.check_all(now)
        await _yield_to_calls()
        observed = observe(self._runtime.cache)
        self._running = [found.tournament_id for found in observed.tournaments if found.state == RUNNING]
        await self._storage_watch.check(now, self._running)
        self._clocked = [name for name in self._running if not self._runtime.pause_reason(name)]
        self._runtime.running_time.set_running(self._clocked, now)
        capacity = unavailable or await self._capacity()
        if isinstance(capacity, str):
            # The pools keep their size, and the pods continue.
            for name in self._running:
                await self._record_short(name, capacity)
        else:
            await self._scale(now, capacity, observed)
        if not unavailable:
            for silent in self._silent_pods.due(now):
                await self._act(silent)
        await _yield_to_calls()
        self._signal_expired_leases(now)
        if now - self._last_save >= SAVE_PERIOD_SECONDS:
            self._last_save = now
            await save_changes(self._state, self._runtime)
        if self._deletion:
            self._deletion.begin_due()
        metrics.measure(observed, self._runtime)

    def _count_running_time(self, now: float) -> None:
        # A tournament may have ended and been deleted since the last cycle.
        known = self._runtime.cache.tournaments
        self._running = [name for name in self._running if name in known]
        self._clocked = [name for name in self._clocked if name in known]
        self._runtime.running_time.add(self._clocked, now - self._last_cycle)
        self._last_cycle = now

    async def _cycle_without_database(self, now: float) -> None:
        """Pauses all tournaments and stops pods that hang; all other decisions would have to be recorded."""
        observed = observe(self._runtime.cache)
        running = [found.tournament_id for found in observed.tournaments if found.state == RUNNING]
        self._clocked = []
        self._runtime.running_time.set_running([], now)
        self._storage_watch.pause_all(self._state.fault, running)
        metrics.measure(observed, self._runtime, writable=False)
        self._signal_expired_leases(now)
        listed = await self._silent_pods.list(self._launcher, now)
        views = self._views.views_of(now, observed.pods)
        decided, _ = self._rules.decide(now, NO_CAPACITY, [], views, self._limits)
        await self._stops.stop_listed(chain(decided, self._silent_pods.due(now)), listed)

    # --- appeared and gone pods -------------------------------------------------------------------------------

    async def _compare_pods(self, now: float) -> str:
        """Compares the records with the launcher's list; returns why there is no list, or an empty text."""
        try:
            listed = await self._silent_pods.list(self._launcher, now)
        except Unavailable as error:
            return error.message
        self._on_list(listed)
        recorded = list(self._runtime.cache.pods.values())
        running = {pod.pod_id for pod in listed}
        self._absent = {pod_id: self._absent.get(pod_id, now) for pod_id in self._runtime.cache.pods.keys() - running}
        absent_seconds = {pod_id: now - since for pod_id, since in self._absent.items()}
        unmanaged = self._runtime.unmanaged or frozenset()
        found = pod_lifecycle.compare(recorded, listed, self.starting, absent_seconds, unmanaged)
        if found.appeared or found.unknown or found.removed:
            unmanaged |= await self._state.transact(pod_lifecycle.record_appearance, found)
        self._runtime.unmanaged = unmanaged & running
        if found.gone:
            await asyncio.gather(
                *(self._mark_gone(pod.pod_id, self._launcher.last_log_line(pod.pod_id)) for pod in found.gone)
            )
            self._runtime.changes.notify_all()
        return ""

    async def _mark_gone(self, pod_id: str, last_log_line: str) -> None:
        """Records that a pod is gone, and releases its leases."""
        death = await self._state.transact(pod_lifecycle.mark_gone, pod_id, last_log_line)
        self._runtime.release_pod(pod_id)
        if death.failed_agent:
            self._runtime.counters.count_failure(death.tournament_id)
        # Until a silent pod is killed, more time passes than crashes need to be kept apart.
        deaths = 0 if self._stops.forget(pod_id) else death.in_row
        self._delay_starts(death.tournament_id, pool_size.backoff_seconds(deaths))

    async def _mark_refused(self, pod_id: str, reason: str, pause_seconds: float) -> None:
        """Records that the platform could not start a pod now; the tournament is not to blame."""
        tournament_id = await self._state.transact(pod_lifecycle.mark_not_started, pod_id, reason)
        self._runtime.release_pod(pod_id)
        self._delay_starts(tournament_id, pause_seconds)

    def _delay_starts(self, tournament_id: str, seconds: float) -> None:
        if seconds > 0.0:
            start = self._clock.monotonic() + seconds
            self._not_before[tournament_id] = max(start, self._not_before.get(tournament_id, 0.0))

    def _request_cycle(self) -> None:
        self._runtime.reconcile_requested.set()
        self._runtime.changes.notify_all()

    # --- pool sizes -------------------------------------------------------------------------------------------

    async def _capacity(self) -> Capacity | str:
        """Returns the capacity for pods, or why it is unknown."""
        try:
            return await self._launcher.capacity()
        except Unavailable as error:
            return error.message

    async def _scale(self, now: float, capacity: Capacity, observed: Observation) -> None:
        await self._sizing.observe(observed)
        all_pods, sizing = self._views.views_of(now, observed.pods), self._sizing
        if self._granted is None:
            self._granted = pool_size.granted_before(sizing.counted(all_pods))
        demands = [] if self._stopping_pods else self._demands(observed, self._granted)
        granted = self._granted = fair_share.grant(now, capacity, demands)
        changing = self._limits.start_pods and not capacity.closed
        # Started at once: they are recorded, whatever fails below.
        self._starts.begin(await sizing.give_back(now, capacity, all_pods, granted) if changing else [])
        views = sizing.counted(all_pods)
        actions, line = self._rules.decide(now, capacity, demands, views, self._limits)
        metrics.measure_wanted(metrics.wanted(demands, views, actions))
        actions = sizing.grow_first_pods(actions, capacity, observed)
        if line != self._line:
            _log.debug(line)
            self._line = line
        short = {action.tournament_id for action in actions if isinstance(action, PoolShort)}
        self._recorded_shortages = {name: self._recorded_shortages.get(name, set()) for name in short}
        # Concurrently, so that many changes share one commit.
        await asyncio.gather(*map(self._act, actions))
        self._starts.begin(await sizing.begin_changes(now, capacity, views, granted, actions) if changing else [])
        if any(isinstance(action, RetirePod) for action in actions):
            self._runtime.changes.notify_all()
            self._runtime.reconcile_requested.set()

    def _demands(self, observed: Observation, granted: Mapping[str, PoolGrant]) -> list[Demand]:
        found = demands_of(observed, self._runtime.cache, self._quotas, self._not_before, granted)
        return [self._rules.adapt(demand) for demand in found]

    async def _act(self, action: pool_size.Action) -> None:
        if isinstance(action, StartPod):
            pod = await self._state.transact(pod_lifecycle.record_start, action)
            self._starts.begin([pod])
        elif isinstance(action, RetirePod):
            await self._state.transact(pod_lifecycle.retire, action.pod_id, action.reason)
        elif isinstance(action, PoolShort):
            await self._record_short(action.tournament_id, action.reason)
        else:
            await self._stops.stop(action)

    async def _record_short(self, tournament_id: str, reason: str) -> None:
        """Records why a pool is short, once per reason while it is short; the numbers in a reason do not matter."""
        recorded = self._recorded_shortages.setdefault(tournament_id, set())
        pattern = re.sub(r"[\d.]+", "#", reason)
        if pattern not in recorded:
            recorded.add(pattern)
            await self._state.transact(pod_lifecycle.record_pool_event, "pool_short", tournament_id, reason)

    # --- the loop ---------------------------------------------------------------------------------------------

    async def _cycle_safely(self) -> None:
        try:
            with metrics.RECONCILE.time():
                await self.cycle()
        except PodraceError as error:
            _log.error("the reconcile cycle failed; retrying", error=error.message)
        except Exception:
            # A bug must not stop the loop: the next cycle starts from the current state, and pods continue to train.
            _log.exception("the reconcile cycle failed; retrying")

    async def _pause(self, seconds: float) -> None:
        await wait_at_most(self._runtime.reconcile_requested.wait(), seconds)
        self._runtime.reconcile_requested.clear()

    async def _wait_until_no_pods(self, seconds: float) -> bool:
        """Runs cycles until there are no pods, for at most `seconds`; returns whether there are none."""
        deadline = self._clock.monotonic() + seconds
        while True:
            await self._cycle_safely()
            if not self.starting and not self._runtime.cache.pods:
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
    """Lets pending calls run in between, because a cycle over thousands of pods takes long."""
    # sleep(0) would resume before the event loop has polled its sockets.
    await asyncio.sleep(YIELD_SECONDS)
