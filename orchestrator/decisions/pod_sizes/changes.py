"""Decides when the pod of the incumbent grows or shrinks, and at the cost of which other pods. Pure functions.

Compute follows the marginal return: while the incumbent improves, a larger share of the cores works for it; while it
stalls, the cores go back to challengers. A change replaces one pod by another one of the other size.

Rules:
- One change at a time, and none for four scores of the incumbent after the last one, so that the effect of a change is
  visible before the next one; twice as many for each change in a row that was abandoned.
- The interruptions of all changes, as measured, stay below 2 % of the time that the tournament has been running.
- If the tournament has more cores than its share, a grown pod shrinks at once, whatever the last two rules say, so that
  the pool need not stop it. If such a change was abandoned, the pool stops it.
- A grown pod that trains another agent than the incumbent shrinks first: the incumbent was replaced.
- Sizes are multiples of `pod.cores` within the limits of the specification. Cores are only moved: what a pod gains is
  free or comes from pods that stop: idle ones first, then those with the lowest score, then those that evaluate.
- On a cluster, pods stop on the node that can then hold the new pod and where the fewest cores stop for it.
- Where the new pod cannot share the cores of the old one, a smaller pod also needs room next to it. Pods stop for that
  as well; their agents continue when the old pod is gone, with the cores that it leaves. The same applies everywhere to
  memory, which two pods never share.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from orchestrator.decisions.resources import FreeResources, Resources
from podrace.specification.pods.sizes import divisible_environments, grows, grows_by_learners
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

SCORES_BETWEEN_CHANGES = 4
"""Scores of the incumbent between two changes; a score is due once in each quantum."""
MOST_DOUBLINGS = 10
"""Number of abandoned changes in a row after which the number of scores no longer doubles."""
LARGEST_COST_SHARE = 0.02
"""Share of the running time of a tournament that the interruptions of all its changes may take."""
UNMEASURED_SECONDS = 1.0
"""Interruption that is assumed for a change that was not measured."""
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class SizeLimits:
    """What the specification says about the size of the incumbent's pod."""

    cores: float
    """Size of all other pods, and the unit of sizes."""
    minimum_cores: float
    maximum_cores: float
    improving_share: float
    """Share of all cores for the incumbent while it improves."""
    stalled_share: float
    """The same while it does not."""
    memory_bytes: int = 0
    """Memory of a pod of `cores`."""
    other_cores: float = 0.0
    """Cores that other pods keep, because they verify the incumbent's scores."""
    gpus: int = 0
    """GPUs of a pod of `cores`."""
    divided: int = 0
    """What the number of pods of `cores` that a larger one replaces must divide: the environments that its learners
    divide; 0: nothing."""

    def sizes(self, least: float, most: float) -> list[float]:
        """Returns the possible sizes of a pod between two numbers of cores, the largest first."""
        smallest, largest = math.ceil(least / self.cores - _TOLERANCE), math.floor(most / self.cores + _TOLERANCE)
        counts = range(largest, max(1, smallest) - 1, -1)
        return [self.cores * count for count in counts if self.divided % count == 0]

    def memory_of(self, cores: float) -> int:
        """Returns the memory of a pod of some cores."""
        return int(self.memory_bytes * cores / self.cores)

    def cores_with(self, memory_bytes: float) -> float:
        """Returns the cores of the pods that have some memory."""
        return self.cores * memory_bytes / self.memory_bytes if self.memory_bytes else 0.0

    def reserved_by(self, cores: float) -> Resources:
        """Returns what a pod of some cores reserves. Pods that grow have one host."""
        return Resources(cores, self.memory_of(cores), self.gpus * round(cores / self.cores))


