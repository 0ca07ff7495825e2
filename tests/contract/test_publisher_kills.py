import json
import subprocess
import sys
from pathlib import Path

import pytest
import weed
from publisher_kills import AGENT, Seen, Toll, look

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Pointer
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, publish
from podrace.digests import digest

KILLS = 20


@pytest.mark.parametrize("kind", ["folder", "minio"])
def test_a_publisher_killed_at_random_moments_leaves_a_whole_checkpoint_that_never_goes_back(kind: str) -> None:
    if kind == "minio" and weed.binary() is None:
        pytest.skip(weed.MISSING)
    program = Path(__file__).with_name("publisher_kills.py")
    # A process of its own, for it forks.
    command = [sys.executable, str(program), "--store", kind, "--kills", str(KILLS), "--seed", "7"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    toll = json.loads(answer.stdout.splitlines()[-1])
    assert (toll["kills"], toll["corrupt"], toll["regressed"], toll["unreadable"]) == (KILLS, 0, 0, 0)
    assert toll["publications"] > 0


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    store = FolderStore(tmp_path)
    claim(store, AGENT, 5)
    publish(store, AGENT, 5, {"part-0": b"content"}, Manifest(policy_version=3))
    return store


def looked(store: FolderStore, seen: Seen, acknowledged: int) -> Toll:
    toll = Toll()
    look(store, seen, acknowledged, toll)
    return toll


def test_the_look_after_a_kill_finds_every_kind_of_harm(store: FolderStore, tmp_path: Path) -> None:
    assert looked(store, Seen(2, 5), 3) == Toll()
    assert looked(store, Seen(2, 5), 2) == Toll(unacknowledged=1)
    assert looked(store, Seen(2, 5), 4) == Toll(regressed=1)
    assert looked(store, Seen(4, 5), 0) == Toll(regressed=1)
    assert looked(store, Seen(3, 6), 3) == Toll(regressed=1)
    store.delete_object(digest(b"content"), 0.0)
    assert looked(store, Seen(3, 5), 3) == Toll(corrupt=1)
    _, etag = store.read_pointer(AGENT) or pytest.fail("no pointer")
    store.swap_pointer(AGENT, Pointer(agent_id=AGENT, lease_epoch=5), etag)
    assert looked(store, Seen(3, 5), 0) == Toll(regressed=1)
    assert looked(store, Seen(0, 0), 0) == Toll()
    (tmp_path / "pointers" / f"{AGENT}.json").write_bytes(b"{")
    assert looked(store, Seen(3, 5), 3) == Toll(unreadable=1)
