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
    spare_memory_bytes: int = 1 << 30
    """Of the engine's machine, for everything that is no pod."""


@dataclass(frozen=True)
class LauncherOptions:
    """Of all launchers; each reads its own."""

    docker: DockerOptions = field(default_factory=DockerOptions)
    """Of the launcher `docker`."""