@dataclass(frozen=True)
class Promise:
    """What the leaderboard reports about the incumbent."""

    agent_id: str
    improving: bool
    scores: int
    """Number of scores of incumbents so far; it only rises."""
    reason: str
    """Why it improves or not."""
    trial: int | None = None
    """Number of its trial; None if unknown."""

    def leads(self, pod: "SizedPod") -> bool:
        """Whether a pod trains the incumbent."""
        return pod.agent_id == self.agent_id or (self.trial is not None and pod.trial == self.trial)


@dataclass(frozen=True)
class SizedPod:
    """A pod that stays."""

    pod_id: str
    cores: float
    agent_id: str
    """Agent that it trains; empty if none."""
    score: float | None = None
    """Score of that agent; None before the first."""
    start_time: float = 0.0
    trial: int | None = None
    """Number of the trial of that agent; None if unknown."""
    evaluates: bool = False
    """Whether it runs an evaluation, which it would have to begin again elsewhere."""
    node: int | None = None
    """Index of its node in `Room.free.nodes`; None if that node takes no new pod, or is not known."""


@dataclass(frozen=True)
class ChangeHistory:
    """The changes of a tournament so far."""

    under_way: bool
    """Whether a pod of another size is being prepared or takes over."""
    last_scores: int | None
    """`Promise.scores` at the last change, complete or not; None before the first."""
    gap_seconds: Sequence[float | None]
    """Interruption by each change; None if it was not measured."""
    running_seconds: float
    """How long the tournament has been running, without pauses."""
    abandoned_in_row: int = 0
    """Number of the latest changes in a row that were abandoned."""


@dataclass(frozen=True)
class Room:
    """What a pod of another size may take, besides what other pods give up."""

    cores: float
    """Cores that the tournament may have and no pod of it has; negative if its pods have more than it may have."""
    memory_bytes: int
    """Memory that is available, reserved or not. A new pod needs all of its own while the old one still runs."""
    shared: bool
    """Whether the new pod may start on the cores of the pod that it replaces, as processes of one machine can. If not,
    it needs all its cores in addition to that pod until it takes over."""
    largest_cores: float = math.inf
    """Cores of the largest pod that any machine or node could hold."""
    free: FreeResources | None = None
    """For a cluster: what is free on each node; None: a new pod finds room wherever others stop."""
    unreserved_bytes: float = math.inf
    """For a single machine: memory that no pod that stays has reserved; negative if they have reserved too much."""


@dataclass(frozen=True)
class Resize:
    """Replace a pod by one of another size."""

    pod_id: str
    """The pod that is replaced once the new one is ready."""
    cores: float
    """Cores of the new pod."""
    retired: tuple[str, ...]
    """Pods that stop at once, to make room."""
    reason: str
    agent_id: str = ""
    """The agent for whose trial the pod grows; empty if it shrinks, whatever it trains then."""


def limits_of(spec: TournamentSpec) -> SizeLimits | None:
    """Returns the limits of a resolved specification; None if all pods have the same size."""
    pod = spec.pod
    if not grows(pod):
        return None
    return SizeLimits(
        pod.cores,
        pod.minimum_cores,
        pod.maximum_cores,
        pod.improving_share,
        pod.stalled_share,
        pod.memory_bytes,
        # Another pod verifies what the incumbent's pod states, so one must remain.
        other_cores=pod.cores if spec.evaluation.verify > 0 else 0.0,
        gpus=pod.gpus,
        divided=divisible_environments(spec) if grows_by_learners(pod) else 0,
    )


def wanted_cores(promise: Promise, total: float, limits: SizeLimits) -> float:
    """Returns the size of the incumbent's pod: its share of all cores, rounded to whole pods, within the limits."""
    share = limits.improving_share if promise.improving else limits.stalled_share
    units = share * total / limits.cores
    units = math.ceil(units - _TOLERANCE) if promise.improving else math.floor(units + 0.5)
    within = min(max(units * limits.cores, limits.minimum_cores), limits.maximum_cores)
    available = math.floor((total - limits.other_cores) / limits.cores + _TOLERANCE) * limits.cores
    return max(limits.sizes(limits.cores, min(within, available)), default=limits.cores)


