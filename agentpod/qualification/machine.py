"""Examines the machine: GPUs, driver, versions, names of devices, shared memory, namespaces and InfiniBand."""

import ctypes
import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import pynvml
import torch

from agentpod.qualification.bench import Bench
from podrace.gpus import Gpu
from podrace.qualification.findings import Finding, Grade

PART = "machine"
GIB = 1 << 30
SHM_BYTES = GIB
"""Shared memory that a pod needs for each GPU: NCCL's buffers, and the files of the plane `shared`."""
VERBS = "libibverbs.so.1"
"""The library with which NCCL uses InfiniBand. NCCL opens it by name, and uses sockets if there is none."""
SHORT_OF_MEMORY = 0.9
"""A GPU with a smaller free share of its memory is used by other processes, and rates are not those of the GPU."""


@dataclass(frozen=True)
class Port:
    """A port of an InfiniBand or RoCE adapter."""

    name: str
    state: str
    """`ACTIVE` if it can be used."""
    rate: str
    """For instance `400 Gb/sec (4X NDR)`."""


@dataclass(frozen=True)
class Surveyed:
    """What was read of a machine."""

    gpus: tuple[Gpu, ...] = ()
    """The GPUs to examine."""
    problems: tuple[str, ...] = ()
    """What the driver could not report."""
    driver: str = ""
    driver_cuda: int = 0
    """Newest version of CUDA that the driver supports: 13000 is 13.0."""
    torch: str = ""
    torch_cuda: str = ""
    """Version of CUDA that PyTorch was built for; empty: for processors only."""
    nccl: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions of CuPy's package, Warp and MuJoCo Warp."""
    cuda_names: tuple[str, ...] = ()
    """UUIDs of PyTorch's devices in their order, without the prefix."""
    peer_pairs: tuple[tuple[int, int, bool], ...] = ()
    """Pairs of devices, and whether the first can access the memory of the second."""
    shm_bytes: int = 0
    """Size of /dev/shm."""
    shm_free_bytes: int = 0
    locked_bytes: int = 0
    """Memory that this process may lock; -1: unlimited."""
    namespaces: Mapping[str, str] = field(default_factory=dict)
    """Identifiers of the namespaces `pid` and `ipc`, and what started the container, if anything."""
    ports: tuple[Port, ...] = ()
    verbs_problem: str = ""
    """Why the library `VERBS` cannot be opened; empty: it can."""


def run(bench: Bench) -> Iterator[Finding]:
    """Surveys the machine and grades it."""
    return judge(survey(bench))


# --- judgement ---------------------------------------------------------------------------------------------------


def judge(found: Surveyed) -> Iterator[Finding]:
    """Grades a machine. Pure."""
    yield from _judge_gpus(found)
    yield from _judge_versions(found)
    yield from _judge_names(found)
    yield from _judge_memory(found)
    yield from _judge_network(found)


def _judge_gpus(found: Surveyed) -> Iterator[Finding]:
    for problem in found.problems:
        yield Finding(PART, "driver's answer", Grade.FAIL, problem, remedy="check `nvidia-smi` and `dmesg` on the host")
    if not found.gpus:
        remedy = "give the container or the process a GPU; check `nvidia-smi -L`"
        yield Finding(PART, "GPUs", Grade.ABSENT, "the driver shows none", remedy=remedy)
    for number, gpu in enumerate(found.gpus):
        kind = "instance (MIG)" if gpu.is_instance else "GPU"
        measured = f"{kind} {gpu.uuid}, {gpu.model}, {gpu.memory}, {gpu.uncorrected_errors} uncorrected errors"
        name = f"GPU {number}"
        if gpu.fault:
            yield Finding(PART, name, Grade.FAIL, f"{measured}; {gpu.fault}", remedy="reset or replace the GPU")
        elif gpu.free_bytes < SHORT_OF_MEMORY * gpu.memory_bytes:
            remedy = f"end the {len(gpu.pids)} processes that compute on it, or examine another GPU with --gpus"
            yield Finding(PART, name, Grade.SLOW, measured, "90 % of the memory free", remedy=remedy)
        else:
            yield Finding(PART, name, Grade.PASS, measured)


