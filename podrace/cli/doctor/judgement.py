"""Judges the readings, and names what to do. Pure: no function reads anything itself."""

from collections.abc import Collection, Iterator, Mapping

from podrace.cli.doctor.diagnosis import Diagnosis, Severity
from podrace.cli.doctor.readings import (
    ClusterReading,
    HomeReading,
    MachineReading,
    ManifestReading,
    PortReading,
    ServerReading,
    StoreReading,
)
from podrace.disk_space import MIB
from podrace.gpus import Gpu, Reading
from podrace.qualification.findings import Finding, Grade

GIB = 1 << 30
POD_BYTES = GIB
"""Memory that a pod of a small specification uses."""
LEAST_SHARED_BYTES = 256 * MIB
"""Rollouts and replay memories of a small specification. Docker gives a container 64 MiB if it is not configured."""
LEAST_DISK_BYTES = 2 * GIB
FEWEST_FILES = 1024
LONGEST_RUNTIME_PATH = 60
"""A socket path has at most 107 bytes, of which the names of pods and roles need the rest."""
LARGEST_SKEW_SECONDS = 30.0
"""A larger difference makes log lines of several machines hard to compare."""
REFUSED_SKEW_SECONDS = 300.0
"""With a larger difference, signatures of requests and tokens count as expired or not yet valid."""

_GRADES = {
    Grade.PASS: Severity.OK,
    Grade.SLOW: Severity.WARNING,
    Grade.FAIL: Severity.ERROR,
    # Optional, such as InfiniBand.
    Grade.ABSENT: Severity.OK,
}


def _line(area: str, name: str, found: str, severity: Severity = Severity.OK, remedy: str = "") -> Diagnosis:
    return Diagnosis(area, name, severity, found, "" if severity is Severity.OK else remedy)


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"


def judge_machine(read: MachineReading) -> Iterator[Diagnosis]:
    """Judges the machine."""
    severity = Severity.OK if read.platform == "linux" else Severity.ERROR
    yield _line("machine", "system", read.platform, severity, "run podrace on Linux, for instance in a container")
    severity = Severity.WARNING if read.cores < 1 else Severity.OK
    remedy = "a pod needs about one core: raise the limit of the container (docker run --cpus, resources.limits.cpu)"
    yield _line("machine", "cores", f"{read.cores:g}", severity, remedy)
    free = f"{_gib(read.available_bytes)} of {_gib(read.memory_bytes)} available"
    severity = Severity.WARNING if read.available_bytes < POD_BYTES else Severity.OK
    remedy = "a pod needs about 1 GiB: stop other programs, or raise the memory limit of the container"
    yield _line("machine", "memory", free, severity, remedy)
    yield _judge_shared_memory(read.shared_memory_bytes)
    files = "unlimited" if read.open_files < 0 else str(read.open_files)
    severity = Severity.WARNING if 0 <= read.open_files < FEWEST_FILES else Severity.OK
    yield _line("machine", "open files", files, severity, f"run `ulimit -n {FEWEST_FILES}` or more before podrace")
    length = len(read.runtime_folder.encode())
    severity = Severity.WARNING if length > LONGEST_RUNTIME_PATH else Severity.OK
    remedy = "socket paths have at most 107 bytes: set TMPDIR to a folder with a short path, for instance /tmp"
    yield _line("machine", "runtime folder", f"{read.runtime_folder} ({length} bytes)", severity, remedy)


def _judge_shared_memory(free_bytes: int | None) -> Diagnosis:
    remedy = "start the container with `docker run --shm-size=1g`, or in Kubernetes with an emptyDir of medium Memory"
    if free_bytes is None:
        return _line("machine", "shared memory", "/dev/shm cannot be written to", Severity.ERROR, remedy)
    severity = Severity.WARNING if free_bytes < LEAST_SHARED_BYTES else Severity.OK
    found = f"{_gib(free_bytes)} free in /dev/shm"
    return _line("machine", "shared memory", found, severity, f"training may run out of it: {remedy}")


def judge_packages(
    versions: Mapping[str, str], training: Collection[str], extras: Mapping[str, Collection[str]], *, remote: bool
) -> Iterator[Diagnosis]:
    """Judges the installed packages.

    Args:
        versions: Version of each package that is installed; packages that are not installed are absent.
        training: Packages that pods need.
        extras: Packages of each extra that a user may want.
        remote: Whether pods run elsewhere, so that this machine needs no PyTorch.
    """
    yield _line("packages", "podrace", f"{versions['podrace']}, Python {versions['python']}")
    missing = [name for name in training if name not in versions]
    found = ", ".join(f"{name} {versions[name]}" for name in training if name in versions)
    if not missing:
        yield _line("packages", "training", found)
    elif remote:
        yield _line("packages", "training", f"without {', '.join(missing)}; pods run elsewhere")
    else:
        remedy = "pip install 'podrace[agentpod]'; or train in another mesh with --orchestrator ADDRESS"
        yield _line("packages", "training", f"{', '.join(missing)} not installed", Severity.ERROR, remedy)
    complete = [extra for extra, packages in extras.items() if all(name in versions for name in packages)]
    absent = [extra for extra in extras if extra not in complete]
    text = f"{', '.join(complete) or 'none'}; not installed: {', '.join(absent)}" if absent else ", ".join(complete)
    yield _line("packages", "extras", text)


def judge_gpus(read: Reading) -> Iterator[Diagnosis]:
    """Judges what the driver reports."""
    for problem in read.problems:
        remedy = "check `nvidia-smi` and `dmesg` on the host"
        yield _line("GPU", "driver", problem, Severity.ERROR, remedy)
    if not read.gpus and not read.problems:
        yield _line("GPU", "GPUs", "none; pods train on the CPU")


