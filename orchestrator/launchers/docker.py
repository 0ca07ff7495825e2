"""Runs pods as containers of a Docker Engine: found by labels, removed when the leader is dead.

A pod has one container per role, or one for all learners of a fused pod.

The containers of a pod share one memory-backed volume with its sockets, lifelines and the regions of the `shared`
plane, and the network of the leader: collectives use loopback, and NCCL takes containers with different host names for
different hosts. User code has its own network and processes.

A pod is alive as long as its leader's container runs. Access to the engine's socket is equivalent to root access on its
machine: give it to no other service.
"""

import asyncio
import os
import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import structlog

from orchestrator.decisions.resources import Capacity, Resources
from orchestrator.launchers.base import ListedPod, NewPod, PodEnvironment
from orchestrator.launchers.engine_client import SharedClient
from orchestrator.launchers.engine_containers import last_log_line, listed_pod
from orchestrator.launchers.engine_errors import is_full, missing_image, one_line, remedy
from orchestrator.launchers.gpu_choice import choose_gpus
from orchestrator.launchers.gpu_names import NO_GPUS, check_gpu_names, names_in_container
from orchestrator.launchers.options import DockerOptions
from orchestrator.launchers.pod_settings import (
    LAYOUT_NAMES,
    LEADER,
    check_image,
    check_one_host,
    check_own_worker,
    containers_of,
    environment,
    is_isolated,
    leader_settings,
    pod_settings,
    roles_of,
)
from orchestrator.launchers.store_credentials import credentials
from podrace import tls
from podrace.checkpoint_store.assignment_store import GRANTED
from podrace.errors import FailedPrecondition, InvalidArgument, Unavailable

POD_FOLDER = "/run/podrace"
"""Mount point of the pod's volume in its containers."""
USER = 10001
"""User id of the images, and owner of the volume."""
CACHE_FOLDER = "/var/cache/podrace"
NANO = 1_000_000_000
TIMEOUT_SECONDS = 30
ROLE_RESTARTS = 3
MOST_LOG_LINES = 1000
"""Pods that have exited whose last log lines are kept."""
GPU_CAPABILITIES = ["gpu", "compute", "utility"]
"""Driver capabilities, so that images need not declare that they use CUDA and NVML."""
TLS_FOLDER = "/etc/podrace/tls"
"""Where the containers find certificate, key and authority."""

_log = structlog.get_logger(__name__)


