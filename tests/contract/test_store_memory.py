"""Tests the memory needed to store and restore a replay memory, and to store and read a large object."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MEGABYTE = 10**6
MEMORY_BYTES = 256 * MEGABYTE
ROOM_BYTES = 128 * MEGABYTE
"""Allowed beyond the replay memory: a piece of 16 MB as tensors, file and parts, threads, connections."""

REPLAY_PROGRAM = """
import resource, sys
import torch
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_view import ReplayView
from agentpod.learner.replay_files import ReplayFiles
from podrace.checkpoint_store import open_store

torch.set_num_threads(1)
uri, memory_bytes, room_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lanes, segment, width = 16, 32, 1024
rows = memory_bytes // (lanes * (4 * width + 14)) // segment * segment

def new_memory():
    return {
        "observation": torch.zeros(rows, lanes, width),
        "action": torch.zeros(rows, lanes, dtype=torch.int64),
        "reward": torch.zeros(rows, lanes),
        "terminated": torch.zeros(rows, lanes, dtype=torch.bool),
        "truncated": torch.zeros(rows, lanes, dtype=torch.bool),
        "final_observation": torch.zeros(rows, lanes, 1),
    }

def data_bytes():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmData"].split()[0]) * 1024

store = open_store(uri)
memory = new_memory()
memory["observation"].copy_(torch.arange(rows).view(-1, 1, 1).expand(rows, lanes, width))
replay = ReplayBuffer(memory, segment)
for _ in range(rows // segment):
    replay.receive(replay.grant())
limit = data_bytes() + room_bytes
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
parts = ReplayFiles(store, 2**40).store(ReplayView.of(replay)).parts
for tensor in memory.values():
    tensor.zero_()
again = ReplayBuffer(memory, segment)
restored = ReplayFiles(store, 2**40).restore(parts, again) == rows * lanes
sound = bool((memory["observation"][:, 3, 7] == torch.arange(rows)).all())
print(restored, sound, sum(part.size_bytes for part in parts) > 0.9 * memory_bytes)
try:
    torch.zeros(room_bytes // 4 + 1)
except RuntimeError:
    print("limited")
"""

OBJECT_PROGRAM = """
import os, resource, sys
from podrace.checkpoint_store import open_store

uri, size_bytes, room_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def data_bytes():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmData"].split()[0]) * 1024

store = open_store(uri)
store.put_object(bytes(20_000_000))  # loads what is loaded once
data = os.urandom(size_bytes)
limit = data_bytes() + room_bytes
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
name = store.put_object(data)
head = data[:1000]
del data
data = store.get_object(name)
print(len(data) == size_bytes, data[:1000] == head)
try:
    more = bytearray(room_bytes + 1)
except MemoryError:
    print("limited")
"""


@pytest.fixture(params=["folder", "minio"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return f"folder://{tmp_path}/store"
    new_uri: Callable[[], str] = request.getfixturevalue("new_uri")
    return new_uri()


def output_of(program: str, *arguments: object) -> list[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


@pytest.mark.slow
def test_a_replay_memory_is_stored_and_restored_in_half_its_size(uri: str) -> None:
    assert output_of(REPLAY_PROGRAM, uri, MEMORY_BYTES, ROOM_BYTES) == ["True True True", "limited"]


def test_a_large_object_is_stored_and_read_in_half_its_size(uri: str) -> None:
    size_bytes = 64 * MEGABYTE
    assert output_of(OBJECT_PROGRAM, uri, size_bytes, size_bytes // 2) == ["True True", "limited"]