def decide(
    promise: Promise, pods: Sequence[SizedPod], room: Room, limits: SizeLimits, history: ChangeHistory
) -> tuple[Resize | None, str]:
    """Decides whether a pod is replaced by one of another size.

    Args:
        promise: What the incumbent promises.
        pods: Pods of the tournament that stay; at most one of them has the incumbent.
        room: What is free.
        limits: Limits of the specification.
        history: Changes so far.

    Returns:
        The change, or None, and the reason.
    """
    exceeds = room.cores < -_TOLERANCE
    if why_not := _why_not_now(promise, history, urgent=exceeds and not history.abandoned_in_row):
        return None, why_not
    own = next((pod for pod in pods if promise.leads(pod)), None)
    others = sorted((pod for pod in pods if pod is not own), key=_least_valuable_first)
    if shrunk := _shrink_overtaken(promise, own, others, room, limits):
        return shrunk, shrunk.reason
    if own is None:
        return None, f"no pod trains the incumbent {promise.agent_id}"
    total = sum(pod.cores for pod in pods) + room.cores
    most = own.cores if exceeds else _largest(own.cores, room, limits)
    wanted = min(wanted_cores(promise, total, limits), most)
    cores, retired = _affordable(own, wanted, others, room, limits)
    if abs(cores - own.cores) < _TOLERANCE:
        return None, f"{own.pod_id} has the size that it should have"
    grows = cores > own.cores
    reason = (
        f"the pod of {promise.agent_id} {'grows' if grows else 'shrinks'} from {own.cores:g} to {cores:g} of {total:g}"
        f" cores: {'the share of the tournament has fallen' if exceeds else promise.reason}"
    )
    return Resize(own.pod_id, cores, retired, reason, own.agent_id if grows else ""), reason


def _shrink_overtaken(
    promise: Promise, own: SizedPod | None, others: Sequence[SizedPod], room: Room, limits: SizeLimits
) -> Resize | None:
    """Returns the change by which a grown pod shrinks that trains another agent than the incumbent.

    Args:
        promise: What the incumbent promises.
        own: The pod with the incumbent. If no pod is known to have it, an agent of an unknown trial may be its next
            one, which the leaderboard has not reported yet.
        others: Pods without the incumbent, the least valuable first.
        room: What is free.
        limits: Limits of the specification.
    """
    for pod in others:
        overtaken = own is not None or None not in (pod.trial, promise.trial)
        if pod.cores > limits.cores + _TOLERANCE and pod.agent_id and overtaken:
            retired = _retired_for(limits.cores, pod, [other for other in others if other is not pod], room, limits)
            if retired is not None:
                reason = f"{pod.agent_id} does not lead: its pod shrinks from {pod.cores:g} to {limits.cores:g} cores"
                return Resize(pod.pod_id, limits.cores, retired, reason)
    return None


def _why_not_now(promise: Promise, history: ChangeHistory, *, urgent: bool) -> str:
    if history.under_way:
        return "a change is under way"
    if urgent:
        return ""
    required = SCORES_BETWEEN_CHANGES * 2 ** min(history.abandoned_in_row, MOST_DOUBLINGS)
    if history.last_scores is not None and promise.scores - history.last_scores < required:
        return f"fewer than {required} scores of the incumbent since the last change"
    measured = [seconds for seconds in history.gap_seconds if seconds is not None]
    expected = sum(measured) / len(measured) if measured else UNMEASURED_SECONDS
    spent = sum(expected if seconds is None else seconds for seconds in history.gap_seconds)
    if spent + expected > LARGEST_COST_SHARE * history.running_seconds:
        return (
            f"a change interrupts the training for {expected:.2g} s, and all changes may take"
            f" {LARGEST_COST_SHARE:.0%} of {history.running_seconds:.0f} s"
        )
    return ""