class DockerLauncher:
    """Launcher of pods as containers; see `Launcher` for the methods.

    async with DockerLauncher(pod_environment, options) as launcher:
        await launcher.start(pod)
    """

    def __init__(
        self, pod_environment: PodEnvironment, options: DockerOptions, *, environ: Mapping[str, str] = os.environ
    ) -> None:
        """Creates the launcher; it connects with the first call.

        Args:
            pod_environment: Settings that all pods share; addresses must be reachable from containers.
            options: Options of this launcher.
            environ: Environment with the credentials of the store.

        Raises:
            InvalidArgument: `gpus` has a name that is not a GPU's.
        """
        check_gpu_names(options.gpus)
        self._pod_environment, self._options, self._environ = pod_environment, options, environ
        self._last_log_line: dict[str, str] = {}
        self._starting: dict[str, Sequence[str]] = {}
        """GPUs reserved for the pods that are being started, by pod id."""
        self._choosing_gpus, self._shared = threading.Lock(), SharedClient(self._connect)

    async def __aenter__(self) -> Self:
        """Does not connect yet, so that an engine that is down for a while does not prevent the start."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the connection; the pods keep running."""
        await asyncio.to_thread(self._shared.close)

    def _connect(self) -> Any:
        import docker

        return docker.from_env(timeout=TIMEOUT_SECONDS, environment=dict(self._environ))

    @property
    def _client(self) -> Any:
        """The client of the present call; only in the thread of `_in_thread`."""
        return self._shared.client

    # --- Launcher ---------------------------------------------------------------------------------------------

    async def list(self) -> Sequence[ListedPod]:
        """See Launcher."""
        listed: Sequence[ListedPod] = await self._in_thread(self._list)
        return listed

    async def start(self, pod: NewPod) -> None:
        """See Launcher."""
        check_one_host(pod.spec, "docker")
        check_own_worker(pod.spec, "docker")
        check_image(pod.spec, "docker", self._options.images, self._options.image)
        if pod.spec.gpus > len(self._options.gpus):
            raise InvalidArgument(
                f"pod.gpus = {pod.spec.gpus}: launcher 'docker' has {len(self._options.gpus)} GPUs (docker.gpus)"
            )
        await self._in_thread(self._start, pod, starts=pod)

    async def stop(self, pod_id: str, *, kill: bool) -> None:
        """See Launcher."""
        await self._in_thread(self._remove if kill else self._terminate, pod_id)

    async def capacity(self) -> Capacity:
        """Returns the capacity of the engine's machine, without the spare memory."""
        capacity: Capacity = await self._in_thread(self._sense)
        return capacity

    def last_log_line(self, pod_id: str) -> str:
        """See Launcher."""
        return self._last_log_line.get(pod_id, "")

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any, starts: NewPod | None = None) -> Any:
        """Calls the engine in a thread; errors become one line. `starts` is the pod that this call starts."""
        from docker.errors import APIError, DockerException, ImageNotFound
        from requests.exceptions import RequestException

        try:
            return await asyncio.to_thread(self._shared.call, work, *arguments)
        except ImageNotFound:
            named = starts.spec.image if starts else ""
            raise FailedPrecondition(missing_image(self._options.image, named)) from None
        except (DockerException, RequestException) as error:
            message = f"the Docker Engine reports an error: {one_line(error)}{remedy(error)}"
            refused = starts and isinstance(error, APIError) and not is_full(error)
            raise (FailedPrecondition if refused else Unavailable)(message) from None

    # --- listing ----------------------------------------------------------------------------------------------

    def _containers(self, **labels: str) -> Sequence[Any]:
        filters = self._filters(labels)
        found: Sequence[Any] = self._client.containers.list(all=True, filters=filters, ignore_removed=True)
        return found

    def _volumes(self, **labels: str) -> Sequence[Any]:
        found: Sequence[Any] = self._client.volumes.list(filters=self._filters(labels))
        return found

    def _filters(self, labels: Mapping[str, str]) -> Mapping[str, Sequence[str]]:
        wanted = {"scope": self._options.scope, **labels}
        return {"label": [f"podrace.{key}={value}" for key, value in wanted.items()]}

    def _list(self) -> Sequence[ListedPod]:
        containers = self._containers()
        leaders = {c.labels["podrace.pod"]: c for c in containers if c.labels["podrace.role"] == LEADER}
        living = {
            pod_id: leader for pod_id, leader in leaders.items() if leader.status in ("running", "created", "paused")
        }
        for pod_id in (
            {container.labels["podrace.pod"] for container in containers} - living.keys() - self._starting.keys()
        ):
            if pod_id in leaders:
                self._last_log_line[pod_id] = last_log_line(leaders[pod_id])
                # A pod that has exited is asked about at once; the oldest entry is the first.
                while len(self._last_log_line) > MOST_LOG_LINES:
                    del self._last_log_line[next(iter(self._last_log_line))]
            self._remove(pod_id)
            _log.info("removed the containers of a pod that has exited", pod_id=pod_id)
        self._remove_volumes({container.labels["podrace.pod"] for container in containers})
        return [
            replace(listed_pod(leader), metrics=self._metrics(pod_id, containers)) for pod_id, leader in living.items()
        ]

    def _remove_volumes(self, pod_ids: Collection[str]) -> None:
        """Removes the volumes of pods that have no containers, because another program may have removed those."""
        for volume in self._volumes():
            pod_id = (volume.attrs["Labels"] or {}).get("podrace.pod", "")
            if pod_id not in pod_ids and pod_id not in self._starting:
                self._remove_volume(volume)

    def _remove_volume(self, volume: Any) -> None:
        from docker.errors import APIError, NotFound

        self._pod_environment.check_leads()
        with suppress(NotFound, APIError):
            volume.remove(force=True)

    def _metrics(self, pod_id: str, containers: Sequence[Any]) -> dict[str, str]:
        """Metrics addresses of a pod's roles; only user-defined networks resolve container names."""
        if not (self._options.network and self._options.metrics_port):
            return {}
        found = {c.labels["podrace.role"]: c.labels for c in containers if c.labels["podrace.pod"] == pod_id}
        # Containers of earlier versions have no such label.
        return {
            role: labels.get("podrace.metrics", f"{self._name(pod_id, role)}:{self._options.metrics_port}")
            for role, labels in found.items()
        }

    def _remove(self, pod_id: str) -> None:
        """Kills and removes the containers of a pod, the leader first, and its volumes.

        All of them are listed before leadership is checked. The engine removes containers by their ids, and no two
        volumes have the same name. So what another leader creates later for a pod of this id is not removed.
        """
        from docker.errors import APIError, NotFound

        found, volumes = self._containers(pod=pod_id), self._volumes(pod=pod_id)
        for container in sorted(found, key=lambda container: container.labels["podrace.role"] != LEADER):
            self._pod_environment.check_leads()
            # Another program may have removed it.
            with suppress(NotFound, APIError):
                container.remove(force=True, v=True)
        for volume in volumes:
            self._remove_volume(volume)

    def _terminate(self, pod_id: str) -> None:
        for leader in self._containers(pod=pod_id, role=LEADER):
            if leader.status == "running":
                self._pod_environment.check_leads()
                leader.kill(signal="SIGTERM")

    def _sense(self) -> Capacity:
        machine = self._client.info()
        memory = max(int(machine["MemTotal"]) - self._options.spare_memory_bytes, 0)
        total = Resources(float(machine["NCPU"]), memory, len(self._options.gpus))
        # The engine does not report what other programs use, or pods beyond their reservations: a limit concerns one
        # container, and each may use all that its pod reserves.
        return Capacity(total, memory)

    # --- starting ---------------------------------------------------------------------------------------------

    def _start(self, pod: NewPod) -> None:
        # In the thread, which continues if the call of `start` is cancelled.
        self._starting[pod.pod_id] = ()
        try:
            self._start_containers(pod)
        finally:
            del self._starting[pod.pod_id]

    def _start_containers(self, pod: NewPod) -> None:
        if any(leader.status == "running" for leader in self._containers(pod=pod.pod_id, role=LEADER)):
            return
        self._remove(pod.pod_id)
        # The image is never pulled: if it was not built, a registry could have another image of that name.
        self._client.images.get(pod.spec.image or self._options.image)
        gpus = self._reserve_gpus(pod)
        volume = f"{self._options.scope}-{pod.pod_id}-{secrets.token_hex(4)}"
        self._pod_environment.check_leads()
        try:
            self._client.volumes.create(
                volume,
                driver="local",
                driver_opts={
                    "type": "tmpfs",
                    "device": "tmpfs",
                    "o": f"uid={USER},gid={USER},mode=0700,size={pod.spec.memory_bytes}",
                },
                labels=self._labels(pod, "", gpus),
            )
            isolated = is_isolated(pod, self._pod_environment)
            for role, command in containers_of(pod.spec, isolated=isolated).items():
                self._pod_environment.check_leads()
                self._client.containers.run(**self._container(pod, role, command, gpus, volume))
        except BaseException:
            self._remove(pod.pod_id)
            raise

    def _container(self, pod: NewPod, role: str, command: str, gpus: Sequence[str], volume: str) -> dict[str, Any]:
        """Arguments of the engine for the container of a role, or of all roles."""
        spec, options = pod.spec, self._options
        arguments: dict[str, Any] = {
            "image": spec.image or options.image,
            "command": [command],
            "name": self._name(pod.pod_id, role),
            "detach": True,
            "labels": self._labels(pod, role, gpus),
            "environment": self._environment(pod, role, gpus),
            "volumes": [f"{volume}:{POD_FOLDER}:rw", *self._tls_mounts(), *options.mounts],
            "read_only": True,
            "tmpfs": {"/tmp": "", **self._own_cache()},
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "nano_cpus": round(spec.cores * NANO),
            "mem_limit": spec.memory_bytes or None,
            # The other roles stop when they lose the leader's lifeline.
            "restart_policy": None if role == LEADER else {"Name": "on-failure", "MaximumRetryCount": ROLE_RESTARTS},
        }
        return arguments | self._namespaces(pod, role, gpus)

    def _namespaces(self, pod: NewPod, role: str, gpus: Sequence[str]) -> dict[str, Any]:
        """Arguments of the engine for what a container shares with that of the leader, and for its GPUs."""
        leader, own = f"container:{self._name(pod.pod_id, LEADER)}", self._network_of(pod, role) == role
        arguments: dict[str, Any] = {} if own else {"network_mode": leader}
        if own and self._options.network:
            arguments["network"] = self._options.network
        if gpus:
            from docker.types import DeviceRequest

            arguments["device_requests"] = [DeviceRequest(device_ids=list(gpus), capabilities=[GPU_CAPABILITIES])]
            # CUDA opens memory of another process by its process id, and its events and NCCL's peer paths need a
            # common /dev/shm.
            arguments["pid_mode"] = None if own else leader
            arguments |= (
                {"ipc_mode": "shareable", "shm_size": self._options.shm_bytes}
                if role == LEADER
                else {"ipc_mode": leader}
            )
        return arguments

    def _network_of(self, pod: NewPod, role: str) -> str:
        """Returns the role whose container has the network of a role."""
        runs_user_code = is_isolated(pod, self._pod_environment) and not role.startswith(LEADER)
        return role if runs_user_code else LEADER

    def _metrics_port(self, pod: NewPod, role: str) -> int:
        """Port where a role serves metrics: the leader's, plus its number among the roles, which share a network."""
        roles = roles_of(pod.spec, isolated=is_isolated(pod, self._pod_environment))
        return self._options.metrics_port + roles.index(role)

    def _environment(self, pod: NewPod, role: str, gpus: Sequence[str]) -> dict[str, str]:
        settings = pod_settings(pod, self._pod_environment) | {
            "folder": f"{POD_FOLDER}/pod",
            "plane_folder": f"{POD_FOLDER}/planes",
            "gpus": names_in_container(gpus),
        }
        port = self._metrics_port(pod, role)
        settings["telemetry"]["metrics_listen"] = f"0.0.0.0:{port}" if self._options.metrics_port else ""
        if role == LEADER:
            settings |= leader_settings(pod, self._pod_environment)
        files = {tls.CERTIFICATE: "tls.crt", tls.KEY: "tls.key", tls.AUTHORITY: "ca.crt"} if self._options.tls else {}
        named = {name: f"{TLS_FOLDER}/{file}" for name, file in files.items()}
        # Workers and evaluators run simulators of users; at most the leader has access to the store.
        opens_store = role == LEADER and self._pod_environment.store_access != GRANTED
        hidden: dict[str, str] = {} if gpus else dict(NO_GPUS)
        return environment(settings) | (credentials(self._environ) if opens_store else {}) | named | hidden

    def _own_cache(self) -> dict[str, str]:
        """Memory for compiled kernels, unless the operator mounts a cache. Roles write only there and to the volume."""
        mounted = {mount.split(":")[1] for mount in self._options.mounts if ":" in mount}
        return {} if CACHE_FOLDER in mounted else {CACHE_FOLDER: f"uid={USER},gid={USER},exec"}

    def _tls_mounts(self) -> Sequence[str]:
        return [f"{self._options.tls}:{TLS_FOLDER}:ro"] if self._options.tls else []

    def _labels(self, pod: NewPod, role: str, gpus: Sequence[str]) -> dict[str, str]:
        labels = {
            "scope": self._options.scope,
            "pod": pod.pod_id,
            "tournament": pod.tournament_id,
            "role": role,
            "layout": LAYOUT_NAMES[pod.spec.layout],
            "cores": str(pod.spec.cores),
            "memory_bytes": str(pod.spec.memory_bytes),
            "gpus": ",".join(gpus),
        }
        if role and self._options.metrics_port:
            host = self._name(pod.pod_id, self._network_of(pod, role))
            labels["metrics"] = f"{host}:{self._metrics_port(pod, role)}"
        return {f"podrace.{key}": value for key, value in labels.items()}

    def _reserve_gpus(self, pod: NewPod) -> Sequence[str]:
        """Chooses GPUs of a pod, and reserves them until its leader has them or its start failed."""
        if not pod.spec.gpus:
            return ()
        with self._choosing_gpus:
            # Before the leaders are listed: a pod that leaves the reservations has a leader by then.
            held: dict[str, Sequence[str]] = {**self._starting}
            for leader in self._containers(role=LEADER):
                held[leader.labels["podrace.pod"]] = leader.labels["podrace.gpus"].split(",")
            chosen = self._starting[pod.pod_id] = choose_gpus(pod, self._options.gpus, held)
            return chosen

    def _name(self, pod_id: str, role: str) -> str:
        return f"{self._options.scope}-{pod_id}-{role}"