def _judge_versions(found: Surveyed) -> Iterator[Finding]:
    driver = f"{found.driver}, CUDA {_version(found.driver_cuda)}"
    if not found.driver:
        yield Finding(PART, "driver", Grade.ABSENT, remedy="install NVIDIA's driver on the host")
    elif found.torch_cuda and found.driver_cuda // 1000 < _major(found.torch_cuda):
        remedy = f"install a driver for CUDA {found.torch_cuda}, or use the image podrace/agentpod-cuda12"
        yield Finding(PART, "driver", Grade.FAIL, driver, f"CUDA {found.torch_cuda}, of PyTorch", remedy=remedy)
    else:
        yield Finding(PART, "driver", Grade.PASS, driver)
    versions = f"{found.torch}, CUDA {found.torch_cuda or '(none)'}"
    if found.torch_cuda:
        yield Finding(PART, "PyTorch", Grade.PASS, versions)
    else:
        # Without a GPU this is the right build.
        grade = Grade.FAIL if found.gpus else Grade.ABSENT
        yield Finding(PART, "PyTorch", grade, versions, "a build for CUDA", remedy="run `make install-gpu`")
    yield _judge_cupy(found)
    remedy = "PyTorch for CUDA brings NCCL; see `make install-gpu`"
    yield _installed("NCCL", found.nccl, remedy)
    yield _installed("Warp", found.packages.get("warp-lang", ""), "pip install 'podrace[warp]'")
    yield _installed("MuJoCo Warp", found.packages.get("mujoco-warp", ""), "pip install 'podrace[warp]'")


def _judge_cupy(found: Surveyed) -> Finding:
    installed = {name: version for name, version in found.packages.items() if name.startswith("cupy")}
    text = ", ".join(f"{name} {version}" for name, version in sorted(installed.items()))
    wanted = f"cupy-cuda{_major(found.torch_cuda)}x" if found.torch_cuda else "cupy-cuda13x or cupy-cuda12x"
    remedy = f"install {wanted} alone; without it the plane `cuda` cannot be used"
    if not installed:
        return Finding(PART, "CuPy", Grade.FAIL if found.gpus else Grade.ABSENT, "not installed", wanted, remedy=remedy)
    fits = list(installed) == [wanted] or not found.torch_cuda
    return Finding(PART, "CuPy", Grade.PASS if fits else Grade.FAIL, text, wanted, remedy="" if fits else remedy)


def _installed(name: str, version: str, remedy: str) -> Finding:
    if version:
        return Finding(PART, name, Grade.PASS, version)
    return Finding(PART, name, Grade.ABSENT, "not installed", remedy=remedy)


def _judge_names(found: Surveyed) -> Iterator[Finding]:
    named = tuple(gpu.uuid for gpu in found.gpus)
    if not named:
        yield Finding(PART, "names of devices", Grade.ABSENT, remedy="needs a GPU")
        return
    pairs = ", ".join(f"cuda:{number} = GPU-{name[:8]}" for number, name in enumerate(found.cuda_names))
    # PyTorch names an instance of a partitioned GPU as the whole GPU, so these are not compared.
    same = any(gpu.is_instance for gpu in found.gpus) or tuple(f"GPU-{name}" for name in found.cuda_names) == named
    remedy = "" if same else "unset CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, or set the order to PCI_BUS_ID"
    expected = ", ".join(named)
    yield Finding(
        PART, "names of devices", Grade.PASS if same else Grade.FAIL, pairs or "none", expected, remedy=remedy
    )
    if len(named) < 2:
        yield Finding(PART, "peer access", Grade.ABSENT, remedy="needs two GPUs")
        return
    without = [f"{one} to {other}" for one, other, access in found.peer_pairs if not access]
    measured = f"none: {', '.join(without)}" if without else f"all {len(found.peer_pairs)} pairs"
    remedy = "planes between these GPUs pass through host memory; check `nvidia-smi topo -p2p r`" if without else ""
    yield Finding(PART, "peer access", Grade.SLOW if without else Grade.PASS, measured, "all pairs", remedy=remedy)


def _judge_memory(found: Surveyed) -> Iterator[Finding]:
    wanted = SHM_BYTES * max(1, len(found.gpus))
    measured = f"{found.shm_free_bytes / GIB:.1f} of {found.shm_bytes / GIB:.1f} GiB free"
    enough = found.shm_free_bytes >= wanted
    remedy = "" if enough else "docker run --shm-size, or in Kubernetes an emptyDir of medium Memory at /dev/shm"
    expected = f"{wanted / GIB:.0f} GiB free"
    yield Finding(PART, "/dev/shm", Grade.PASS if enough else Grade.FAIL, measured, expected, remedy=remedy)
    spaces = ", ".join(f"{name} {value}" for name, value in found.namespaces.items())
    yield Finding(PART, "namespaces", Grade.PASS, spaces)


