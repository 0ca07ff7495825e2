"""What a launcher can be told, as keys of the orchestrator's configuration. Data only."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class DockerOptions:
    """What the launcher `docker` can be told; the engine itself is found as docker's own command finds it."""

    image: str = "podrace/agentpod:latest"
    """Of the roles."""
    network: str = ""
    """Of the engine, on which pods reach this service, the leaderboard and the store; empty: the engine's default."""
    scope: str = "podrace"
    """Containers and volumes with this label are ours; each orchestrator of an engine needs one of its own."""
    gpus: tuple[str, ...] = ()
    """Ids or indices of the GPUs that pods may be given; the engine needs NVIDIA's container toolkit."""
    mounts: tuple[str, ...] = ()
    """More mounts of every container, for instance `/etc/ssl/store.crt:/etc/ssl/store.crt:ro`."""
    metrics_port: int = 9090
    """Where the image's roles serve metrics, for the list at /pods; 0: nowhere."""
    spare_memory_bytes: int = 1 << 30
    """Of the engine's machine, for everything that is no pod."""


@dataclass(frozen=True)
class KubernetesOptions:
    """What the launcher `kubernetes` can be told; the API server is found as kubectl finds it."""

    namespace: str = ""
    """Of the pods, of their template and of what owns them; empty: this pod's own, or that of the context."""
    template: str = "podrace-agentpod"
    """PodTemplate that says what this launcher does not decide about agent pods: image, security, nodes."""
    scope: str = "podrace"
    """Jobs with this label are ours; each orchestrator of a namespace needs one of its own."""
    gpu_resource: str = "nvidia.com/gpu"
    """What a container asks for to have a GPU of its own; empty: the template's claims bring them."""
    sense_seconds: float = 2.0
    """What nodes have is asked for this often."""
    keep_seconds: float = 300.0
    """Jobs that failed are kept for this long, for `kubectl logs`; so is a tournament's ConfigMap without Jobs."""


@dataclass(frozen=True)
class ExternalOptions:
    """What the launcher `external` can be told."""

    metrics_port: int = 0
    """Where pods serve metrics on the host that each is named after, for the list at /pods; 0: nobody knows."""


@dataclass(frozen=True)
class LauncherOptions:
    """Of all launchers; each reads its own."""

    docker: DockerOptions = field(default_factory=DockerOptions)
    """Of the launcher `docker`."""
    kubernetes: KubernetesOptions = field(default_factory=KubernetesOptions)
    """Of the launcher `kubernetes`."""
    external: ExternalOptions = field(default_factory=ExternalOptions)
    """Of the launcher `external`."""
