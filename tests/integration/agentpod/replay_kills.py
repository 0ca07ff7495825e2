"""Kills processes that store a growing replay memory with SIGKILL at random moments; prints one line of JSON.

Each process restores the memory of the newest checkpoint, and then fills segments and publishes checkpoints until it is
killed. The reward of each step is its number, so the restored steps can be compared with those that were filled. After
each kill the garbage is collected. Counts of what was found then:
    incomplete   the newest checkpoint lists a piece that cannot be read, or states another number of steps
    wrong        a restored step is not the one that was stored
    regressed    the newest checkpoint has fewer steps than one that was acknowledged

    python tests/integration/agentpod/replay_kills.py [--kills 200] [--seed 1]
"""

import argparse
import contextlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import FINAL
from agentpod.experience.replay_view import ReplayView
from agentpod.learner.replay_files import ReplayFiles
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.collect import collect
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, publish, read_manifest
from podrace.checkpoint_store.replay_parts import is_replay
from podrace.telemetry import TelemetryConfig, configure_logging

AGENT = "mortal"
SEGMENTS, HORIZON, COUNT = 400, 2, 3
LONGEST_RUN_SECONDS = 1.5
LONGEST_START_SECONDS = 60.0


@dataclass
class Report:
    """Counts over all kills."""

    kills: int = 0
    publications: int = 0
    """Acknowledged publications."""
    steps: int = 0
    """Environment steps at the end."""
    incomplete: int = 0
    wrong: int = 0
    regressed: int = 0

    @property
    def harm(self) -> int:
        """Number of violations."""
        return self.incomplete + self.wrong + self.regressed


def empty_replay() -> ReplayBuffer:
    """Returns a replay memory of a few pieces."""
    rows = SEGMENTS * HORIZON
    memory = {
        "observation": torch.zeros(rows, COUNT, 2),
        "action": torch.zeros(rows, COUNT, dtype=torch.int64),
        "reward": torch.zeros(rows, COUNT, dtype=torch.float64),
        "terminated": torch.zeros(rows, COUNT, dtype=torch.bool),
        "truncated": torch.zeros(rows, COUNT, dtype=torch.bool),
        FINAL: torch.zeros(rows, COUNT, 2),
    }
    return ReplayBuffer(memory, HORIZON)


def advance(replay: ReplayBuffer) -> None:
    """Fills one segment: the reward of each step is its number."""
    first = replay.steps
    row = replay.grant()
    numbers = torch.arange(first, first + replay.segment_steps, dtype=torch.float64)
    replay._memory["reward"][row : row + HORIZON] = numbers.view(HORIZON, COUNT)
    replay.receive(row)


def publish_forever(store: FolderStore, epoch: int, acknowledge: int) -> None:
    """Continues from the newest checkpoint and publishes until the process is killed."""
    files, replay = ReplayFiles(store, 2**40), empty_replay()
    pointer = claim(store, AGENT, epoch)
    if pointer.manifest_digest:
        files.restore(read_manifest(store, pointer.manifest_digest).parts, replay)
    os.write(acknowledge, b"0\n")  # the run time counts from here
    while True:
        for _ in range(random.Random(replay.steps).randrange(1, 60)):
            advance(replay)
        stored = files.store(ReplayView.of(replay))
        manifest = Manifest(environment_steps=replay.steps, replay_steps=stored.steps)
        publish(store, AGENT, epoch, {"policy": b"%d" % replay.steps}, manifest, stored=stored.parts)
        files.published(stored)
        os.write(acknowledge, b"%d\n" % replay.steps)


def run_publisher(store: FolderStore, epoch: int, run_seconds: float) -> list[int]:
    """Runs a publisher and kills it; returns the numbers of steps that it acknowledged."""
    reports, acknowledge = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            publish_forever(store, epoch, acknowledge)
        finally:
            os._exit(1)
    os.close(acknowledge)
    try:
        assert select.select([reports], [], [], LONGEST_START_SECONDS)[0], "the publisher did not start"
        output = os.read(reports, 100)
        end = time.monotonic() + run_seconds
        while (rest := end - time.monotonic()) > 0 and select.select([reports], [], [], rest)[0]:
            received = os.read(reports, 1000)
            assert received, "the publisher exited"
            output += received
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    while received := os.read(reports, 1000):
        output += received
    os.close(reports)
    return [int(line) for line in output.split()][1:]


def check(store: FolderStore, acknowledged: int, report: Report) -> int:
    """Checks the newest checkpoint; returns its steps."""
    found = store.read_pointer(AGENT)
    if found is None or not found[0].manifest_digest:
        report.regressed += acknowledged > 0
        return 0
    manifest = read_manifest(store, found[0].manifest_digest)
    parts = [part for part in manifest.parts if is_replay(part)]
    replay = empty_replay()
    restored = ReplayFiles(store, 2**40).restore(parts, replay)
    report.incomplete += restored != manifest.replay_steps or restored != min(manifest.environment_steps, SEGMENTS * 6)
    numbers = replay.gather((torch.arange(restored) + replay._oldest) % replay.capacity, 1, 0.9).reward
    expected = torch.arange(manifest.environment_steps - restored, manifest.environment_steps)
    report.wrong += not torch.equal(numbers.long(), expected)
    report.regressed += manifest.environment_steps < acknowledged
    return manifest.environment_steps


def kill_repeatedly(folder: Path, kills: int, seed: int) -> Report:
    """Runs and kills this many publishers."""
    store, generator, report = FolderStore(folder), random.Random(seed), Report()
    for epoch in range(1, kills + 1):
        acknowledged = run_publisher(store, epoch, generator.uniform(0.0, LONGEST_RUN_SECONDS))
        report.kills += 1
        report.publications += len(acknowledged)
        collect(store, [], 0.0)
        report.steps = check(store, max([report.steps, *acknowledged]), report)
    return report


def main() -> int:
    """Runs the command; the exit code is 1 if there were violations."""
    parser = argparse.ArgumentParser(description="Kills publishers of replay memories at random moments.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    configure_logging(TelemetryConfig(log_level="error"))
    torch.set_num_threads(1)  # no threads may exist when the process forks
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = kill_repeatedly(Path(folder), options.kills, options.seed)
    print(json.dumps({**asdict(report), "seconds": round(time.monotonic() - begin, 1)}), flush=True)
    return 1 if report.harm else 0


if __name__ == "__main__":
    sys.exit(main())
