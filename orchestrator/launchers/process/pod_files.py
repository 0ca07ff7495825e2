"""Reads the files that describe the pods of this machine, one per pod, which the fork server writes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.decisions.resources import Resources
from orchestrator.launchers.base import ListedPod
from orchestrator.launchers.pod_settings import LAYOUTS, LEADER
from podrace.processes.identity import Process, boot_id
from podrace.processes.metrics_ports import recorded

POD_FILE = "pod.json"


@dataclass(frozen=True)
class PodFile:
    """Content of a pod file."""

    pod: ListedPod
    boot_id: str
    cpus: tuple[int, ...]
    gpus: tuple[str, ...]
    """UUIDs."""
    roles: dict[str, Process]
    user_code_uid: int = 0
    """User id of the processes with user code; 0: that of the leader."""
    role_folders: dict[str, Path] = field(default_factory=dict)
    """Folder of each role."""

    @property
    def lives(self) -> bool:
        """Whether the pod's leader is alive."""
        return self.boot_id == boot_id() and self.roles[LEADER].lives

    def metrics(self, host: str) -> dict[str, str]:
        """Returns where the roles serve their metrics, as far as they have recorded it."""
        ports = {role: recorded(self.role_folders[role], role, process) for role, process in self.roles.items()}
        return {role: f"{host}:{port}" for role, port in ports.items() if port}


@dataclass(frozen=True)
class Reservation:
    """What a pod holds that is being started and has no file yet."""

    cpus: tuple[int, ...]
    gpus: tuple[str, ...]
    uid: int


@dataclass(frozen=True)
class PodsPresent:
    """The pods of this machine at one time."""

    files: Mapping[str, PodFile | None]
    """Pod files by pod id, in order; None for a folder without a file (yet)."""
    living: Mapping[str, PodFile]
    """Files of the pods whose leader is alive."""
    starting: Mapping[str, Reservation]
    """Pods that are being started; they may have a file already."""

    @property
    def gpus_by_pod(self) -> dict[str, tuple[str, ...]]:
        """UUIDs of the GPUs of pods that run or are being started."""
        living = {pod_id: file.gpus for pod_id, file in self.living.items()}
        return living | {pod_id: reserved.gpus for pod_id, reserved in self.starting.items()}

    @property
    def held_gpus(self) -> set[str]:
        """The same of all these pods together."""
        return {gpu for gpus in self.gpus_by_pod.values() for gpu in gpus}

    @property
    def pids(self) -> set[int]:
        """Process ids of the roles of all pods that have files, also of those whose leader has just died."""
        return {process.pid for file in self.files.values() if file for process in file.roles.values()}

    @property
    def uids(self) -> set[int]:
        """User ids of pods that run or are being started."""
        running = {file.user_code_uid for file in self.living.values()}
        return running | {reserved.uid for reserved in self.starting.values()}


def read_pods(folder: Path, starting: Mapping[str, Reservation]) -> PodsPresent:
    """Reads all pod files.

    Args:
        folder: Folder of the pods.
        starting: Pods that were being started before this call: one that no longer is has a file by now.
    """
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    files = {path.name: read_pod_file(path / POD_FILE) for path in folders}
    living = {pod_id: file for pod_id, file in files.items() if file is not None and file.lives}
    return PodsPresent(files, living, starting)


def read_pod_file(path: Path) -> PodFile | None:
    """Reads a pod file; None if it does not exist or is damaged."""
    try:
        content = json.loads(path.read_text())
        gpus = tuple(content["gpus"])
        return PodFile(
            pod=ListedPod(
                pod_id=content["pod_id"],
                tournament_id=content["tournament_id"],
                start_time=content["start_time"],
                layout=LAYOUTS[content["layout"]],
                reserved=Resources(content["cores"], content["memory_bytes"], len(gpus)),
            ),
            boot_id=content["boot_id"],
            cpus=tuple(content["cpus"]),
            gpus=gpus,
            roles={name: Process(role["pid"], role["start_ticks"]) for name, role in content["roles"].items()},
            user_code_uid=content.get("user_code_uid", 0),
            role_folders={name: Path(role.get("folder", path.parent)) for name, role in content["roles"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
