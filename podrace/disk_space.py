"""Decides whether disks and stores have enough free space, so that new work stops before they are full."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LARGEST_SHARE = 0.02
"""Share of a volume that is enough, however much is asked for: a small disk must be usable as well."""
MIB = 2**20


@dataclass(frozen=True)
class Volume:
    """Free space of a disk, or of a store."""

    name: str
    """Names it in messages: `the disk of FOLDER`, for example."""
    free_bytes: int
    """Bytes that may still be written."""
    total_bytes: int
    """Its size."""


def read(folders: Iterable[Path]) -> list[Volume]:
    """Returns the disks of folders, with what this user may still write; those that cannot be read are left out."""
    disks: list[Volume] = []
    for folder in folders:
        try:
            usage = shutil.disk_usage(folder)
        except OSError:
            continue
        disks.append(Volume(f"the disk of {folder}", usage.free, usage.total))
    return disks


def shortage(volumes: Iterable[Volume], low_water_bytes: int) -> str:
    """Returns which volume has too little free space, in one line; empty: none.

    Args:
        volumes: The volumes.
        low_water_bytes: Bytes that must stay free; on a small volume LARGEST_SHARE of it; 0: none.
    """
    for volume in volumes:
        needed = min(low_water_bytes, int(LARGEST_SHARE * volume.total_bytes))
        if volume.free_bytes < needed:
            return (
                f"{volume.name} has {volume.free_bytes / MIB:.1f} MiB left, and {needed / MIB:.1f} MiB must stay free"
                " (low_water_bytes): free space"
            )
    return ""
