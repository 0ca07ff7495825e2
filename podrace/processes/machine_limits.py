"""Measures the processors and the memory that this process may use.

In a container, /proc shows the whole machine, while the limits are in its control groups. Both versions of control
groups are read, each group and its parents, because any of them can have the lowest limit.
"""

import os
from collections.abc import Iterator
from pathlib import Path

KIBIBYTE = 1024
MICROSECONDS = 1e6


def allowed_cpus() -> list[int]:
    """The processors this process may run on."""
    return sorted(os.sched_getaffinity(0))


def allowed_cores(root: Path = Path("/")) -> float:
    """Allowed processors, or the lowest time quota of a control group if that is less.

    Args:
        root: Folder that contains /proc and /sys.
    """
    cores = float(len(allowed_cpus()))
    for group in _groups(root, "cpu"):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if not quota:
            quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
        if quota.isdigit():
            cores = min(cores, int(quota) / float(period or MICROSECONDS / 10))
    return cores


def allowed_memory_bytes(root: Path = Path("/")) -> tuple[int, int]:
    """Memory that may be used, and how much of it is available now.

    Args:
        root: Folder that contains /proc and /sys.
    """
    machine = _table(_read(root / "proc/meminfo"))
    total = machine["MemTotal:"] * KIBIBYTE
    available = machine["MemAvailable:"] * KIBIBYTE
    for group in _groups(root, "memory"):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        if not limit.isdigit() or int(limit) >= total:
            continue
        used = int(_read(group / "memory.current") or _read(group / "memory.usage_in_bytes") or 0)
        statistics = _table(_read(group / "memory.stat"))
        # The kernel reclaims file pages that were not used recently.
        reclaimable = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
        total = int(limit)
        available = min(available, total - used + reclaimable)
    return total, max(available, 0)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the control groups of this process, from the innermost outwards."""
    mounts = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = mounts / controller if controllers else mounts
        group = mount / path.lstrip("/")
        # In a container the path may be that of the host, of which only the mount itself is visible.
        yield from (group, *(parent for parent in group.parents if parent.is_relative_to(mount)))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _table(text: str) -> dict[str, int]:
    """First two columns of each line: a name and a number."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}
