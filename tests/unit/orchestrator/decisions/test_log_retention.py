"""Which logs of pods are deleted."""

import pytest

from orchestrator.decisions.log_retention import DAY_SECONDS, LogFile, LogLimits, logs_to_delete
from podrace.errors import InvalidArgument

NOW = 1_000 * DAY_SECONDS
FILES = [
    LogFile("a-p0.log", 0, NOW - DAY_SECONDS),
    LogFile("a-p0.log.1", 9, NOW - 9 * DAY_SECONDS),
    LogFile("b-p1.log", 9, NOW - 2 * DAY_SECONDS),
    LogFile("c-p2.log", 9, NOW - 3 * DAY_SECONDS),
    LogFile("orchestrator.log", 9, 0.0),
    LogFile("notes.txt", 9, 0.0),
]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (LogLimits(pods=3), []),
        (LogLimits(pods=0), []),
        (LogLimits(pods=2), ["c-p2.log"]),
        (LogLimits(pods=1), ["b-p1.log", "c-p2.log"]),
        (LogLimits(days=2.5), ["c-p2.log"]),
        (LogLimits(days=0.5), ["a-p0.log", "a-p0.log.1", "b-p1.log", "c-p2.log"]),
    ],
)
def test_the_logs_of_pods_that_wrote_last_are_kept(limits: LogLimits, expected: list[str]) -> None:
    assert logs_to_delete(FILES, set(), NOW, limits) == expected


def test_the_log_of_a_living_pod_is_neither_deleted_nor_counted() -> None:
    living = {"c-p2"}
    assert logs_to_delete(FILES, living, NOW, LogLimits(days=0.1)) == ["a-p0.log", "a-p0.log.1", "b-p1.log"]
    assert logs_to_delete(FILES, living, NOW, LogLimits(pods=2)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("file_bytes", 1000), ("file_bytes", -1), ("kept_files", 0), ("kept_files", 101), ("pods", -1), ("days", -1.0)],
)
def test_a_limit_out_of_range_is_refused_with_its_key(key: str, value: float) -> None:
    with pytest.raises(InvalidArgument, match=f"logs.{key} = {value:g}: expected"):
        LogLimits(**{key: value})  # type: ignore[arg-type]
    LogLimits(file_bytes=0)
