"""Decides which log files are deleted because there are too many of them, or because they are old. Pure."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from podrace.errors import InvalidArgument

LEAST_FILE_BYTES = 65_536
LARGEST_FILE_BYTES = 1 << 40
MOST_KEPT_FILES = 100
MOST_PODS = 1_000_000
LONGEST_DAYS = 36_500
DAY_SECONDS = 86_400.0
_POD_LOG = re.compile(r"(.+-p\d+)\.log(?:\.\d+)?")


@dataclass(frozen=True)
class LogLimits:
    """How much is kept of the logs in `log_folder`."""

    file_bytes: int = 16_777_216
    """A log that is longer is copied to `NAME.log.1` and emptied; at least 65,536. 0: logs are not rotated."""
    kept_files: int = 3
    """Rotated files that are kept of each log, `NAME.log.1` to `NAME.log.3`: 1 to 100."""
    pods: int = 1_000
    """Number of pods that have exited whose logs are kept, those that wrote last; 0: all."""
    days: float = 0.0
    """Logs of pods that have exited are deleted this many days after their last line; 0: never."""

    def __post_init__(self) -> None:
        if self.file_bytes and not LEAST_FILE_BYTES <= self.file_bytes <= LARGEST_FILE_BYTES:
            raise InvalidArgument(
                f"logs.file_bytes = {self.file_bytes}: expected {LEAST_FILE_BYTES} to {LARGEST_FILE_BYTES}, or 0"
            )
        if not 1 <= self.kept_files <= MOST_KEPT_FILES:
            raise InvalidArgument(f"logs.kept_files = {self.kept_files}: expected 1 to {MOST_KEPT_FILES}")
        if not 0 <= self.pods <= MOST_PODS:
            raise InvalidArgument(f"logs.pods = {self.pods}: expected 0 to {MOST_PODS}")
        if not 0 <= self.days <= LONGEST_DAYS:
            raise InvalidArgument(f"logs.days = {self.days:g}: expected 0 to {LONGEST_DAYS}")


class LogFile(NamedTuple):
    """A file in the folder of logs."""

    name: str
    size: int
    write_time: float
    """Seconds since 1970."""


def pod_of(name: str) -> str:
    """Returns the pod that a log belongs to, rotated or not; empty if it is not the log of a pod."""
    found = _POD_LOG.fullmatch(name)
    return found[1] if found else ""


def logs_to_delete(files: Iterable[LogFile], living: Collection[str], now: float, limits: LogLimits) -> list[str]:
    """Returns the names of the logs of pods that are deleted; logs of services and of living pods are never among them.

    Args:
        files: The files in the folder of logs.
        living: Ids of the pods that have not exited.
        now: Seconds since 1970.
        limits: What is kept.
    """
    logs: dict[str, list[LogFile]] = {}
    for file in files:
        pod_id = pod_of(file.name)
        if pod_id and pod_id not in living:
            logs.setdefault(pod_id, []).append(file)
    newest_first = sorted(logs, key=lambda pod_id: (_last_write(logs[pod_id]), pod_id), reverse=True)
    too_many = set(newest_first[limits.pods :]) if limits.pods else set()
    oldest = now - limits.days * DAY_SECONDS if limits.days else 0.0
    doomed = [pod_id for pod_id in newest_first if pod_id in too_many or _last_write(logs[pod_id]) < oldest]
    return sorted(file.name for pod_id in doomed for file in logs[pod_id])


def _last_write(files: Iterable[LogFile]) -> float:
    return max(file.write_time for file in files)
