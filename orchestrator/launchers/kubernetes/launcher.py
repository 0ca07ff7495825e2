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
from orchestrator.launchers.base import ListedPod, NewPod, PodEnvironment
from orchestrator.launchers.kubernetes.api_client import ApiClient, Object, SendRequest, connect
from orchestrator.launchers.kubernetes.event_recorder import EventRecorder
from orchestrator.launchers.kubernetes.hosts import leader_pods
from orchestrator.launchers.kubernetes.jobs import CONTAINER, job_name, job_of, listed_of, owner_name, owner_of
from orchestrator.launchers.kubernetes.nodes import ClusterObjects, capacity_of
from orchestrator.launchers.kubernetes.pod_states import (
    JobState,
    address_of,
    creation_failure,
    job_state,
    termination_reason,
)
from orchestrator.launchers.log_tail import last_line_of
from orchestrator.launchers.options import KubernetesOptions
from orchestrator.launchers.pod_settings import LEADER, hosts_of
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
    """Pods as Jobs. See Launcher for the verbs, and EventSink for `note`.

    async with KubernetesLauncher(surroundings, options) as launcher:
        await launcher.start(pod)
    """

    def __init__(
        self,
        pod_environment: PodEnvironment,
        options: KubernetesOptions,
        *,
        find: Callable[[str], tuple[SendRequest, str]] = connect,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Talks to nobody yet.

        Args:
            pod_environment: What every pod is told; its addresses are those that pods of the cluster see.
            options: Of this launcher.
            find: Finds the API server, given a namespace or none.
            monotonic: Clock.
        """
        self._pod_environment, self._options, self._find, self._monotonic = pod_environment, options, find, monotonic
        self._connected: ApiClient | None = None
        self._event_recorder = EventRecorder(self._cluster, self._owner)
        self._last_log_line: dict[str, str] = {}
        # By name of a Job: what is reserved by those of the last look, and by what was just started.
        self._reserved: dict[str, Resources] = {}
        self._started: dict[str, tuple[Resources, float]] = {}
        self._waiting: dict[str, str] = {}
        self._owners_used: set[str] = set()
        self._objects: ClusterObjects | None = None
        self._sensed_at = 0.0
        # Monotonic times at which something was first noticed.
        self._since: dict[tuple[str, str], float] = {}

    async def __aenter__(self) -> Self:
        """Talks to nobody yet: a server that is away for a while is waited for."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leaves the pods as they are."""
        await self._event_recorder.close()

    # --- verbs ------------------------------------------------------------------------------------------------

    async def list(self) -> Sequence[ListedPod]:
        """See Launcher."""
        return await _in_thread(self._list)

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
        await _in_thread(self._kill if kill else self._terminate, job_name(pod_id))

    async def capacity(self) -> Capacity:
        """See Launcher: what nodes that take agent pods have left, within the quotas of the namespace."""
        return await _in_thread(self._capacity)

    def last_log_line(self, pod_id: str) -> str:
        """See Launcher."""
        return self._last_log_line.get(job_name(pod_id), "")

    def record_event(self, kind: str, message: str, ids: Mapping[str, str]) -> None:
        """See EventSink."""
        self._event_recorder.record_event(kind, message, ids)

    # --- what runs --------------------------------------------------------------------------------------------

    def _list(self) -> Sequence[ListedPod]:
        cluster, scope = self._cluster(), f"podrace/scope={self._options.scope}"
        jobs = [job for job in cluster.list(*JOBS, labels=scope) if _is_ours(job)]
        pods = defaultdict(list)
        for pod in cluster.list(*PODS, labels=scope):
            pods[pod["metadata"]["labels"].get("podrace/pod", "")].append(pod)
        states = {_name(job): job_state(job, pods[_name(job)]) for job in jobs}
        living = [job for job in jobs if not states[_name(job)].finished]
        self._clean_up([job for job in jobs if states[_name(job)].finished], states, pods)
        self._reserved = {_name(job): listed_of(job).reserved for job in living}
        self._waiting = self._waiting_reasons(living, states, pods)
        for job in living:
            self._stop_broken_job(job, states[_name(job)])
        names = {_name(job) for job in jobs}
        self._since = {key: since for key, since in self._since.items() if key[0] == "unused" or key[1] in names}
        self._owners_used = {job["metadata"]["labels"].get("podrace/tournament", "") for job in jobs}
        return [listed_of(job, address_of(pods[_name(job)])) for job in living]

    def _clean_up(
        self, finished: Sequence[Object], states: Mapping[str, JobState], pods: Mapping[str, Sequence[Object]]
    ) -> None:
        """Keeps the last words of the dead, and deletes their Jobs: those that failed after a while."""
        for job in finished:
            name = _name(job)
            if name not in self._last_log_line:
                self._last_log_line[name] = self._read_last_log_line(pods[name])
                _log.info("over", job=name, failed=states[name].failed)
            if not states[name].failed or self._holds_for("kept", name, True, self._options.keep_seconds):
                self._cluster().delete(*JOBS, name, propagation="Background")

    def _read_last_log_line(self, pods: Sequence[Object]) -> str:
        latest = max(leader_pods(pods), key=lambda pod: str(pod["metadata"].get("creationTimestamp")), default=None)
        line = last_line_of(self._cluster().log(_name(latest), LEADER, TAIL_LINES)) if latest else ""
        return line or termination_reason(pods)

    def _waiting_reasons(
        self, living: Sequence[Object], states: Mapping[str, JobState], pods: Mapping[str, Sequence[Object]]
    ) -> dict[str, str]:
        """Why pods wait, by their ids."""
        found = {}
        asked = False
        for job in living:
            name, reason = _name(job), states[_name(job)].waiting
            podless = not pods[name] and not reason and not states[name].terminating
            if self._holds_for("podless", name, podless, PODLESS_SECONDS) and not asked:
                # The others have the same reason, most likely: one question a look.
                asked = True
                about = f"involvedObject.kind=Job,involvedObject.name={name}"
                reason = creation_failure(self._cluster().list("v1", "events", fields=about))
            if reason:
                found[listed_of(job).pod_id] = reason
        return found

    def _stop_broken_job(self, job: Object, state: JobState) -> None:
        """Has a pod go that has lost a role, and kills what is past its time: its node may be gone, and its kubelet."""
        if state.role_lost and not state.terminating:
            # The head publishes what it has, instead of waiting for what never comes back.
            self._last_log_line[_name(job)] = state.role_lost
            self._terminate(_name(job))
        template = job["spec"]["template"]["spec"]
        grace = float(template.get("terminationGracePeriodSeconds") or LINGER_SECONDS)
        stays = self._holds_for("leaving", _name(job), state.terminating, grace + LINGER_SECONDS)
        if self._holds_for("headless", _name(job), state.leader_ended, LINGER_SECONDS) or stays:
            _log.warning("killed: past its time", job=_name(job))
            self._kill(_name(job))

    def _holds_for(self, what: str, name: str, holds: bool, seconds: float) -> bool:
        """Whether something holds, and has for so long."""
        if not holds:
            self._since.pop((what, name), None)
            return False
        now = self._monotonic()
        return now - self._since.setdefault((what, name), now) >= seconds

    # --- starting and stopping --------------------------------------------------------------------------------

    def _start(self, pod: NewPod) -> None:
        owner = self._owner(pod.tournament_id)
        job = job_of(pod, self._pod_environment, self._options, self._template(), owner)
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
        if self._objects is None or now - self._sensed_at >= self._options.sense_seconds:
            self._objects = self._sense()
            self._sensed_at = now
            self._delete_unused_owners()
        bound = Counter(
            pod["metadata"]["labels"]["podrace/pod"]
            for pod in self._objects.pods
            if self._is_our_pod(pod) and pod["spec"].get("nodeName")
        )
        self._started = {
            name: (reserved, since)
            for name, (reserved, since) in self._started.items()
            if now - since < SETTLING_SECONDS and name not in self._last_log_line
        }
        coming = {name: reserved for name, (reserved, _) in self._started.items()} | self._reserved
        left = [
            reserved.for_hosts(reserved.hosts - bound[name])
            for name, reserved in coming.items()
            if bound[name] < reserved.hosts
        ]
        closed = next((f"{pod_id} waits: {reason}" for pod_id, reason in self._waiting.items()), "")
        return capacity_of(self._objects, self._is_our_pod, left, self._options.gpu_resource, closed)

    def _sense(self) -> ClusterObjects:
        cluster = self._cluster()
        return ClusterObjects(
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

    def _cluster(self) -> ApiClient:
        if self._connected is None:
            self._connected = ApiClient(*self._find(self._options.namespace))
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

    def _delete_unused_owners(self) -> None:
        """Deletes the ConfigMaps of tournaments that have had no Job for a while."""
        cluster = self._cluster()
        labels = f"podrace/scope={self._options.scope},app.kubernetes.io/component=tournament"
        for owner in cluster.list(*CONFIG_MAPS, labels=labels):
            unused = _name(owner) not in self._owners_used
            if self._holds_for("unused", _name(owner), unused, self._options.keep_seconds):
                cluster.delete(*CONFIG_MAPS, _name(owner))


async def _in_thread(work: Callable[..., Result], *arguments: Any) -> Result:
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
