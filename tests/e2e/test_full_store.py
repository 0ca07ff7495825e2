"""A full disk of the store or of a service pauses the tournament, which continues when there is room again."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from homes import wait_for

pytestmark = pytest.mark.e2e
STORE_MIB = 16


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of STORE_MIB."""
    mounted = ["mount", "-t", "tmpfs", "-o", f"size={STORE_MIB}m", "tmpfs", str(tmp_path)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("file systems can only be mounted by root")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def fill(path: Path) -> None:
    """Writes until the disk is full."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(2**12))


@pytest.mark.parametrize("full", ["store", "home", "orchestrator"])
def test_a_full_disk_pauses_the_tournament_until_there_is_room(home, small_disk, full):
    if full == "home":
        # The databases of both services as well.
        (small_disk / "home").mkdir(mode=0o755)
        home.path.symlink_to(small_disk / "home")
    elif full == "orchestrator":
        # Only its database.
        home.path.mkdir(mode=0o755)
        (home.path / "orchestrator.sqlite").symlink_to(small_disk / "orchestrator.sqlite")
    else:
        home.path.mkdir(mode=0o755)
        (home.path / "store").symlink_to(small_disk)
    spec = home.spec("environment_steps = 16000", sleeps=True, pool="maximum_pods = 1")
    training = home.start("train", str(spec), "--json")
    tournament = wait_for(home.tournament_id)
    wait_for(lambda: home.candidates(tournament))

    ballast = small_disk / "ballast"
    fill(ballast)
    paused = wait_for(lambda: home.json("show", tournament)["pause_reason"], what="a pause")
    assert "waiting for storage" in paused
    assert full != "orchestrator" or "orchestrator.sqlite" in paused

    ballast.unlink()
    _, err = training.communicate(timeout=100)
    assert training.returncode == 0, err
    shown = home.json("show", tournament)
    assert shown["state"] == "COMPLETED"
    assert shown["failed_agents"] == 0
    assert shown["pause_reason"] is None
    kinds = [event["kind"] for event in home.json("events", tournament)]
    assert {"storage_fault", "storage_recovered"} <= set(kinds)
    assert not {"pod_died", "pod_killed"} & set(kinds)
