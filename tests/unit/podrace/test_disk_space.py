from pathlib import Path

import pytest

from podrace.disk_space import MIB, Volume, read, shortage

GIB = 1024 * MIB


def disk(free_bytes: float, total_bytes: float = 1000 * GIB) -> Volume:
    return Volume("the disk of /data", int(free_bytes), int(total_bytes))


def test_a_disk_below_the_mark_is_named_with_what_is_missing() -> None:
    assert shortage([disk(200 * MIB), disk(100 * MIB)], 128 * MIB) == (
        "the disk of /data has 100.0 MiB left, and 128.0 MiB must stay free (low_water_bytes): free space"
    )


@pytest.mark.parametrize("free_bytes", [128 * MIB, 10 * GIB])
def test_enough_space_is_no_shortage(free_bytes: int) -> None:
    assert shortage([disk(free_bytes)], 128 * MIB) == ""


def test_on_a_small_disk_a_share_of_it_is_enough() -> None:
    assert shortage([disk(0.5 * MIB, 16 * MIB)], 128 * MIB) == ""
    assert "0.3 MiB must stay free" in shortage([disk(0.1 * MIB, 16 * MIB)], 128 * MIB)


def test_without_a_mark_a_full_disk_is_no_shortage() -> None:
    assert shortage([disk(0)], 0) == ""


def test_a_folder_that_does_not_exist_is_left_out(tmp_path: Path) -> None:
    found = read([tmp_path, tmp_path / "missing"])
    assert [one.name for one in found] == [f"the disk of {tmp_path}"]
    assert 0 <= found[0].free_bytes < found[0].total_bytes
