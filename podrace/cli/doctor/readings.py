"""Defines what the doctor reads before anything is judged."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class MachineReading:
    """The machine, within the limits of this process."""

    platform: str
    """Operating system, for instance `linux`."""
    cores: float
    """Processors that this process may use; a quota can make it a fraction."""
    memory_bytes: int
    available_bytes: int
    """Memory that is free now."""
    shared_memory_bytes: int | None
    """Free space in /dev/shm; None: there is no such folder, or it cannot be written to."""
    open_files: int
    """Files that a process may have open; -1: unlimited."""
    runtime_folder: str
    """Folder of the sockets of the embedded mesh."""


@dataclass(frozen=True)
class HomeReading:
    """The folder of the embedded mesh."""

    folder: str
    problem: str
    """Why it cannot be used; empty if it can."""
    exists: bool
    free_bytes: int
    """Free space of its disk."""


@dataclass(frozen=True)
class StoreReading:
    """The checkpoint store."""

    uri: str
    problem: str
    """Why it cannot be used; empty if it can."""
    exists: bool = True
    """Whether it was opened; a folder that does not exist yet is not created."""
    skew_seconds: float = 0.0
    """Seconds by which the clock of the store is ahead of this machine."""


@dataclass(frozen=True)
class PortReading:
    """A port on which a service listens by default."""

    service: str
    port: int
    free: bool


@dataclass(frozen=True)
class ServerReading:
    """An orchestrator."""

    address: str
    problem: str
    """Why it does not answer; empty if it does."""
    version: str = ""
    skew_seconds: float | None = None
    """Seconds by which its clock is ahead of this machine; None: it does not report its time."""
    launcher: str = ""
    starts_pods: bool = True


@dataclass(frozen=True)
class ClusterReading:
    """A Kubernetes cluster."""

    namespace: str
    problem: str
    """Why it does not answer; empty if it does."""
    version: str = ""
    rights: Mapping[str, bool] = field(default_factory=dict)
    """Whether each right is granted, by its name in `cluster.RIGHTS` and `cluster.WISHES`."""


@dataclass(frozen=True)
class ManifestReading:
    """A file or folder of Kubernetes manifests."""

    path: str
    problem: str
    """Why it cannot be rendered, or why the cluster refuses it; empty if there is no problem."""
    objects: int = 0
    """How many objects it has."""
    checked_by_cluster: bool = False
    """Whether the API server has checked the objects, without creating them."""
