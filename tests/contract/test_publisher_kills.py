"""Tests that killed publishers leave a whole checkpoint, and that the checks after a kill find violations."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import weed
from publisher_kills import AGENT, KillReport, Seen, check_after_kill

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Pointer
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, publish
from podrace.digests import digest

KILLS = 20


@pytest.mark.parametrize("kind", ["folder", "minio"])
def test_a_publisher_killed_at_random_moments_leaves_a_whole_checkpoint_and_no_older_one(kind: str) -> None:
    if kind == "minio" and weed.binary() is None:
        pytest.skip(weed.MISSING)
    program = Path(__file__).with_name("publisher_kills.py")
    # In a separate process, because it forks.
    command = [sys.executable, str(program), "--store", kind, "--kills", str(KILLS), "--seed", "7"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    report = json.loads(answer.stdout.splitlines()[-1])
    assert (report["kills"], report["corrupt"], report["regressed"], report["unreadable"]) == (KILLS, 0, 0, 0)
    assert report["publications"] > 0


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    store = FolderStore(tmp_path)
    claim(store, AGENT, 5)
    publish(store, AGENT, 5, {"part-0": b"content"}, Manifest(policy_version=3))
    return store


def report_of(store: FolderStore, seen: Seen, acknowledged: int) -> KillReport:
    report = KillReport()
    check_after_kill(store, seen, acknowledged, report)
    return report


def test_the_check_after_a_kill_finds_every_violation(store: FolderStore, tmp_path: Path) -> None:
    assert report_of(store, Seen(2, 5), 3) == KillReport()
    assert report_of(store, Seen(2, 5), 2) == KillReport(unacknowledged=1)
    assert report_of(store, Seen(2, 5), 4) == KillReport(regressed=1)
    assert report_of(store, Seen(4, 5), 0) == KillReport(regressed=1)
    assert report_of(store, Seen(3, 6), 3) == KillReport(regressed=1)
    store.delete_object(digest(b"content"), 0.0)
    assert report_of(store, Seen(3, 5), 3) == KillReport(corrupt=1)
    _, etag = store.read_pointer(AGENT) or pytest.fail("no pointer")
    store.swap_pointer(AGENT, Pointer(agent_id=AGENT, lease_epoch=5), etag)
    assert report_of(store, Seen(3, 5), 0) == KillReport(regressed=1)
    assert report_of(store, Seen(0, 0), 0) == KillReport()
    (tmp_path / "pointers" / f"{AGENT}.json").write_bytes(b"{")
    assert report_of(store, Seen(3, 5), 3) == KillReport(unreadable=1)
