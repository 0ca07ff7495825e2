"""Measures a group of processes: joining, averaging, and how soon a lost member is noticed.

Every member is its own process, as in a pod.
"""

import multiprocessing
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from agentpod.current_device import use_device
from agentpod.qualification.bench import synchronize
from podrace.errors import PodraceError
from podrace.qualification.findings import Finding, Grade
from podrace.tensor_transport.group import Group, MemberLost
from podrace.tensor_transport.group_store import GroupStore, wait_for_store

REPORT_SECONDS = 120.0
JOIN_SECONDS, LOST_SECONDS = 20.0, 15.0
COLLECTIVE_SECONDS = 10.0
"""Timeout of the collectives in which a member is lost: between the GPUs of a machine nothing else shows the loss."""
MEAN_GB_PER_SECOND = 5.0
"""Rate at which a tensor must be averaged; PCI Express 4.0 copies 25 GB/s."""
REPEATS = 10
LOG_VARIABLES = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,P2P,SHM,NET"}
"""Make NCCL log the paths of its channels."""
STAGED_PATHS = ("SHM", "NET/Socket")
"""Paths through memory of the host, or without RDMA."""
_PATH = re.compile(r"NCCL INFO Channel .* via (?P<path>[A-Z0-9]\w*(?:/[\w.-]+)*)")


@dataclass(frozen=True)
class GroupTrial:
    """What the members of a group measured."""

    part: str
    members: int
    join_seconds: float
    mean_seconds: float
    """Of averaging once."""
    mean_bytes: int
    right: bool
    """Whether all members got the mean."""
    lost_seconds: float | None
    """Time until the others noticed a member that was killed; None: they did not."""
    paths: tuple[str, ...] = ()
    """Paths of NCCL between the members of this machine and to others; empty: unknown, or gloo."""
    message: str = ""
    """Why there are no measurements."""


# --- judgement ---------------------------------------------------------------------------------------------------


def judge(found: GroupTrial) -> Iterator[Finding]:
    """Grades a group. Pure."""
    part, name = found.part, f"{found.members} members"
    nccl = "read the messages of NCCL with NCCL_DEBUG=INFO"
    if found.message:
        yield Finding(part, f"{name}, join", Grade.FAIL, found.message, remedy=nccl)
        return
    fast = found.join_seconds <= JOIN_SECONDS
    grade, remedy = (Grade.PASS, "") if fast else (Grade.SLOW, nccl)
    measured, expected = f"{found.join_seconds:.1f} s", f"at most {JOIN_SECONDS:g} s"
    yield Finding(part, f"{name}, join", grade, measured, expected, remedy=remedy)
    rate = found.mean_bytes / found.mean_seconds / 1e9
    measured, expected = f"{rate:.2f} GB/s", f"at least {MEAN_GB_PER_SECOND:g} GB/s"
    if not found.right:
        yield Finding(part, f"{name}, mean", Grade.FAIL, "a wrong mean", remedy="set NCCL_P2P_DISABLE=1, and report it")
    else:
        fast = rate >= MEAN_GB_PER_SECOND
        remedy = "" if fast else "check `nvidia-smi topo -m`; between nodes NCCL_IB_HCA and NCCL_DEBUG=INFO"
        yield Finding(part, f"{name}, mean", Grade.PASS if fast else Grade.SLOW, measured, expected, remedy=remedy)
    yield _judge_paths(found)
    expected = f"noticed within {LOST_SECONDS:g} s"
    if found.lost_seconds is None or found.lost_seconds > LOST_SECONDS:
        yield Finding(part, f"{name}, member killed", Grade.FAIL, "not noticed in time", expected, remedy=nccl)
    else:
        measured = f"noticed after {found.lost_seconds:.1f} s"
        yield Finding(part, f"{name}, member killed", Grade.PASS, measured, expected)


def _judge_paths(found: GroupTrial) -> Finding:
    name, expected = f"{found.members} members, paths", "P2P in a node, NET/IB between nodes"
    if not found.paths:
        return Finding(found.part, name, Grade.ABSENT, "unknown", remedy="NCCL did not log them, or is not used")
    staged = any(path.startswith(STAGED_PATHS) for path in found.paths)
    remedy = "see peer access and InfiniBand in the part machine, and docs/cluster.md" if staged else ""
    return Finding(
        found.part, name, Grade.SLOW if staged else Grade.PASS, ", ".join(found.paths), expected, remedy=remedy
    )


def paths_of(log: str) -> set[str]:
    """Returns the paths that NCCL's log names: P2P/CUMEM, SHM/direct, NET/IB/GDRDMA or NET/Socket, for instance. Pure.

    Numbers of adapters are left out.
    """
    found = (match["path"].split("/") for match in _PATH.finditer(log))
    return {"/".join(part for part in path[:4] if not part.isdigit()) for path in found}


# --- measuring ---------------------------------------------------------------------------------------------------


def group_trial(part: str, devices: Sequence[str], elements: int) -> GroupTrial:
    """Joins a process for each device to a group, averages, and kills the last one.

    Args:
        part: Part that it belongs to.
        devices: One for each member.
        elements: Of the tensor that is averaged.
    """
    store = GroupStore()
    try:
        return _run(part, store.address, dict(enumerate(devices)), len(devices), elements)
    finally:
        store.close()


