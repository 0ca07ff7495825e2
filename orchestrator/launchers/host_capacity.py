"""Measures the capacity of this machine, within the limits of this process."""

from pathlib import Path

from orchestrator.decisions.resources import Capacity, Resources
from podrace.processes.machine_limits import allowed_cores, allowed_memory_bytes


def sense(gpus: int = 0, root: Path = Path("/")) -> Capacity:
    """Measures the current capacity.

    Args:
        gpus: Number of GPUs that pods may use.
        root: Folder that contains /proc and /sys.
    """
    memory, available = allowed_memory_bytes(root)
    return Capacity(Resources(allowed_cores(root), memory, gpus), available)
