"""What counts as growth: memory, handles and threads of a process, and rows that the specification does not keep."""

import pytest
from soak_measures import (
    HOUR,
    MEBIBYTE,
    Growth,
    Sample,
    Usage,
    faults,
    growth_of_counts,
    growth_of_processes,
    last,
    slope,
)

STEADY = Growth(100.0, 0.2, 0, 0)


def samples(mebibytes_per_hour: float = 0.0, handles: int = 0, minutes: int = 120) -> list[Sample]:
    """One sample a minute of a process `leader` that grows, and of one that ends after the first half."""
    found = []
    for minute in range(minutes):
        memory = int((50 + mebibytes_per_hour * minute / 60) * MEBIBYTE)
        processes = {"leader (1)": Usage(memory, 10 + handles * minute // minutes, 3)}
        if minute < minutes // 2:
            processes["worker (2)"] = Usage(MEBIBYTE, 5, 1)
        found.append(Sample(minute * 60.0, processes, {"orchestrator.events": minute}))
    return found


def test_the_slope_is_that_of_the_line_through_the_points() -> None:
    assert slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx(2.0)
    assert slope([(1.0, 4.0)]) == slope([(1.0, 4.0), (1.0, 6.0)]) == 0.0


def test_the_window_is_the_end_of_the_run() -> None:
    assert [sample.seconds for sample in last(samples(minutes=120), HOUR)] == [
        minute * 60.0 for minute in range(59, 120)
    ]


def test_memory_and_handles_are_compared_within_the_window_for_processes_that_lived_through_it() -> None:
    growth = growth_of_processes(last(samples(mebibytes_per_hour=6.0, handles=40), HOUR))
    assert set(growth) == {"leader (1)"}
    assert growth["leader (1)"].mebibytes_per_hour == pytest.approx(6.0)
    assert growth["leader (1)"].handles == 19
    assert growth["leader (1)"].threads == 0


def test_counts_grow_by_what_was_added_within_the_window() -> None:
    assert growth_of_counts(last(samples(), HOUR)) == {"orchestrator.events": 56}


@pytest.mark.parametrize(
    ("grown", "fault"),
    [
        (STEADY, ""),
        (Growth(100.0, 1.5, 0, 0), "leader: memory grows by 1.50 MiB/h"),
        (Growth(100.0, -5.0, 3, 0), "leader: 3 more handles"),
        (Growth(100.0, 0.0, -9, 4), "leader: 4 more threads"),
    ],
)
def test_a_process_may_not_grow(grown: Growth, fault: str) -> None:
    assert faults({"leader": grown}, {}, agents=20) == ([fault] if fault else [])


def test_history_and_store_may_grow_with_each_agent_and_other_tables_may_not() -> None:
    counts = {"leaderboard.submissions": 500, "orchestrator.pods": 9, "store.objects": 1300, "leaderboard.held": 2}
    assert faults({"leader": STEADY}, counts, agents=100) == ["orchestrator.pods: 9 more"]
    assert faults({"leader": STEADY}, {"store.objects": 1301}, agents=100) == ["store.objects: 1301 more"]
