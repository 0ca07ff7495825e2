"""Lets the pod of the incumbent grow and shrink; the rules are in `decisions.pod_sizes`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import structlog

from orchestrator.decisions.fair_share import PoolGrant
from orchestrator.decisions.pod_sizes import changes, first_pods
from orchestrator.decisions.pod_sizes.changes import ChangeHistory, Promise, Room, SizedPod, SizeLimits, limits_of
from orchestrator.decisions.pool_size import (
    Action,
    PodView,
    RetirePod,
    StartPod,
    count_units,
    settled_memory_bytes,
    unreserved,
)
from orchestrator.decisions.resources import Capacity
from orchestrator.launchers.base import NewPod
from orchestrator.pool import resizes
from orchestrator.state import records, resize_records
from orchestrator.state.database import StateDatabase
from orchestrator.state.observation import Observation
from orchestrator.state.records import AgentRecord
from orchestrator.state.resize_records import ResizePhase, ResizeRecord
from orchestrator.state.runtime import RuntimeState
from podrace.leaderboard.v1.leaderboard_pb2 import Incumbent

_log = structlog.get_logger(__name__)


class PodSizing:
    """Changes the sizes of pods, in each reconcile cycle.

    await sizing.observe(observed)
    new_pods = await sizing.give_back(now, capacity, views, granted)
    views = sizing.counted(views)                       # for the decision about the number of pods
    new_pods += await sizing.begin_changes(now, capacity, views, granted, actions)
    for pod in new_pods:
        await launcher.start(pod)
    """

    def __init__(self, state: StateDatabase, runtime: RuntimeState) -> None:
        self._state, self._runtime = state, runtime
        self._limits: Mapping[str, SizeLimits] = {}
        self._resizes: Mapping[str, Sequence[ResizeRecord]] = {}
        self._reasons: dict[str, str] = {}
        # Units of pods that were recorded after the views were made, by id.
        self._new_units: dict[str, int] = {}

    async def observe(self, observed: Observation) -> None:
        """Reads the resizes of the tournaments in training whose pods may have several sizes."""
        specs = {one.tournament_id: one.spec for one in observed.tournaments if one.tournament_id in observed.training}
        found = {name: limits_of(spec) for name, spec in specs.items()}
        self._limits = {name: limits for name, limits in found.items() if limits is not None}
        self._resizes = {name: await self._state.transact(resizes.abandon_failed, name) for name in self._limits}
        self._new_units.clear()

    def counted(self, views: Sequence[PodView]) -> Sequence[PodView]:
        """Returns the views. While both run, a new pod counts only the cores that it adds to the old one."""
        under_way = [one for of_one in self._resizes.values() for one in of_one if one.under_way]
        if not under_way:
            return views
        new, old = ({getattr(one, key): one for one in under_way} for key in ("pod_id", "predecessor_id"))
        staying = self._new_units | {view.pod_id: view.units for view in views if view.drained_since is None}

        def count(view: PodView) -> PodView:
            if view.pod_id in new:
                return replace(view, units=max(0, view.units - staying.get(new[view.pod_id].predecessor_id, 0)))
            successor = staying.get(old[view.pod_id].pod_id) if view.pod_id in old else None
            return replace(view, remaining_units=successor) if successor and successor < view.units else view

        return [count(view) for view in views]

    async def give_back(
        self, now: float, capacity: Capacity, views: Sequence[PodView], granted: Mapping[str, PoolGrant]
    ) -> list[NewPod]:
        """Lets grown pods shrink of tournaments with more pods than their share, before the pool stops any.

        Args:
            now: Monotonic time.
            capacity: What the machine or cluster has.
            views: All pods.
            granted: Sizes that the pools may have.

        Returns:
            The pods to start.
        """
        counts = count_units(view for view in self.counted(views) if view.drained_since is None)
        beyond = [name for name in self._limits if name in granted and 0 < granted[name].pods < counts[name]]
        begun = [await self._begin(name, now, capacity, views, granted[name]) for name in beyond]
        return [pod for pod in begun if pod]

    def grow_first_pods(self, actions: Sequence[Action], capacity: Capacity, observed: Observation) -> list[Action]:
        """Returns the actions, with a larger first pod for tournaments that begin with their incumbent."""
        specs = {one.tournament_id: one.spec for one in observed.tournaments if not one.next_pod}
        limits = {name: limit for name, limit in self._limits.items() if name in specs}
        limits = {name: limit for name, limit in limits.items() if first_pods.has_one_founder(specs[name])}
        return first_pods.grow_first_pods(actions, limits, (capacity.free or capacity.unoccupied).nodes)

    async def begin_changes(
        self,
        now: float,
        capacity: Capacity,
        views: Sequence[PodView],
        granted: Mapping[str, PoolGrant],
        actions: Sequence[Action],
    ) -> list[NewPod]:
        """Decides about each tournament whose pool keeps its pods, and records the changes.

        Args:
            now: Monotonic time.
            capacity: What the machine or cluster has.
            views: All pods, from `counted`.
            granted: Sizes that the pools may have.
            actions: What the pools do in this cycle. What other tournaments lack is no reason to keep sizes.

        Returns:
            The pods to start.
        """
        owners = {view.pod_id: view.tournament_id for view in views}
        changing = {one.tournament_id for one in actions if isinstance(one, StartPod)}
        changing |= {owners.get(one.pod_id, "") for one in actions if isinstance(one, RetirePod)}
        names = [name for name in self._limits if name in granted and name not in changing]
        begun = [await self._begin(name, now, capacity, views, granted[name]) for name in names]
        return [pod for pod in begun if pod]

    async def _begin(
        self, name: str, now: float, capacity: Capacity, views: Sequence[PodView], granted: PoolGrant
    ) -> NewPod | None:
        """Decides about one tournament; returns the pod to start, if any."""
        limits, incumbent = self._limits[name], self._runtime.incumbents.get(name)
        if incumbent is None:
            return None
        own = [view for view in views if view.tournament_id == name and view.drained_since is None]
        spare = granted.pods - sum(view.units for view in own)
        room = _room(spare * limits.cores, now, capacity, views)
        promise = await self._promise(incumbent)
        pods = [self._sized(view, capacity.places.get(view.pod_id)) for view in own]
        change, reason = changes.decide(promise, pods, room, limits, self._history(name, now))
        # The numbers in a reason change all the time.
        if self._reasons.get(name) != (pattern := re.sub(r"[\d.]+", "#", reason)):
            self._reasons[name] = pattern
            _log.debug("size of the incumbent's pod", tournament_id=name, reason=reason)
        if change is None:
            return None
        pod = await self._state.transact(resizes.begin, name, change, promise.scores)
        if pod:
            self._new_units[pod.pod_id] = round(change.cores / limits.cores)
            self._resizes = {**self._resizes, name: await self._state.transact(resize_records.of_tournament, name)}
        return pod

    async def _promise(self, incumbent: Incumbent) -> Promise:
        newest = await self._state.transact(records.find, AgentRecord, incumbent.agent_id)
        trial = newest.trial if newest else None
        return Promise(incumbent.agent_id, incumbent.improving, incumbent.scores, incumbent.reason, trial)

    def _history(self, tournament_id: str, now: float) -> ChangeHistory:
        found = self._resizes[tournament_id]
        abandoned = takewhile(lambda one: one.phase == ResizePhase.ABANDONED, reversed(found))
        handed_over = [one for one in found if one.phase in (ResizePhase.HANDED_OVER, ResizePhase.DONE)]
        return ChangeHistory(
            under_way=any(one.under_way for one in found),
            last_scores=max((one.scores for one in found), default=None),
            gap_seconds=[one.gap_seconds for one in handed_over],
            running_seconds=self._runtime.running_time.seconds(tournament_id, now),
            abandoned_in_row=sum(1 for _ in abandoned),
        )

    def _sized(self, view: PodView, node: int | None) -> SizedPod:
        lease = self._runtime.leases.latest_of_pod(view.pod_id)
        trains = lease is not None and lease.trains
        score = lease.progress.score if lease and trains and lease.progress.HasField("score") else None
        agent_id = lease.work_id if lease and trains else ""
        agent = self._runtime.cache.works.get(agent_id)
        trial = agent.trial if isinstance(agent, AgentRecord) else None
        evaluates = lease is not None and not lease.trains
        return SizedPod(view.pod_id, view.reserved.cores, agent_id, score, view.start_time, trial, evaluates, node)


def _room(cores: float, now: float, capacity: Capacity, views: Sequence[PodView]) -> Room:
    """Returns what a pod of another size may take of a machine or cluster, with these spare cores of its tournament."""
    largest = _largest_cores(capacity)
    if capacity.free is not None:
        return Room(cores, capacity.available_memory_bytes, shared=False, largest_cores=largest, free=capacity.free)
    left = unreserved(capacity, [view for view in views if view.drained_since is None]).total.memory_bytes
    available = settled_memory_bytes(now, capacity, views)
    return Room(cores, available, shared=True, largest_cores=largest, unreserved_bytes=left)


def _largest_cores(capacity: Capacity) -> float:
    """Returns the cores of the largest pod that any machine or node could hold."""
    return max((node.cores for node in capacity.unoccupied.nodes), default=0.0)
