import os
from pathlib import Path

from orchestrator.launchers.host_capacity import sense

GIB = 1 << 30
KIB = 1024


def machine(root: Path, cgroup: str, files: dict[str, str], total_gib: int = 16, available_gib: int = 12) -> Path:
    """Creates a /proc and a /sys of a machine whose process is in the control groups of `cgroup`."""
    meminfo = f"MemTotal: {total_gib * GIB // KIB} kB\nMemAvailable: {available_gib * GIB // KIB} kB\n"
    for name, text in {"proc/meminfo": meminfo, "proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_control_groups_the_whole_machine_counts(tmp_path: Path) -> None:
    found = sense(root=machine(tmp_path, "", {}))
    assert found.total.cores == len(os.sched_getaffinity(0))
    assert found.total.memory_bytes == 16 * GIB
    assert found.available_memory_bytes == 12 * GIB


def test_the_lowest_limit_of_all_parent_groups_counts(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/outer/cpu.max": "50000 100000",
        "sys/fs/cgroup/outer/inner/cpu.max": "max 100000",
        "sys/fs/cgroup/outer/memory.max": str(4 * GIB),
        "sys/fs/cgroup/outer/memory.current": str(3 * GIB),
        "sys/fs/cgroup/outer/memory.stat": f"anon 1\ninactive_file {GIB}\n",
        "sys/fs/cgroup/outer/inner/memory.max": "max",
    }
    found = sense(root=machine(tmp_path, "0::/outer/inner\n", files))
    assert found.total.cores == 0.5
    assert found.total.memory_bytes == 4 * GIB
    assert found.available_memory_bytes == 2 * GIB, "inactive file pages are reclaimable"


def test_version_1_groups_are_read_per_controller(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "25000",
        "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": str(2 * GIB),
        "sys/fs/cgroup/memory/box/memory.usage_in_bytes": str(GIB),
    }
    found = sense(root=machine(tmp_path, "4:memory:/box\n3:cpuset:/\n2:cpu,cpuacct:/box\n", files))
    assert found.total.cores == 0.25
    assert (found.total.memory_bytes, found.available_memory_bytes) == (2 * GIB, GIB)


def test_a_limit_above_the_machine_is_no_limit(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory.max": "9223372036854771712"}
    assert sense(root=machine(tmp_path, "0::/\n", files)).total.memory_bytes == 16 * GIB


def test_in_a_container_the_mount_is_read_if_the_path_is_that_of_the_host(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory.max": str(GIB), "sys/fs/cgroup/memory.current": "0"}
    assert sense(root=machine(tmp_path, "0::/docker/0123\n", files)).total.memory_bytes == GIB


def test_memory_in_use_beyond_the_limit_leaves_none(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory.max": str(GIB), "sys/fs/cgroup/memory.current": str(2 * GIB)}
    assert sense(root=machine(tmp_path, "0::/\n", files)).available_memory_bytes == 0


def test_the_capacity_of_this_machine_is_measured() -> None:
    found = sense()
    assert found.total.cores > 0
    assert 0 < found.available_memory_bytes <= found.total.memory_bytes
