"""Owns pods that are Jobs of a Kubernetes cluster: one Job a pod, named after it, owned by a ConfigMap a tournament.

The Jobs are the truth: whoever made them, however often this service was replaced meanwhile. What is over is looked at
for its last words and cleared away; what waits says why, and nothing more is started while it does.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog

from orchestrator.decisions.resources import Capacity, Resources
from orchestrator.launchers.base import ListedPod, NewPod, Surroundings
from orchestrator.launchers.kubernetes.api_client import Cluster, Object, Send, connect
from orchestrator.launchers.kubernetes.event_recorder import Announcer
from orchestrator.launchers.kubernetes.hosts import heads_of
from orchestrator.launchers.kubernetes.jobs import CONTAINER, job_name, job_of, listed_of, owner_name, owner_of
from orchestrator.launchers.kubernetes.nodes import Seen, capacity_of
from orchestrator.launchers.kubernetes.pod_states import JobState, address_of, creation_failure, end_of, state_of
from orchestrator.launchers.log_tail import last_line_of
from orchestrator.launchers.options import KubernetesOptions
from orchestrator.launchers.pod_settings import HEAD, hosts_of
from podrace.errors import PodraceError, Unavailable

JOBS, PODS, CONFIG_MAPS = ("batch/v1", "jobs"), ("v1", "pods"), ("v1", "configmaps")
TAIL_LINES = 20
LINGER_SECONDS = 30.0
"""A pod whose head has ended, or that was told to go and is past its grace, is killed after this long."""
PODLESS_SECONDS = 3.0
"""A Job without a pod for this long is asked for its reasons."""
SETTLING_SECONDS = 5.0
"""What was started counts for this long even where a look that began earlier has not seen it."""

_log = structlog.get_logger(__name__)
Result = TypeVar("Result")


class KubernetesLauncher:
    """Pods as Jobs. See Launcher for the verbs, and Witness for `note`.

    async with KubernetesLauncher(surroundings, options) as launcher:
        await launcher.start(pod)
    """

    def __init__(
        self,
        surroundings: Surroundings,
        options: KubernetesOptions,
        *,
        find: Callable[[str], tuple[Send, str]] = connect,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Talks to nobody yet.

        Args:
            surroundings: What every pod is told; its addresses are those that pods of the cluster see.
            options: Of this launcher.
            find: Finds the API server, given a namespace or none.
            monotonic: Clock.
        """
        self._around, self._options, self._find, self._monotonic = surroundings, options, find, monotonic
        self._connected: Cluster | None = None
        self._announcer = Announcer(self._cluster, self._owner)
        self._last_words: dict[str, str] = {}
        # By name of a Job: what is reserved by those of the last look, and by what was just started.
        self._reserved: dict[str, Resources] = {}
        self._started: dict[str, tuple[Resources, float]] = {}
        self._waiting: dict[str, str] = {}
        self._owners_used: set[str] = set()
        self._seen: Seen | None = None
        self._sensed = 0.0
        # Monotonic times at which something was first noticed.
        self._since: dict[tuple[str, str], float] = {}

    async def __aenter__(self) -> Self:
        """Talks to nobody yet: a server that is away for a while is waited for."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leaves the pods as they are."""
        await self._announcer.close()

    # --- verbs ------------------------------------------------------------------------------------------------

    async def list(self) -> Sequence[ListedPod]:
        """See Launcher."""
        return await _asked(self._list)

    async def start(self, pod: NewPod) -> None:
        """See Launcher."""
        reserved = Resources(pod.spec.cores, pod.spec.memory_bytes, pod.spec.gpus, hosts_of(pod.spec))
        self._started[job_name(pod.pod_id)] = reserved, self._monotonic()
        try:
            await asyncio.to_thread(self._start, pod)
        except PodraceError:
            self._started.pop(job_name(pod.pod_id), None)
            raise

    async def stop(self, pod_id: str, *, kill: bool) -> None:
        """See Launcher."""
        await _asked(self._kill if kill else self._terminate, job_name(pod_id))

    async def capacity(self) -> Capacity:
        """See Launcher: what nodes that take agent pods have left, within the quotas of the namespace."""
        return await _asked(self._capacity)

    def last_words(self, pod_id: str) -> str:
        """See Launcher."""
        return self._last_words.get(job_name(pod_id), "")

    def note(self, kind: str, message: str, ids: Mapping[str, str]) -> None:
        """See Witness."""
        self._announcer.note(kind, message, ids)

    # --- what runs --------------------------------------------------------------------------------------------

    def _list(self) -> Sequence[ListedPod]:
        cluster, scope = self._cluster(), f"podrace/scope={self._options.scope}"
        jobs = [job for job in cluster.list(*JOBS, labels=scope) if _is_ours(job)]
        pods = defaultdict(list)
        for pod in cluster.list(*PODS, labels=scope):
            pods[pod["metadata"]["labels"].get("podrace/pod", "")].append(pod)
        states = {_name(job): state_of(job, pods[_name(job)]) for job in jobs}
        living = [job for job in jobs if not states[_name(job)].over]
        self._clear_away([job for job in jobs if states[_name(job)].over], states, pods)
        self._reserved = {_name(job): listed_of(job).reserved for job in living}
        self._waiting = self._reasons(living, states, pods)
        for job in living:
            self._end_what_is_broken(job, states[_name(job)])
        names = {_name(job) for job in jobs}
        self._since = {key: since for key, since in self._since.items() if key[0] == "unused" or key[1] in names}
        self._owners_used = {job["metadata"]["labels"].get("podrace/tournament", "") for job in jobs}
        return [listed_of(job, address_of(pods[_name(job)])) for job in living]

    def _clear_away(
        self, over: Sequence[Object], states: Mapping[str, JobState], pods: Mapping[str, Sequence[Object]]
    ) -> None:
        """Keeps the last words of the dead, and deletes their Jobs: those that failed after a while."""
        for job in over:
            name = _name(job)
            if name not in self._last_words:
                self._last_words[name] = self._words_of(pods[name])
                _log.info("over", job=name, failed=states[name].failed)
            if not states[name].failed or self._lasts("kept", name, True, self._options.keep_seconds):
                self._cluster().delete(*JOBS, name, propagation="Background")

    def _words_of(self, pods: Sequence[Object]) -> str:
        latest = max(heads_of(pods), key=lambda pod: str(pod["metadata"].get("creationTimestamp")), default=None)
        said = last_line_of(self._cluster().log(_name(latest), HEAD, TAIL_LINES)) if latest else ""
        return said or end_of(pods)

    def _reasons(
        self, living: Sequence[Object], states: Mapping[str, JobState], pods: Mapping[str, Sequence[Object]]
    ) -> dict[str, str]:
        """Why pods wait, by their ids."""
        found = {}
        asked = False
        for job in living:
            name, reason = _name(job), states[_name(job)].waiting
            podless = not pods[name] and not reason and not states[name].leaving
            if self._lasts("podless", name, podless, PODLESS_SECONDS) and not asked:
                # The others have the same reason, most likely: one question a look.
                asked = True
                about = f"involvedObject.kind=Job,involvedObject.name={name}"
                reason = creation_failure(self._cluster().list("v1", "events", fields=about))
            if reason:
                found[listed_of(job).pod_id] = reason
        return found

    def _end_what_is_broken(self, job: Object, state: JobState) -> None:
        """Has a pod go that has lost a role, and kills what is past its time: its node may be gone, and its kubelet."""
        if state.role_lost and not state.leaving:
            # The head publishes what it has, instead of waiting for what never comes back.
            self._last_words[_name(job)] = state.role_lost
            self._terminate(_name(job))
        template = job["spec"]["template"]["spec"]
        grace = float(template.get("terminationGracePeriodSeconds") or LINGER_SECONDS)
        stays = self._lasts("leaving", _name(job), state.leaving, grace + LINGER_SECONDS)
        if self._lasts("headless", _name(job), state.head_ended, LINGER_SECONDS) or stays:
            _log.warning("killed: past its time", job=_name(job))
            self._kill(_name(job))

    def _lasts(self, what: str, name: str, holds: bool, seconds: float) -> bool:
        """Whether something holds, and has for so long."""
        if not holds:
            self._since.pop((what, name), None)
            return False
        now = self._monotonic()
        return now - self._since.setdefault((what, name), now) >= seconds

    # --- starting and stopping --------------------------------------------------------------------------------

    def _start(self, pod: NewPod) -> None:
        owner = self._owner(pod.tournament_id)
        job = job_of(pod, self._around, self._options, self._template(), owner)
        # Where there is one of that name, it is this pod.
        self._cluster().create(*JOBS, job)

    def _terminate(self, name: str) -> None:
        # The Job stays until its pod has gone, so that it is listed as long as it publishes.
        self._delete(name, "Foreground", None)

    def _kill(self, name: str) -> None:
        self._delete(name, "Background", 0)

    def _delete(self, name: str, propagation: str, grace_seconds: int | None) -> None:
        """Deletes a Job, so that nothing replaces its pod, then the pod: the collector would do that too, some time."""
        cluster = self._cluster()
        cluster.delete(*JOBS, name, propagation=propagation)
        for pod in cluster.list(*PODS, labels=f"podrace/pod={name}"):
            cluster.delete(*PODS, _name(pod), grace_seconds=grace_seconds)

    # --- what there is ----------------------------------------------------------------------------------------

    def _capacity(self) -> Capacity:
        now = self._monotonic()
        if self._seen is None or now - self._sensed >= self._options.sense_seconds:
            self._seen = self._sense()
            self._sensed = now
            self._drop_unused_owners()
        bound = Counter(
            pod["metadata"]["labels"]["podrace/pod"]
            for pod in self._seen.pods
            if self._is_our_pod(pod) and pod["spec"].get("nodeName")
        )
        self._started = {
            name: (reserved, since)
            for name, (reserved, since) in self._started.items()
            if now - since < SETTLING_SECONDS and name not in self._last_words
        }
        coming = {name: reserved for name, (reserved, _) in self._started.items()} | self._reserved
        left = [
            reserved.on(reserved.hosts - bound[name])
            for name, reserved in coming.items()
            if bound[name] < reserved.hosts
        ]
        closed = next((f"{pod_id} waits: {reason}" for pod_id, reason in self._waiting.items()), "")
        return capacity_of(self._seen, self._is_our_pod, left, self._options.gpu_resource, closed)

    def _sense(self) -> Seen:
        cluster = self._cluster()
        return Seen(
            nodes=cluster.list("v1", "nodes", everywhere=True),
            pods=self._all_pods(),
            quotas=cluster.list("v1", "resourcequotas"),
            template=self._template(),
        )

    def _all_pods(self) -> Sequence[Object]:
        """Pods of all namespaces; of this one where the others are not to be seen."""
        cluster = self._cluster()
        try:
            return cluster.list(*PODS, fields="status.phase!=Succeeded,status.phase!=Failed", everywhere=True)
        except Unavailable as error:
            _log.debug("other namespaces are not seen", error=error.message)
            return cluster.list(*PODS)

    def _is_our_pod(self, pod: Object) -> bool:
        metadata = pod["metadata"]
        labels = metadata.get("labels") or {}
        ours = labels.get("podrace/scope") == self._options.scope and "podrace/pod" in labels
        return ours and metadata.get("namespace") == self._cluster().namespace

    # --- what there has to be ---------------------------------------------------------------------------------

    def _cluster(self) -> Cluster:
        if self._connected is None:
            self._connected = Cluster(*self._find(self._options.namespace))
        return self._connected

    def _template(self) -> Object:
        cluster, name = self._cluster(), self._options.template
        found = cluster.get("v1", "podtemplates", name)
        if found is None:
            raise Unavailable(
                f"there is no PodTemplate {name!r} in namespace {cluster.namespace!r}: apply an overlay of deploy/k8s,"
                " or set kubernetes.namespace and kubernetes.template"
            )
        spec = found["template"]["spec"]
        if all(container["name"] != CONTAINER for container in spec["containers"]):
            raise Unavailable(f"PodTemplate {name!r} has no container {CONTAINER!r}: apply an overlay of deploy/k8s")
        return found

    def _owner(self, tournament_id: str) -> Object:
        """The ConfigMap of a tournament, made where there is none."""
        cluster, scope = self._cluster(), self._options.scope
        name = owner_name(scope, tournament_id)
        self._since.pop(("unused", name), None)
        found = cluster.get(*CONFIG_MAPS, name) or cluster.create(*CONFIG_MAPS, owner_of(scope, tournament_id))
        found = found or cluster.get(*CONFIG_MAPS, name)
        if found is None:
            raise Unavailable(f"ConfigMap {name!r} comes and goes: somebody else deletes it")
        return found

    def _drop_unused_owners(self) -> None:
        """Deletes the ConfigMaps of tournaments that have had no Job for a while."""
        cluster = self._cluster()
        labels = f"podrace/scope={self._options.scope},app.kubernetes.io/component=tournament"
        for owner in cluster.list(*CONFIG_MAPS, labels=labels):
            unused = _name(owner) not in self._owners_used
            if self._lasts("unused", _name(owner), unused, self._options.keep_seconds):
                cluster.delete(*CONFIG_MAPS, _name(owner))


async def _asked(work: Callable[..., Result], *arguments: Any) -> Result:
    """Asks on a thread; whatever is wrong, the loop has to wait for better times."""
    try:
        return await asyncio.to_thread(work, *arguments)
    except PodraceError as error:
        raise Unavailable(error.message) from None


def _name(found: Object) -> str:
    name: str = found["metadata"]["name"]
    return name


def _is_ours(job: Object) -> bool:
    """Whether it was made by this launcher: somebody's Job with our labels says nothing of pods."""
    return "podrace/pod-id" in (job["metadata"].get("annotations") or {})
