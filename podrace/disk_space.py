"""Decides whether disks have enough free space, so that new work stops before they are full."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LARGEST_SHARE = 0.02
"""Share of a disk that is enough, however much is asked for: a small disk must be usable as well."""
MIB = 2**20


@dataclass(frozen=True)
class Disk:
    """Free space of the disk of a folder."""

    folder: Path
    """The folder."""
    free_bytes: int
    """Bytes that this user may still write."""
    total_bytes: int
    """Size of the disk."""


def read(folders: Iterable[Path]) -> list[Disk]:
    """Returns the disks of folders; those that cannot be read are left out."""
    disks: list[Disk] = []
    for folder in folders:
        try:
            usage = shutil.disk_usage(folder)
        except OSError:
            continue
        disks.append(Disk(folder, usage.free, usage.total))
    return disks


def shortage(disks: Iterable[Disk], low_water_bytes: int) -> str:
    """Returns which disk has too little free space, in one line; empty: none.

    Args:
        disks: The disks.
        low_water_bytes: Bytes that must stay free; on a small disk LARGEST_SHARE of it; 0: none.
    """
    for disk in disks:
        needed = min(low_water_bytes, int(LARGEST_SHARE * disk.total_bytes))
        if disk.free_bytes < needed:
            return (
                f"the disk of {disk.folder} has {disk.free_bytes / MIB:.1f} MiB left, and {needed / MIB:.1f} MiB must"
                " stay free (low_water_bytes): free space"
            )
    return ""
