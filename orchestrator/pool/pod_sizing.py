"""Lets the pod of the incumbent grow and shrink; the rules are in `decisions.pod_sizes`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from orchestrator.decisions import pod_sizes
from orchestrator.decisions.fair_share import PoolGrant
from orchestrator.decisions.pod_sizes import ChangeHistory, Promise, Room, SizedPod, SizeLimits, limits_of
from orchestrator.decisions.pool_size import PodView
from orchestrator.decisions.resources import Capacity
from orchestrator.launchers.base import NewPod
from orchestrator.pool import resizes
from orchestrator.state import records
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
    views = sizing.counted(views)                       # for the decision about the number of pods
    for pod in await sizing.begin_changes(now, capacity, views, granted):
        await launcher.start(pod)
    """

    def __init__(self, state: StateDatabase, runtime: RuntimeState) -> None:
        self._state, self._runtime = state, runtime
        self._limits: Mapping[str, SizeLimits] = {}
        self._resizes: Mapping[str, Sequence[ResizeRecord]] = {}
        self._reasons: dict[str, str] = {}

    async def observe(self, observed: Observation) -> None:
        """Reads the resizes of the tournaments in training whose pods may have several sizes."""
        pods = {one.tournament_id: one.spec.pod for one in observed.tournaments}
        found = {name: limits_of(pod) for name, pod in pods.items() if name in observed.training}
        self._limits = {name: limits for name, limits in found.items() if limits is not None}
        self._resizes = {name: await self._state.transact(resizes.abandon_failed, name) for name in self._limits}

    def counted(self, views: Sequence[PodView]) -> Sequence[PodView]:
        """Returns the views. While both run, a new pod counts only the cores that it adds to the old one."""
        new = {one.pod_id: one for of_one in self._resizes.values() for one in of_one if one.under_way}
        if not new:
            return views
        staying = {view.pod_id: view.units for view in views if view.drained_since is None}
        return [
            replace(view, units=max(0, view.units - staying.get(new[view.pod_id].predecessor_id, 0)))
            if view.pod_id in new
            else view
            for view in views
        ]

    async def begin_changes(
        self, now: float, capacity: Capacity, views: Sequence[PodView], granted: Mapping[str, PoolGrant]
    ) -> list[NewPod]:
        """Decides about each tournament, and records the changes.

        Args:
            now: Monotonic time.
            capacity: What the machine or cluster has.
            views: All pods, from `counted`.
            granted: Sizes that the pools may have.

        Returns:
            The pods to start.
        """
        begun = []
        for name, limits in self._limits.items():
            incumbent = self._runtime.incumbents.get(name)
            if incumbent is None or name not in granted:
                continue
            own = [view for view in views if view.tournament_id == name and view.drained_since is None]
            spare = granted[name].pods - sum(view.units for view in own)
            largest = max((node.cores for node in capacity.unoccupied.nodes), default=0.0)
            memory, shared = capacity.available_memory_bytes, capacity.free is None
            room = Room(max(0, spare) * limits.cores, memory, shared=shared, largest_cores=largest)
            promise = await self._promise(incumbent)
            pods = [self._sized(view) for view in own]
            change, reason = pod_sizes.decide(promise, pods, room, limits, self._history(name, now))
            # The numbers in a reason change all the time.
            if self._reasons.get(name) != (pattern := re.sub(r"[\d.]+", "#", reason)):
                self._reasons[name] = pattern
                _log.debug("size of the incumbent's pod", tournament_id=name, reason=reason)
            if change:
                pod = await self._state.transact(resizes.begin, name, change, promise.scores)
                begun += [pod] if pod else []
        return begun

    async def _promise(self, incumbent: Incumbent) -> Promise:
        newest = await self._state.transact(records.find, AgentRecord, incumbent.agent_id)
        trial = newest.trial if newest else None
        return Promise(incumbent.agent_id, incumbent.improving, incumbent.scores, incumbent.reason, trial)

    def _history(self, tournament_id: str, now: float) -> ChangeHistory:
        found = self._resizes[tournament_id]
        done = [one for one in found if one.phase == ResizePhase.DONE]
        return ChangeHistory(
            under_way=any(one.under_way for one in found),
            last_scores=max((one.scores for one in found), default=None),
            gap_seconds=[one.gap_seconds for one in done],
            running_seconds=self._runtime.running_time.seconds(tournament_id, now),
        )

    def _sized(self, view: PodView) -> SizedPod:
        lease = self._runtime.leases.latest_of_pod(view.pod_id)
        trains = lease is not None and lease.trains
        score = lease.progress.score if lease and trains and lease.progress.HasField("score") else None
        agent_id = lease.work_id if lease and trains else ""
        agent = self._runtime.cache.works.get(agent_id)
        trial = agent.trial if isinstance(agent, AgentRecord) else None
        return SizedPod(view.pod_id, view.reserved.cores, agent_id, score, view.start_time, trial)
