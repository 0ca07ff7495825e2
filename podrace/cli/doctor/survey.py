"""Reads the machine, the packages, the home, the store, the ports and a server. Creates no home and no folder."""

import os
import platform
import re
import resource
import shutil
import socket
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from importlib import metadata
from pathlib import Path

from podrace import __version__
from podrace.checkpoint_store import open_store
from podrace.cli.doctor.readings import HomeReading, MachineReading, PortReading, ServerReading, StoreReading
from podrace.client import discovery
from podrace.errors import PodraceError
from podrace.mesh.home import Folders
from podrace.mesh.store_choice import DEADLINE_SECONDS, choose_store
from podrace.ownership import make_own_folder
from podrace.processes.machine_limits import allowed_cores, allowed_memory_bytes

SHARED_MEMORY = Path("/dev/shm")
PORTS = {"orchestrator": 50051, "leaderboard": 50052}
"""Where services listen unless their configuration states another address."""
TRAINING = "agentpod"
"""The extra that pods need."""
OPTIONAL = ("policy", "mujoco", "warp", "envpool", "atari", "minio", "docker", "kubernetes", "stocks", "plots")
"""Extras that the report lists."""
_REQUIREMENT = re.compile(r"^([\w.-]+)[^;]*(?:;.*\bextra == ['\"]([\w-]+)['\"])?")


def read_machine(folders: Folders, root: Path = Path("/"), shared_memory: Path = SHARED_MEMORY) -> MachineReading:
    """Reads the machine.

    Args:
        folders: Folders of the home.
        root: Folder that contains /proc and /sys.
        shared_memory: Folder of shared memory.
    """
    total, available = allowed_memory_bytes(root)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MachineReading(
        platform=sys.platform,
        cores=allowed_cores(root),
        memory_bytes=total,
        available_bytes=available,
        shared_memory_bytes=shutil.disk_usage(shared_memory).free if os.access(shared_memory, os.W_OK) else None,
        open_files=-1 if limit == resource.RLIM_INFINITY else limit,
        runtime_folder=str(folders.runtime),
    )


def read_packages(names: Iterable[str]) -> dict[str, str]:
    """Returns the versions of those packages that are installed, of podrace and of Python."""
    found = {"podrace": __version__, "python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def read_requirements() -> list[str]:
    """Returns the requirements of podrace; empty if its source is used without an installation."""
    try:
        return metadata.requires("podrace") or []
    except metadata.PackageNotFoundError:
        return []


def extras_of(requirements: Collection[str]) -> Mapping[str, list[str]]:
    """Returns the packages of each extra, from the metadata of a distribution.

    Args:
        requirements: Its requirements, for instance `torch>=2.11; extra == "agentpod"`.
    """
    found: dict[str, list[str]] = {}
    for text in requirements:
        match = _REQUIREMENT.match(text)
        if match and match[2] and match[1] not in found.setdefault(match[2], []):
            found[match[2]].append(match[1])
    return found


def read_home(folders: Folders) -> HomeReading:
    """Reads the home; one that does not exist is not created, but the folder above it is examined."""
    above = _existing(folders.home)
    problem = ""
    if above == folders.home:
        try:
            make_own_folder(folders.home, "see below")
        except PodraceError as error:
            problem = error.message.removesuffix("; see below")
    elif not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        problem = f"{folders.home} cannot be created, because {above} cannot be written to"
    return HomeReading(str(folders.home), problem, folders.home.exists(), shutil.disk_usage(above).free)


def read_store(folders: Folders, wanted: str) -> StoreReading:
    """Opens the store of a home, which writes a probe to it; a folder that does not exist is not created.

    Args:
        folders: Folders of the home.
        wanted: Store that the user named; empty: that of the home.
    """
    known = folders.store_note.exists() or folders.leaderboard_database.exists()
    uri = wanted or (choose_store(folders, "", writes=False) if known else str(folders.store))
    scheme, separator, path = uri.rpartition("://")
    folder = Path(path).absolute()
    if (not separator or scheme == "folder") and not folder.exists():
        above = _existing(folder)
        writable = os.access(above, os.W_OK | os.X_OK)
        return StoreReading(uri, "" if writable else f"{uri}: {above} cannot be written to", exists=False)
    try:
        store = open_store(uri, deadline_seconds=DEADLINE_SECONDS)
    except PodraceError as error:
        return StoreReading(uri, error.message)
    return StoreReading(store.uri, "", skew_seconds=float(getattr(store, "skew_seconds", 0.0)))


def read_port(service: str, port: int) -> PortReading:
    """Finds out whether a program listens on a port of this machine, by listening there for a moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return PortReading(service, port, free=False)
    return PortReading(service, port, free=True)


async def read_server(address: str) -> ServerReading:
    """Asks an orchestrator for its version and its time."""
    begin = time.time()
    try:
        server = await discovery.get_server(address)
    except PodraceError as error:
        return ServerReading(address, error.message)
    middle = (begin + time.time()) / 2
    skew = server.time.ToNanoseconds() / 1e9 - middle if server.HasField("time") else None
    return ServerReading(address, "", server.version, skew, server.launcher, server.starts_pods)


def _existing(folder: Path) -> Path:
    """Returns the folder, or the nearest one above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.exists())
