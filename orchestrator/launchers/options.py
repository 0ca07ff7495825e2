"""Defines the options of the launchers, which are keys of the orchestrator's configuration."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.launchers.images import pattern_problem
from podrace.errors import InvalidArgument


@dataclass(frozen=True)
class ProcessOptions:
    """Options of the launcher `process`."""

    user_code_uid: int = 61_184
    """First of the user ids for workers and evaluators that run user code: each pod gets a different one, from this
    one on. No person and no other service may have them; the default is in the range that systemd reserves for such
    purposes. They are used if the orchestrator runs as root. 0, or without root: user code runs with the user id of the
    orchestrator."""
    user_code_uids: int = 4_096
    """Number of these user ids."""


@dataclass(frozen=True)
class DockerOptions:
    """Options of the launcher `docker`; the engine is found like the docker command finds it."""

    image: str = "podrace/agentpod:latest"
    """Image of all roles."""
    images: tuple[str, ...] = ()
    """Further images that `pod.image` of a specification may name, such as `registry.example/team/robots:2`; a final
    `*` stands for every ending. An image is code that runs with the token of the pod and its access to the store:
    trust these images as much as `image`, and name digests where others can push tags. They are never pulled."""
    network: str = ""
    """Docker network where pods reach the orchestrator, the leaderboard and the store; empty: the engine's default."""
    scope: str = "podrace"
    """Containers and volumes with this label belong to this orchestrator; it must be unique on the engine."""
    gpus: tuple[str, ...] = ()
    """GPUs that pods may use: UUIDs as `nvidia-smi -L` prints them, or numbers, which may change when the
    machine restarts. The engine needs NVIDIA's container toolkit."""
    shm_bytes: int = 1 << 30
    """Size of /dev/shm of a pod with GPUs, which its containers share: NCCL and CUDA keep buffers and events there."""
    tls: str = ""
    """Volume, or folder of the engine's machine, with the files tls.crt, tls.key and ca.crt of pods; empty: pods have
    no TLS."""
    mounts: tuple[str, ...] = ()
    """Additional mounts of every container, for instance `/etc/ssl/store.crt:/etc/ssl/store.crt:ro`. A volume at
    `/var/cache/podrace` keeps compiled kernels, which each role otherwise compiles again; pods can run what other pods
    stored there, so all of them must trust each other."""
    metrics_port: int = 9090
    """Port where the leader of a pod serves metrics, for the list at /pods; its other roles use the ports that follow,
    in the same network. 0: no metrics are served."""
    spare_memory_bytes: int = 1 << 30
    """Memory of the engine's machine that is kept free for everything other than pods. Each container of a pod may use
    all cores and all memory that the pod reserves, so a pod of several containers (layout `separate`, or user code) can
    use more than its reservation."""

    def __post_init__(self) -> None:
        _check_images("docker", self.images)


@dataclass(frozen=True)
class KubernetesOptions:
    """Options of the launcher `kubernetes`; the API server is found like kubectl finds it."""

    namespace: str = ""
    """Namespace of the pods, their template and the ConfigMaps; empty: this pod's own, or that of the kube context."""
    template: str = "podrace-agentpod"
    """PodTemplate with everything that the launcher does not set: image, security, nodes."""
    images: tuple[str, ...] = ()
    """Images that `pod.image` of a specification may name instead of that of the template, as in
    `launchers.docker.images`. They are pulled as the template's `imagePullPolicy` says. The component `admission`
    allows the image of the template only."""
    scope: str = "podrace"
    """Jobs with this label belong to this orchestrator; it must be unique in the namespace."""
    gpu_resource: str = "nvidia.com/gpu"
    """Resource that a container requests per GPU; empty: resource claims of the template provide the GPUs."""
    one_container: bool = False
    """Whether the roles of a pod are processes of one container, which gets all GPUs of the pod (on each host)."""
    unprotected_collectives: bool = False
    """Allow pods of several hosts. Their collectives (gloo, NCCL), and the store through which members find each other,
    are neither encrypted nor authenticated: network policies or a private network must protect them. The component
    `network-policies` sets this key."""
    sense_seconds: float = 2.0
    """Time between two reads of the nodes' resources."""
    keep_seconds: float = 300.0
    """How long failed Jobs are kept for `kubectl logs`, and ConfigMaps of tournaments without Jobs."""

    def __post_init__(self) -> None:
        _check_images("kubernetes", self.images)


@dataclass(frozen=True)
class ExternalOptions:
    """Options of the launcher `external`."""

    metrics_port: int = 0
    """Port where each pod serves metrics on the host it is named after, for the list at /pods; 0: not known."""


@dataclass(frozen=True)
class LauncherOptions:
    """Options of all launchers; each launcher reads its own."""

    process: ProcessOptions = field(default_factory=ProcessOptions)
    """Options of the launcher `process`."""
    docker: DockerOptions = field(default_factory=DockerOptions)
    """Options of the launcher `docker`."""
    kubernetes: KubernetesOptions = field(default_factory=KubernetesOptions)
    """Options of the launcher `kubernetes`."""
    external: ExternalOptions = field(default_factory=ExternalOptions)
    """Options of the launcher `external`."""


def _check_images(launcher: str, images: Sequence[str]) -> None:
    for entry in images:
        if problem := pattern_problem(entry):
            raise InvalidArgument(f"launchers.{launcher}.images = {entry!r}: {problem}")