def _affordable(
    own: SizedPod, wanted: float, others: Sequence[SizedPod], room: Room, limits: SizeLimits
) -> tuple[float, tuple[str, ...]]:
    """Returns the largest size up to the wanted one that there is room for, and the pods that stop for it."""
    for cores in limits.sizes(min(wanted, own.cores + limits.cores), wanted):
        retired = _retired_for(cores, own, others, room, limits)
        if retired is not None and abs(cores - own.cores) > _TOLERANCE:
            return cores, retired
    return own.cores, ()


def _retired_for(
    cores: float, replaced: SizedPod, others: Sequence[SizedPod], room: Room, limits: SizeLimits
) -> tuple[str, ...] | None:
    """Returns the pods that stop so that a pod of this size can replace another one; None if there is no room for it.

    Args:
        cores: Size of the new pod.
        replaced: The pod that it replaces, which runs until the new one is ready.
        others: Pods that may stop, the least valuable first.
        room: What is free.
        limits: Limits of the specification.
    """
    memory_bytes = limits.memory_of(cores)
    if memory_bytes > room.memory_bytes:
        return None
    missing = cores - (replaced.cores if room.shared else 0.0) - max(0.0, room.cores)
    if room.free is None:
        without_memory = limits.cores_with(memory_bytes - room.unreserved_bytes)
        return _ids(_with_cores(max(missing, without_memory), (), others))
    needed = limits.reserved_by(cores - _TOLERANCE)
    on_nodes = (_freed(needed, node, others, room.free, limits) for node in range(len(room.free.nodes)))
    choices = (_with_cores(missing, pods, others) for pods in on_nodes if pods is not None)
    return _ids(min((pods for pods in choices if pods is not None), key=partial(_loss, others), default=None))


def _with_cores(cores: float, first: Sequence[SizedPod], others: Sequence[SizedPod]) -> list[SizedPod] | None:
    """Returns these pods, and the least valuable others with which they have this many cores; None if all have less."""
    chosen = list(first)
    rest = iter([pod for pod in others if pod not in chosen])
    while sum(pod.cores for pod in chosen) < cores - _TOLERANCE:
        pod = next(rest, None)
        if pod is None:
            return None
        chosen.append(pod)
    return chosen


def _freed(
    needed: Resources, node: int, others: Sequence[SizedPod], free: FreeResources, limits: SizeLimits
) -> list[SizedPod] | None:
    """Returns the least valuable pods of a node without which it has the needed resources; None if it never has."""
    here, total = free.nodes[node], free.total
    chosen: list[SizedPod] = []
    rest = iter([pod for pod in others if pod.node == node])
    while not (here.covers(needed) and total.covers(needed)):
        pod = next(rest, None)
        if pod is None:
            return None
        chosen.append(pod)
        here, total = (each + limits.reserved_by(pod.cores) for each in (here, total))
    return chosen


def _loss(others: Sequence[SizedPod], pods: Sequence[SizedPod]) -> tuple[float, list[int]]:
    """Sort key of pods that would stop: first those with the fewest cores, then those without the most valuable pod."""
    return sum(pod.cores for pod in pods), sorted((others.index(pod) for pod in pods), reverse=True)


def _ids(pods: Sequence[SizedPod] | None) -> tuple[str, ...] | None:
    return None if pods is None else tuple(pod.pod_id for pod in pods)


def _largest(present: float, room: Room, limits: SizeLimits) -> float:
    """Returns the cores of the largest pod that fits anywhere, in whole pods; never less than a pod has now."""
    if math.isinf(room.largest_cores):
        return room.largest_cores
    return max(present, math.floor(room.largest_cores / limits.cores + _TOLERANCE) * limits.cores)


def _least_valuable_first(pod: SizedPod) -> tuple[bool, bool, bool, float, float]:
    return pod.evaluates, bool(pod.agent_id), pod.score is not None, pod.score or 0.0, -pod.start_time
