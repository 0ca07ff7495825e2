"""Plays the pods of a tournament while the pod of its incumbent changes its size; a test ends pods at any step.

A pod does what the leader of a real pod does, one step at a time, with a real checkpoint store: it acquires an
assignment, claims the agent, and publishes once per step until it is asked to stop.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resize_platforms import Platform

from orchestrator.state import resize_records
from orchestrator.state.resize_records import ResizePhase
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, fetch_latest, publish
from podrace.errors import FailedPrecondition
from podrace.leaderboard.v1.leaderboard_pb2 import Incumbent
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec, ObjectiveSpec, PodSpec

STEPS = ("listed", "preparing", "ready", "published", "given_back", "exited", "taken", "claimed", "trained")
"""Steps of a change, in order, each seen from the party that makes it."""
RUN_SECONDS = 1000.0
MOST_ROUNDS = 60


@dataclass(frozen=True)
class Publication:
    """A checkpoint that the store accepted."""

    pod_id: str
    agent_id: str
    lease_epoch: int
    environment_steps: int


@dataclass
class PlayedPod:
    """A pod as the orchestrator and the store notice it."""

    world: "World"
    pod_id: str
    assignment: pb.Assignment | None = None
    done: set[str] = field(default_factory=set)
    """Steps of STEPS that it has made."""
    prepared: str = ""
    acts: bool = True
    drained: bool = False

    async def act(self) -> None:
        """Makes one step."""
        if self.drained:
            await self._exit()
        elif self.assignment is None:
            await self._acquire()
        elif "published" in self.done:
            await self.world.mesh.complete(self.assignment, pb.OUTCOME_DRAINED)
            self.done.add("given_back")
            self.assignment, self.drained = None, True
        elif "claimed" not in self.done:
            self._claim(self.assignment)
        else:
            await self._train(self.assignment)

    async def _exit(self) -> None:
        await self.world.platform.end(self.pod_id, killed=False)
        self.done.add("exited")
        del self.world.playing[self.pod_id]

    async def _acquire(self) -> None:
        request = pb.AcquireAssignmentRequest(pod_id=self.pod_id, incarnation="run", prepared_agent_id=self.prepared)
        answer = await self.world.mesh.call("AcquireAssignment", request)
        if self.prepared:
            self.done.add("ready")
        kind = answer.WhichOneof("answer")
        if kind == "assignment":
            self.assignment, self.prepared = answer.assignment, ""
            self.done = {"taken"}
        elif kind == "prepare":
            self.done.add("preparing")
            self.prepared = answer.prepare.train.agent_id
        elif kind == "drain":
            self.drained = True

    def _claim(self, assignment: pb.Assignment) -> None:
        try:
            claim(self.world.store, assignment.train.agent_id, assignment.lease_epoch)
            self.done.add("claimed")
        except FailedPrecondition:
            self._lose()

    async def _train(self, assignment: pb.Assignment) -> None:
        try:
            answer = await self.world.mesh.renew(assignment, training_age_seconds=0.5)
            self.publish()
        except FailedPrecondition:
            self._lose()
            return
        if answer.directive == pb.DIRECTIVE_DRAIN:
            self.done.add("published")

    def publish(self) -> None:
        """Publishes the next step of the agent; refused by the store if another pod has claimed it."""
        assert self.assignment is not None
        agent_id, epoch, store = self.assignment.train.agent_id, self.assignment.lease_epoch, self.world.store
        latest = fetch_latest(store, agent_id)
        steps = latest.manifest.environment_steps + 1 if latest else 1
        publish(store, agent_id, epoch, {"policy": b""}, Manifest(environment_steps=steps))
        self.world.publications.append(Publication(self.pod_id, agent_id, epoch, steps))
        self.done.add("trained")

    def _lose(self) -> None:
        self.assignment, self.done, self.drained = None, {"lost"}, False


class World:
    """A tournament whose incumbent is the first agent.

    world = World(platform, open_mesh, spec, folder)
    async with world:
        await world.begin("grow")
        await world.reach("ready")
        await world.end(world.old, killed=True)
        await world.settle()
    """

    def __init__(
        self, platform: Platform, open_mesh: Callable[..., Any], spec: Callable[..., Any], folder: Path
    ) -> None:
        self.platform, self.store = platform, FolderStore(folder / "store")
        self._open_mesh, self._spec, self._opened = open_mesh, spec, contextlib.AsyncExitStack()
        self.mesh: Any = None
        self.name = self.old = self.new = ""
        self.playing: dict[str, PlayedPod] = {}
        self.all_pods: dict[str, PlayedPod] = {}
        self.publications: list[Publication] = []
        self._scores = 6

    async def __aenter__(self) -> "World":
        await self._open()
        pods = self.platform.pods
        pod = PodSpec(cores=1.0, memory_bytes=1 << 28, maximum_cores=2.0, improving_share=1.0)
        objective = ObjectiveSpec(environment_steps=1_000_000_000)
        # Otherwise the first pod begins grown, see orchestrator.decisions.pod_sizes.first_pods.
        evolution = EvolutionSpec(founder_share=0.0)
        spec = self._spec(pod=pod, objective=objective, maximum_pods=pods, evolution=evolution)
        self.name = await self.mesh.create(spec)
        await self.round()
        self.mesh.runtime.running_time.add([self.name], RUN_SECONDS)
        self.old = f"{self.name}-p0"
        while len({one.agent_id for one in self.publications}) < pods:
            await self.round()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()
        await self.platform.close()

    async def _open(self) -> None:
        self.mesh = await self._opened.enter_async_context(self._open_mesh(launcher=self.platform.launcher))
        if self.platform.own_capacity:
            del self.mesh.launcher.capacity

    async def restart(self) -> None:
        """Kills the orchestrator, as far as its state goes, and starts it again."""
        await self._opened.aclose()
        await self._open()
        self.mesh.runtime.running_time.add([self.name], RUN_SECONDS)

    @property
    def agent_id(self) -> str:
        """The incumbent."""
        return f"{self.name}-a0"

    async def round(self, until: Callable[[], bool] = lambda: False, seconds: float = 1.0) -> bool:
        """Runs a cycle, and lets each pod make one step; returns whether `until` held, which ends the round."""
        await self.platform.prepare()
        await self.mesh.cycle(seconds)
        listed = {pod.pod_id for pod in await self.mesh.launcher.list()}
        for gone in self.playing.keys() - listed:
            del self.playing[gone]
        for pod_id in sorted(listed - self.all_pods.keys()):
            self.playing[pod_id] = self.all_pods[pod_id] = PlayedPod(self, pod_id)
        if until():
            return True
        for pod in list(self.playing.values()):
            if pod.acts and pod.pod_id in self.playing:
                await pod.act()
                if until():
                    return True
        return False

    async def begin(self, direction: str) -> None:
        """Lets the incumbent improve or stall; `grow` begins from pods of one core, `shrink` from a grown one."""
        if direction == "shrink":
            await self.begin("grow")
            await self.reach("trained")
            while self.old in self.playing:
                await self.round()
            self.old = self.new
        self._scores += 4
        self.mesh.leaderboard.incumbent = Incumbent(
            agent_id=self.agent_id, improving=direction == "grow", scores=self._scores, reason="set by the test"
        )
        earlier = len(await self.resizes())
        for _ in range(MOST_ROUNDS):
            begun = (await self.resizes())[earlier:]
            if begun:
                self.new = begun[0].pod_id
                return
            await self.platform.prepare()
            await self.mesh.cycle(1.0)
        raise AssertionError("no change begins")

    async def resizes(self) -> list[resize_records.ResizeRecord]:
        found: list[resize_records.ResizeRecord] = await self.mesh.state.transact(
            resize_records.of_tournament, self.name
        )
        return found

    async def reach(self, step: str) -> None:
        """Continues until a step of the change is made, and not further."""
        by = self.old if step in ("published", "given_back", "exited") else self.new

        def made() -> bool:
            pod = self.all_pods.get(by)
            return pod is not None and (step == "listed" or step in pod.done)

        for _ in range(MOST_ROUNDS):
            if made() or await self.round(made):
                return
        raise AssertionError(f"{step} is not reached")

    async def end(self, pod_id: str) -> None:
        """Kills a pod, if it is still there."""
        if pod_id in self.playing:
            del self.playing[pod_id]
            await self.platform.end(pod_id, killed=True)

    async def settle(self) -> PlayedPod:
        """Continues until no change is under way and the incumbent is trained; returns the pod that trains it."""
        begin = len(self.publications)
        for _ in range(MOST_ROUNDS):
            await self.round()
            trained = [one for one in self.publications[begin:] if one.agent_id == self.agent_id]
            holders = [pod for pod in self.playing.values() if pod.acts and self._holds(pod)]
            under_way = any(one.under_way for one in await self.resizes())
            if len(holders) == 1 and not under_way and [one.pod_id for one in trained[-2:]] == [holders[0].pod_id] * 2:
                return holders[0]
        raise AssertionError("the incumbent is not trained any more")

    def _holds(self, pod: PlayedPod) -> bool:
        return pod.assignment is not None and pod.assignment.train.agent_id == self.agent_id

    async def phases(self) -> list[ResizePhase]:
        return [one.phase for one in await self.resizes()]

    def check_publications(self) -> None:
        """Checks that no agent was trained by two pods: epochs rise, each has one pod, and no step is lost."""
        for agent_id in {one.agent_id for one in self.publications}:
            own = [one for one in self.publications if one.agent_id == agent_id]
            epochs = [one.lease_epoch for one in own]
            assert epochs == sorted(epochs), "a pod published after the next one had claimed the agent"
            holders = {(one.lease_epoch, one.pod_id) for one in own}
            assert len(holders) == len(set(epochs)), "two pods trained an agent under one lease epoch"
            assert [one.environment_steps for one in own] == list(range(1, len(own) + 1)), "steps were lost"