def node_trial(part: str, meet: str, node: int, nodes: int, device: str, elements: int) -> GroupTrial:
    """Runs the member of this node in a group of one process on each node.

    Args:
        part: Part that it belongs to.
        meet: `host:port` of node 0, at which the members find each other.
        node: Number of this node.
        nodes: Number of nodes.
        device: Device of this member.
        elements: Of the tensor that is averaged.

    Raises:
        InvalidArgument: The host of `meet` is not an address of node 0.
    """
    host, _, port = meet.rpartition(":")
    store = GroupStore(host, int(port)) if node == 0 else None
    try:
        return _run(part, meet, {node: device}, nodes, elements, host=own_address(host, int(port)))
    finally:
        if store:
            store.close()


def _run(
    part: str, address: str, devices: dict[int, str], size: int, elements: int, host: str = "127.0.0.1"
) -> GroupTrial:
    """Starts the members of this machine, by their ranks, and gathers what they report."""
    context = multiprocessing.get_context("spawn")
    ends, processes = {}, []
    for rank, device in devices.items():
        ends[rank], other = context.Pipe()
        arguments = (address, rank, size, device, elements, host, other)
        processes.append(context.Process(target=member, args=arguments, daemon=True))
    try:
        for process in processes:
            process.start()
        return _gathered(part, ends, size, elements)
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def _gathered(part: str, ends: dict[int, Any], size: int, elements: int) -> GroupTrial:
    reports = [_received(end) for end in ends.values()]
    trial = GroupTrial(part, size, 0.0, 0.0, 4 * elements, right=False, lost_seconds=None)
    paths = {path for report in reports for path in report.get("paths", ())}
    if failed := [report["error"] for report in reports if "error" in report]:
        return replace(trial, message=str(failed[0]))
    # The last member kills itself after its report; the others notice.
    lost = [_received(end).get("lost") for rank, end in ends.items() if rank < size - 1]
    known = [seconds for seconds in lost if seconds is not None]
    return replace(
        trial,
        join_seconds=max(report["join"] for report in reports),
        mean_seconds=max(report["mean"] for report in reports),
        right=all(report["right"] for report in reports),
        paths=tuple(sorted(paths)),
        lost_seconds=max(known, default=0.0) if len(known) == len(lost) else None,
    )


def _received(end: Any) -> dict[str, Any]:
    try:
        if end.poll(REPORT_SECONDS):
            report: dict[str, Any] = end.recv()
            return report
    except EOFError:
        return {"error": "a member exited by itself"}
    return {"error": f"a member did not report within {REPORT_SECONDS:g} s"}


def member(address: str, rank: int, size: int, device: str, elements: int, host: str, end: Any) -> None:
    """Runs one member: reports measurements, then how soon it noticed the loss of the last one, which kills itself."""
    log = Path(tempfile.mkdtemp(prefix="podrace-nccl-")) / "log"
    os.environ |= {**LOG_VARIABLES, "NCCL_DEBUG_FILE": str(log)}
    try:
        use_device(device)
        torch.set_num_threads(1)
        started = time.monotonic()
        wait_for_store(address, REPORT_SECONDS / 2)
        group = Group.join(
            address, f"qualify-{size}", rank, size, device, timeout_seconds=REPORT_SECONDS / 2, host=host
        )
        join_seconds = time.monotonic() - started
        measured = measure_group(group, device, elements)
        paths = paths_of(log.read_text(errors="replace")) if log.exists() else set()
        # The first group stays as it is: others may still be in its last collective.
        losing = Group.join(
            address, f"qualify-{size}-lost", rank, size, device, timeout_seconds=COLLECTIVE_SECONDS, host=host
        )
        end.send({"join": join_seconds, "paths": paths, **measured})
        if rank == size - 1:
            losing.mean_(torch.zeros(4, device=device))
            os._exit(1)
        end.send({"lost": lost_seconds(losing, device)})
    except (PodraceError, RuntimeError) as error:
        end.send({"error": f"{type(error).__name__}: {error}".splitlines()[0]})
    os._exit(0)


def measure_group(group: Group, device: str, elements: int) -> dict[str, Any]:
    """Averages a tensor over a group: the seconds that it takes, and whether the mean is right."""
    tensor = torch.full((elements,), float(group.rank), device=device)
    group.mean_(tensor)
    right = bool((tensor == (group.size - 1) / 2).all())
    synchronize(device)
    started = time.monotonic()
    for _ in range(REPEATS):
        group.mean_(tensor)
    synchronize(device)
    return {"mean": (time.monotonic() - started) / REPEATS, "right": right}


def lost_seconds(group: Group, device: str) -> float | None:
    """Returns the time until a collective reports the loss of the last member; None if four succeed.

    That member takes part in the first one and may exit before the others have completed it.
    """
    for _ in range(4):
        started = time.monotonic()
        try:
            group.mean_(torch.zeros(4, device=device))
        except MemberLost:
            return time.monotonic() - started
    return None


def own_address(host: str, port: int) -> str:
    """Returns the address of this machine from which another one is reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Sends nothing.
        probe.connect((host, port))
        address: str = probe.getsockname()[0]
    return address