def _judge_network(found: Surveyed) -> Iterator[Finding]:
    if not found.ports:
        remedy = "between nodes NCCL uses sockets; for RDMA give the container the devices, see docs/cluster.md"
        yield Finding(PART, "InfiniBand", Grade.ABSENT, "no adapter", remedy=remedy)
        return
    for port in found.ports:
        active = "ACTIVE" in port.state
        remedy = "" if active else "check the cable and the subnet manager with `ibstat`"
        grade = Grade.PASS if active else Grade.FAIL
        yield Finding(PART, f"InfiniBand {port.name}", grade, f"{port.state}, {port.rate}", "ACTIVE", remedy=remedy)
    remedy = "apt-get install libibverbs1 ibverbs-providers; the images for GPUs have them (RDMA_PACKAGES)"
    if found.verbs_problem:
        yield Finding(PART, "libibverbs", Grade.FAIL, found.verbs_problem, "for NCCL on InfiniBand", remedy=remedy)
    else:
        yield Finding(PART, "libibverbs", Grade.PASS, f"{VERBS} can be opened")
    unlimited = found.locked_bytes < 0
    remedy = "" if unlimited else "docker run --ulimit memlock=-1; in Kubernetes the nodes' runtime must allow it"
    measured = "unlimited" if unlimited else f"{found.locked_bytes >> 10} KiB"
    grade = Grade.PASS if unlimited else Grade.FAIL
    yield Finding(PART, "locked memory", grade, measured, "unlimited, for RDMA", remedy=remedy)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _major(version: str) -> int:
    major = version.partition(".")[0]
    return int(major) if major.isdigit() else 0


# --- measuring ---------------------------------------------------------------------------------------------------


def survey(bench: Bench, nvml: Any = pynvml, root: Path = Path("/")) -> Surveyed:
    """Reads everything.

    Args:
        bench: The GPUs.
        nvml: The module `pynvml`, or one with the same functions.
        root: Root of the file system.
    """
    driver, driver_cuda = _driver(nvml)
    space = os.statvfs(root / "dev/shm")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Surveyed(
        gpus=bench.gpus,
        problems=bench.reading.problems,
        driver=driver,
        driver_cuda=driver_cuda,
        torch=torch.__version__,
        torch_cuda=torch.version.cuda or "",
        nccl=_nccl(),
        packages=dict(_packages()),
        cuda_names=_cuda_names(),
        peer_pairs=_peer_pairs(),
        shm_bytes=space.f_blocks * space.f_frsize,
        shm_free_bytes=space.f_bavail * space.f_frsize,
        locked_bytes=-1 if locked == resource.RLIM_INFINITY else locked,
        namespaces=_namespaces(root),
        ports=tuple(ports(root / "sys/class/infiniband")),
        verbs_problem=library_problem(VERBS),
    )


def _driver(nvml: Any) -> tuple[str, int]:
    try:
        nvml.nvmlInit()
        version = nvml.nvmlSystemGetDriverVersion()
        return version if isinstance(version, str) else version.decode(), int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    except nvml.NVMLError:
        return "", 0


def _nccl() -> str:
    if not torch.cuda.is_available():
        return ""
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError):
        return ""


def _packages() -> Iterator[tuple[str, str]]:
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith("cupy") or name in ("warp-lang", "mujoco-warp"):
            yield name, distribution.version


def _cuda_names() -> tuple[str, ...]:
    numbers = range(torch.cuda.device_count())
    return tuple(str(torch.cuda.get_device_properties(number).uuid) for number in numbers)


def _peer_pairs() -> tuple[tuple[int, int, bool], ...]:
    numbers = range(torch.cuda.device_count())
    return tuple(
        (one, other, torch.cuda.can_device_access_peer(one, other))
        for one in numbers
        for other in numbers
        if one != other
    )


def _namespaces(root: Path) -> dict[str, str]:
    found = {name: str((root / "proc/self/ns" / name).readlink()).partition(":")[2] for name in ("pid", "ipc")}
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        found["started by"] = "Kubernetes"
    elif (root / ".dockerenv").exists():
        found["started by"] = "Docker"
    return found


def library_problem(name: str) -> str:
    """Returns why a shared library cannot be opened; empty if it can."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return str(error)
    return ""


def ports(folder: Path) -> Iterator[Port]:
    """Yields the ports of the adapters that a folder such as /sys/class/infiniband lists."""
    for port in sorted(folder.glob("*/ports/*")):
        state, rate = ((port / name).read_text().strip() for name in ("state", "rate"))
        yield Port(f"{port.parents[1].name}/{port.name}", state.partition(": ")[2] or state, rate)