def judge_gpu(gpu: Gpu) -> Diagnosis:
    """Judges one GPU by what the driver reports."""
    found = f"{gpu.model}, {_gib(gpu.free_bytes)} of {_gib(gpu.memory_bytes)} free"
    severity = Severity.ERROR if gpu.fault else Severity.OK
    return _line("GPU", gpu.uuid, f"{found}; {gpu.fault}" if gpu.fault else found, severity, "reset or replace the GPU")


def judge_finding(finding: Finding) -> Diagnosis:
    """Returns a finding of `podrace qualify` as a diagnosis."""
    severity = _GRADES[finding.grade]
    found = finding.measured or ("not there" if finding.grade is Grade.ABSENT else finding.grade.value)
    expected = f"; expected {finding.expected}" if finding.expected and severity is not Severity.OK else ""
    return _line("GPU", finding.name, f"{found}{expected}", severity, finding.remedy)


def judge_home(read: HomeReading) -> Iterator[Diagnosis]:
    """Judges the home."""
    if read.problem:
        yield _line("home", "folder", read.problem, Severity.ERROR, "choose another folder with --home or PODRACE_HOME")
        return
    yield _line("home", "folder", read.folder if read.exists else f"{read.folder} (created when it is first used)")
    severity = Severity.WARNING if read.free_bytes < LEAST_DISK_BYTES else Severity.OK
    remedy = "free space, for instance with `podrace prune`, or choose another --home"
    yield _line("home", "disk", f"{_gib(read.free_bytes)} free", severity, remedy)


def judge_store(read: StoreReading) -> Iterator[Diagnosis]:
    """Judges the checkpoint store."""
    if read.problem:
        remedy = "correct the address with --store or PODRACE_STORE; `podrace store check URI` repeats this check"
        yield _line("store", "access", read.problem, Severity.ERROR, remedy)
        return
    works = "can be read and written; conditional writes work" if read.exists else "created when it is first used"
    yield _line("store", "access", f"{read.uri} ({works})")
    if read.exists:
        yield _judge_skew("store", read.skew_seconds)


def judge_port(read: PortReading) -> Diagnosis:
    """Judges a port. An embedded mesh needs none, so a port in use is not an error."""
    name = f"port {read.port}"
    if read.free:
        return _line("ports", name, f"free (default of the {read.service})")
    remedy = f"to start the {read.service} here, set its server.listen to another port; an embedded mesh needs no port"
    return _line("ports", name, f"in use (default of the {read.service})", Severity.WARNING, remedy)


def judge_server(read: ServerReading, version: str) -> Iterator[Diagnosis]:
    """Judges an orchestrator.

    Args:
        read: The orchestrator.
        version: Version of this podrace.
    """
    if read.problem:
        remedy = "check the address, that the orchestrator runs, and the token (see docs/security.md)"
        yield _line("server", "access", read.problem, Severity.ERROR, remedy)
        return
    starts = f"launcher {read.launcher}" if read.starts_pods else f"launcher {read.launcher}, starts no pods"
    yield _line("server", "access", f"{read.address} answers, {starts}")
    severity = Severity.OK if read.version == version else Severity.WARNING
    found = f"server {read.version}, here {version}"
    yield _line("server", "version", found, severity, f"install podrace {read.version} here, or upgrade the server")
    if read.skew_seconds is None:
        yield _line("server", "clock", "the server does not report its time")
    else:
        yield _judge_skew("server", read.skew_seconds)


def _judge_skew(area: str, seconds: float) -> Diagnosis:
    found = f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} this machine"
    if abs(seconds) > REFUSED_SKEW_SECONDS:
        severity = Severity.ERROR
    else:
        severity = Severity.WARNING if abs(seconds) > LARGEST_SKEW_SECONDS else Severity.OK
    return _line(area, "clock", found, severity, "synchronize the clocks of both machines (NTP)")


def judge_cluster(read: ClusterReading, wishes: Collection[str]) -> Iterator[Diagnosis]:
    """Judges the rights in a cluster.

    Args:
        read: The cluster.
        wishes: The rights without which the orchestrator works with a limit.
    """
    if read.problem:
        remedy = "check the file of --kubeconfig and its current context with `kubectl cluster-info`"
        yield _line("cluster", "access", read.problem, Severity.ERROR, remedy)
        return
    yield _line("cluster", "access", f"Kubernetes {read.version} answers")
    where = f"in namespace {read.namespace}"
    for right, granted in read.rights.items():
        if granted:
            continue
        if right in wishes:
            remedy = "the orchestrator then sees only its own pods: apply podrace-capacity of orchestrator-access.yaml"
            yield _line("cluster", "rights", f"may not {right}", Severity.WARNING, remedy)
        else:
            remedy = f"apply deploy/k8s/base/orchestrator-access.yaml {where}, or examine its account with --as"
            yield _line("cluster", "rights", f"may not {right} {where}", Severity.ERROR, remedy)
    granted_rights = sum(read.rights.values())
    yield _line("cluster", "rights", f"{granted_rights} of {len(read.rights)} rights of the orchestrator {where}")


def judge_manifests(read: ManifestReading) -> Diagnosis:
    """Judges manifests."""
    if read.problem:
        remedy = f"correct the manifests; `kubectl kustomize {read.path}` repeats this check for a folder"
        return _line("manifests", read.path, read.problem, Severity.ERROR, remedy)
    checked = "accepted by the API server" if read.checked_by_cluster else "not compared with a cluster"
    return _line("manifests", read.path, f"{read.objects} objects, {checked}")
