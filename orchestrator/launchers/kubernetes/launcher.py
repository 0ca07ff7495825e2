"""Runs pods as Jobs of a Kubernetes cluster: one Job per pod, owned by one ConfigMap per tournament.

The Jobs are the authoritative list of pods, whichever orchestrator created them. The last log line of a finished Job is
stored before the Job is deleted. While a pod is waiting, its reason is reported and no further pods are started.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog

from orchestrator.decisions.resources import Capacity, Resources
from orchestrator.launchers.base import ListedPod, NewPod, PodEnvironment
from orchestrator.launchers.kubernetes.api_client import ApiClient, Object, SendRequest, connect
from orchestrator.launchers.kubernetes.event_recorder import EventRecorder
from orchestrator.launchers.kubernetes.hosts import leader_pods
from orchestrator.launchers.kubernetes.jobs import CONTAINER, job_name, job_of, listed_of
from orchestrator.launchers.kubernetes.nodes import ClusterObjects, capacity_of
from orchestrator.launchers.kubernetes.owner_config_maps import OwnerConfigMaps
from orchestrator.launchers.kubernetes.pod_secrets import secret_of, secret_of_listed
from orchestrator.launchers.kubernetes.pod_states import (
    JobState,
    address_of,
    belongs_to,
    creation_failure,
    job_state,
    termination_reason,
)
from orchestrator.launchers.log_tail import last_line_of
from orchestrator.launchers.options import KubernetesOptions
from orchestrator.launchers.pod_settings import LEADER, check_image, check_own_worker, hosts_of
from podrace.errors import FailedPrecondition, PodraceError, Unavailable

JOBS, PODS = ("batch/v1", "jobs"), ("v1", "pods")
SECRETS = ("v1", "secrets")
TAIL_LINES = 20
LINGER_SECONDS = 30.0
"""A pod whose leader has exited, or that is past its grace period, is killed after this long."""
PODLESS_SECONDS = 3.0
"""The events of a Job without a pod are read after this long."""
SETTLING_SECONDS = 5.0
"""A started pod counts for this long, even if a list that was requested earlier does not include it."""
LOG_LINE_SECONDS = 600.0
"""The last log line of a pod is kept for this long after its Job was deleted, for the reconcile loop to read."""
SECRET_SECONDS = 60.0
"""A pod whose Secret cannot be created is killed after this long."""

_log = structlog.get_logger(__name__)
Result = TypeVar("Result")


class KubernetesLauncher:
    """Launcher of pods as Jobs; see `Launcher` for the methods, and `EventSink` for `record_event`.

    async with KubernetesLauncher(pod_environment, options) as launcher:
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
        """Creates the launcher; it connects with the first call.

        Args:
            pod_environment: Settings that all pods share; addresses must be reachable from pods of the cluster.
            options: Options of this launcher.
            find: Finds the API server and the namespace, given a namespace or an empty text.
            monotonic: Clock.
        """
        self._pod_environment, self._options, self._find, self._monotonic = pod_environment, options, find, monotonic
        self._connected: ApiClient | None = None
        self._owners = OwnerConfigMaps(
            self._cluster, options.scope, keep_seconds=options.keep_seconds, monotonic=monotonic
        )
        self._event_recorder = EventRecorder(self._cluster, self._owners.find_or_create)
        self._last_log_line: dict[str, str] = {}
        # By Job name: the pods listed last, and the reservations of those just started.
        self._listed: dict[str, ListedPod] = {}
        self._started: dict[str, tuple[Resources, float]] = {}
        self._waiting: dict[str, str] = {}
        # Pods started here that replace others and do not run yet. The others train while they wait.
        self._replacing: set[str] = set()
        # Names of Jobs whose Secret exists, or that need none.
        self._complete: set[str] = set()
        self._owners_used: set[str] = set()
        self._objects: ClusterObjects | None = None
        self._sensed_at = 0.0
        # Monotonic times at which something was first noticed.
        self._since: dict[tuple[str, str], float] = {}

    async def __aenter__(self) -> Self:
        """Does not connect yet, so that a server that is down for a while does not prevent the start."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stops recording events; the pods keep running."""
        await self._event_recorder.close()

    # --- Launcher ---------------------------------------------------------------------------------------------

    async def list(self) -> Sequence[ListedPod]:
        """See Launcher."""
        return await _in_thread(self._list)

    async def start(self, pod: NewPod) -> None:
        """See Launcher."""
        check_own_worker(pod.spec, "kubernetes")
        check_image(pod.spec, "kubernetes", self._options.images)
        reserved = Resources(pod.spec.cores, pod.spec.memory_bytes, pod.spec.gpus, hosts_of(pod.spec))
        self._started[job_name(pod.pod_id)] = reserved, self._monotonic()
        try:
            await asyncio.to_thread(self._start, pod)
        except PodraceError:
            self._started.pop(job_name(pod.pod_id), None)
            raise
        if pod.replaces:
            self._replacing.add(pod.pod_id)

    async def stop(self, pod_id: str, *, kill: bool) -> None:
        """See Launcher."""
        await _in_thread(self._stop, job_name(pod_id), kill)

    async def capacity(self) -> Capacity:
        """Returns what the nodes that accept agent pods have left, within the quotas of the namespace."""
        return await _in_thread(self._capacity)

    def last_log_line(self, pod_id: str) -> str:
        """See Launcher."""
        return self._last_log_line.get(job_name(pod_id), "")

    def record_event(self, kind: str, message: str, ids: Mapping[str, str]) -> None:
        """See EventSink."""
        self._event_recorder.record_event(kind, message, ids)

    # --- listing ----------------------------------------------------------------------------------------------

    def _list(self) -> Sequence[ListedPod]:
        jobs, pods = self._list_jobs(), defaultdict(list)
        for pod in self._cluster().list(*PODS, labels=self._labels):
            pods[pod["metadata"]["labels"].get("podrace/pod", "")].append(pod)
        states = {_name(job): job_state(job, pods[_name(job)]) for job in jobs}
        living = [job for job in jobs if not states[_name(job)].finished]
        self._clean_up([job for job in jobs if states[_name(job)].finished], states, pods)
        self._listed = {_name(job): listed_of(job) for job in living}
        self._waiting = self._waiting_reasons(living, states, pods)
        listed = [
            replace(listed_of(job, address_of(pods[_name(job)])), removed=states[_name(job)].removed) for job in living
        ]
        for job, listed_pod in zip(living, listed, strict=True):
            if not listed_pod.started and not states[_name(job)].terminating:
                self._complete_start(job, listed_pod)
            self._stop_broken_job(job, states[_name(job)])
        self._replacing &= {one.pod_id for one in listed if not one.started}
        self._forget_all_but({_name(job) for job in jobs})
        self._owners_used = _owners_of(jobs)
        return listed

    @property
    def _labels(self) -> str:
        return f"podrace/scope={self._options.scope}"

    def _list_jobs(self, name: str = "") -> Sequence[Object]:
        labels = f"{self._labels},podrace/pod={name}" if name else self._labels
        return [job for job in self._cluster().list(*JOBS, labels=labels) if _is_ours(job)]

    def _forget_all_but(self, names: set[str]) -> None:
        """Forgets what is known of Jobs that do not exist any more, their last log lines after a while."""
        self._complete &= names
        for name in list(self._last_log_line):
            if self._holds_for("deleted", name, name not in names, LOG_LINE_SECONDS):
                del self._last_log_line[name]
        kept = names | self._last_log_line.keys()
        # As a list, because pods are started in other threads.
        self._since = {key: since for key, since in list(self._since.items()) if key[1] in kept}

    def _clean_up(
        self, finished: Sequence[Object], states: Mapping[str, JobState], pods: Mapping[str, Sequence[Object]]
    ) -> None:
        """Stores the last log lines of finished Jobs, and deletes these Jobs; failed ones after a while."""
        for job in finished:
            name = _name(job)
            if name not in self._last_log_line:
                self._last_log_line[name] = self._read_last_log_line(pods[name])
                _log.info("job finished", job=name, failed=states[name].failed)
            if not states[name].failed or self._holds_for("kept", name, True, self._options.keep_seconds):
                self._cluster().delete(*JOBS, job, propagation="Background")

    def _read_last_log_line(self, pods: Sequence[Object]) -> str:
        latest = max(leader_pods(pods), key=lambda pod: str(pod["metadata"].get("creationTimestamp")), default=None)
        line = last_line_of(self._cluster().log(_name(latest), LEADER, TAIL_LINES)) if latest else ""
        return line or termination_reason(pods)

    def _waiting_reasons(
        self, living: Sequence[Object], states: Mapping[str, JobState], pods: Mapping[str, Sequence[Object]]
    ) -> dict[str, str]:
        """Why pods are waiting, by pod id."""
        found = {}
        events_read = False
        for job in living:
            name, reason = _name(job), states[_name(job)].waiting
            podless = not pods[name] and not reason and not states[name].terminating
            if self._holds_for("podless", name, podless, PODLESS_SECONDS) and not events_read:
                # The other Jobs most likely have the same reason, so events are read once per cycle.
                events_read = True
                about = f"involvedObject.kind=Job,involvedObject.name={name}"
                reason = creation_failure(self._cluster().list("v1", "events", fields=about))
            if reason:
                found[listed_of(job).pod_id] = reason
        return found

    def _stop_broken_job(self, job: Object, state: JobState) -> None:
        """Stops a pod that has lost a role, and kills one that exceeds its time limit, because its node may be down."""
        if state.role_lost and not state.terminating:
            # The leader publishes what it has instead of waiting for a role that does not return.
            self._last_log_line[_name(job)] = state.role_lost
            self._terminate(job)
        template = job["spec"]["template"]["spec"]
        grace = float(template.get("terminationGracePeriodSeconds") or LINGER_SECONDS)
        overdue = self._holds_for("leaving", _name(job), state.terminating, grace + LINGER_SECONDS)
        if self._holds_for("headless", _name(job), state.leader_ended, LINGER_SECONDS) or overdue:
            _log.warning("killed a pod that exceeded its time limit", job=_name(job))
            self._kill(job)

    def _holds_for(self, what: str, name: str, holds: bool, seconds: float) -> bool:
        """Whether a condition holds, and has held for `seconds`."""
        if not holds:
            self._since.pop((what, name), None)
            return False
        now = self._monotonic()
        return now - self._since.setdefault((what, name), now) >= seconds

    # --- starting and stopping --------------------------------------------------------------------------------

    def _start(self, pod: NewPod) -> None:
        owner = self._owners.find_or_create(pod.tournament_id)
        job = job_of(pod, self._pod_environment, self._options, self._template(), owner)
        # A Job with that name is this pod, which was started before.
        created = self._cluster().create(*JOBS, job)
        secret = secret_of(pod, self._pod_environment, created) if created else None
        if created is None or secret is None:
            return
        try:
            self._cluster().create(*SECRETS, secret)
        except PodraceError:
            # Its containers would wait for the Secret forever.
            self._cluster().delete(*JOBS, created, propagation="Background")
            raise
        self._complete.add(job_name(pod.pod_id))

    def _complete_start(self, job: Object, pod: ListedPod) -> None:
        """Creates the Secret of a Job whose orchestrator died before it did; kills the Job if that fails for a while.

        This service may create Secrets, but not read them: each one that may be missing is created once, which has no
        effect if it exists.
        """
        name = _name(job)
        if name in self._complete:
            return
        secret = secret_of_listed(pod, self._pod_environment, job)
        try:
            if secret and self._cluster().create(*SECRETS, secret):
                _log.warning("completed the start of a pod that was interrupted", job=name)
        except PodraceError as error:
            if self._holds_for("without secret", name, True, SECRET_SECONDS):
                self._last_log_line[name] = f"its Secret cannot be created: {error.message}"
                _log.warning("killed a pod whose Secret cannot be created", job=name, error=error.message)
                self._kill(job)
            return
        self._complete.add(name)

    def _stop(self, name: str, kill: bool) -> None:
        for job in self._list_jobs(name):
            (self._kill if kill else self._terminate)(job)

    def _terminate(self, job: Object) -> None:
        # With foreground deletion the Job exists, and is listed, until its pod has stopped.
        self._delete(job, "Foreground", None)

    def _kill(self, job: Object) -> None:
        self._delete(job, "Background", 0)

    def _delete(self, job: Object, propagation: str, grace_seconds: int | None) -> None:
        """Deletes a Job, then its pod: the garbage collector would delete the pod too, but later."""
        cluster = self._cluster()
        cluster.delete(*JOBS, job, propagation=propagation)
        for pod in cluster.list(*PODS, labels=f"podrace/pod={_name(job)}"):
            # A Job of the same name that was created since has pods with this label too.
            if belongs_to(pod, job):
                cluster.delete(*PODS, pod, grace_seconds=grace_seconds)

    # --- capacity ---------------------------------------------------------------------------------------------

    def _capacity(self) -> Capacity:
        now = self._monotonic()
        if self._objects is None or now - self._sensed_at >= self._options.sense_seconds:
            self._objects = self._sense()
            self._sensed_at = now
            self._owners.delete_unused(self._owners_used, lambda: _owners_of(self._list_jobs()))
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
        listed = self._listed
        reservations = {name: reserved for name, (reserved, _) in self._started.items()}
        reservations |= {name: pod.reserved for name, pod in listed.items()}
        unscheduled = [
            reserved.for_hosts(reserved.hosts - bound[name])
            for name, reserved in reservations.items()
            if bound[name] < reserved.hosts
        ]
        waiting = (item for item in self._waiting.items() if item[0] not in self._replacing)
        closed = next((f"{pod_id} waits: {reason}" for pod_id, reason in waiting), "")
        pod_ids = {name: pod.pod_id for name, pod in listed.items() if pod.reserved.hosts == 1}
        return capacity_of(self._objects, self._is_our_pod, unscheduled, self._options.gpu_resource, closed, pod_ids)

    def _sense(self) -> ClusterObjects:
        cluster = self._cluster()
        return ClusterObjects(
            nodes=cluster.list("v1", "nodes", everywhere=True),
            pods=self._all_pods(),
            quotas=cluster.list("v1", "resourcequotas"),
            template=self._template(),
        )

    def _all_pods(self) -> Sequence[Object]:
        """Pods of all namespaces, or of this one if the others may not be read."""
        cluster = self._cluster()
        try:
            return cluster.list(*PODS, fields="status.phase!=Succeeded,status.phase!=Failed", everywhere=True)
        except Unavailable as error:
            _log.debug("may not read pods of other namespaces", error=error.message)
            return cluster.list(*PODS)

    def _is_our_pod(self, pod: Object) -> bool:
        metadata = pod["metadata"]
        labels = metadata.get("labels") or {}
        labeled = labels.get("podrace/scope") == self._options.scope and "podrace/pod" in labels
        return labeled and metadata.get("namespace") == self._cluster().namespace

    # --- objects that must exist ------------------------------------------------------------------------------

    def _cluster(self) -> ApiClient:
        if self._connected is None:
            connection = self._find(self._options.namespace)
            self._connected = ApiClient(*connection, check_leads=self._pod_environment.check_leads)
        return self._connected

    def _template(self) -> Object:
        cluster, name = self._cluster(), self._options.template
        found = cluster.get("v1", "podtemplates", name)
        if found is None:
            raise FailedPrecondition(
                f"there is no PodTemplate {name!r} in namespace {cluster.namespace!r}: apply an overlay of deploy/k8s,"
                " or set kubernetes.namespace and kubernetes.template"
            )
        spec = found["template"]["spec"]
        if all(container["name"] != CONTAINER for container in spec["containers"]):
            raise FailedPrecondition(f"PodTemplate {name!r} has no container {CONTAINER!r}: apply deploy/k8s")
        return found


async def _in_thread(work: Callable[..., Result], *arguments: Any) -> Result:
    """Calls the API server in a thread; every error is raised as Unavailable, so that the reconcile loop retries."""
    try:
        return await asyncio.to_thread(work, *arguments)
    except PodraceError as error:
        raise Unavailable(error.message) from None


def _name(found: Object) -> str:
    name: str = found["metadata"]["name"]
    return name


def _owners_of(jobs: Sequence[Object]) -> set[str]:
    """Names of the ConfigMaps that own Jobs."""
    return {job["metadata"]["labels"].get("podrace/tournament", "") for job in jobs}


def _is_ours(job: Object) -> bool:
    """Whether this launcher created a Job; other Jobs with the same labels lack the annotation."""
    return "podrace/pod-id" in (job["metadata"].get("annotations") or {})
