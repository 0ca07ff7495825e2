"""`podrace lineage AGENT --retrain`: trains an agent again as its manifest says, and compares what comes of it.

The training runs in processes of its own (`python -m agentpod retrain`) with a store of its own; the tournament, its
mesh and its store are only read.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from rich.table import Table
from rich.text import Text

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.cli import EXIT_FAILED
from podrace.cli.terminal import formats
from podrace.cli.terminal.options import Settings
from podrace.cli.terminal.output import show, show_json, tell
from podrace.cli.views.tables import NOTHING, plain_table
from podrace.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.mesh import store_choice
from podrace.mesh.home import Folders
from podrace.processes import lifeline
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

SHORT = 12
"""Digits of a digest in a table."""


@dataclass(frozen=True)
class Comparison:
    """One training file, then and now."""

    environment_steps: int
    """The agent's own, at the checkpoint."""
    part: str
    """Name of the training file."""
    recorded: str
    """Digest then."""
    again: str
    """Digest now; empty if it was not published again."""

    @property
    def same(self) -> bool:
        """Whether they are, to the bit."""
        return self.recorded == self.again


async def retrain(settings: Settings, agent_id: str, candidates: Sequence[Candidate], spec: TournamentSpec) -> int:
    """Trains an agent again and shows what differs; returns the exit code.

    Args:
        settings: Where its store is, and how to answer.
        agent_id: The agent.
        candidates: The submissions of its tournament.
        spec: Of its tournament.

    Raises:
        FailedPrecondition: It was never scored, its checkpoints were collected, or the training failed.
        InvalidArgument: The store is not known.
    """
    digests = [candidate.candidate_id for candidate in candidates if candidate.agent_id == agent_id]
    uri = _store_of(settings)
    recorded = await asyncio.to_thread(_read_manifests, uri, digests)
    if not recorded:
        there = "was never scored" if not digests else f"none of its {len(digests)} scored checkpoints is kept any more"
        raise FailedPrecondition(f"agent {agent_id}: {there}: there is nothing to compare with")
    target = max(recorded, key=lambda digest: recorded[digest].environment_steps)
    tell(f"training {agent_id} again for {formats.count(recorded[target].environment_steps)} steps")
    answer = await _run(uri, target, debug=settings.debug)
    again = [json_format.ParseDict(entry, Manifest(), ignore_unknown_fields=True) for entry in answer["manifests"]]
    compared = compare(list(recorded.values()), again)
    doubts = list(reservations(recorded[target], answer["versions"], spec))
    if answer["outcome"] == "agent_failed":
        doubts.append(f"the training failed: {answer['message']}")
    same = bool(compared) and all(entry.same for entry in compared)
    _show(settings, agent_id, recorded[target], compared, doubts, same=same)
    return 0 if same else EXIT_FAILED


def compare(recorded: Sequence[Manifest], again: Sequence[Manifest]) -> list[Comparison]:
    """Every training file that was recorded, beside what was published again at the same step. Pure."""
    digests = {(manifest.environment_steps, part.name): part.digest for manifest in again for part in manifest.parts}
    return [
        Comparison(
            manifest.environment_steps, part.name, part.digest, digests.get((manifest.environment_steps, part.name), "")
        )
        for manifest in sorted(recorded, key=lambda manifest: manifest.environment_steps)
        for part in manifest.parts
    ]


def reservations(target: Manifest, versions: dict[str, str], spec: TournamentSpec) -> Iterator[str]:
    """Why the same files are not to be expected, a line each; nothing where they are. Pure.

    Args:
        target: What was to be reached.
        versions: What it was trained with this time.
        spec: Of the tournament.
    """
    if target.lease_epoch > 1:
        yield f"it was handed out {target.lease_epoch} times: after a pause new episodes begin"
    for name in sorted(target.versions.keys() | versions.keys()):
        before, now = target.versions.get(name, ""), versions.get(name, "")
        if before != now:
            yield f"{name} was {before or 'not there'} and is {now or 'not there'}"
    if spec.assignment.HasField("duration"):
        yield "assignment.duration: how far an agent comes depends on how fast its pod is"
    if spec.pod.learners > 1:
        yield "pod.learners: who takes part in a fusion round depends on how fast each is"
    if not spec.synchronous:
        yield "synchronous = false: the same files are promised for synchronous tournaments only"


def _store_of(settings: Settings) -> str:
    """The store that the agent's files are in.

    Raises:
        InvalidArgument: Nobody has said, and a mesh elsewhere does not tell.
    """
    if not settings.orchestrator:
        return store_choice.choose_store(Folders.of(settings.home), settings.store, writes=False)
    if not settings.store:
        raise InvalidArgument("lineage --retrain: with --orchestrator, name the store of its mesh with --store as well")
    return settings.store if "://" in settings.store else f"folder://{Path(settings.store).absolute()}"


def _read_manifests(uri: str, digests: Sequence[str]) -> dict[str, Manifest]:
    """Those manifests that are still in the store, by digest; blocks."""
    from podrace.checkpoint_store import open_store  # only here: it takes longer than most commands
    from podrace.checkpoint_store.publish import read_manifest

    store = open_store(uri, deadline_seconds=store_choice.DEADLINE_SECONDS, only_reading=True)
    found: dict[str, Manifest] = {}
    for digest in digests:
        try:
            found[digest] = read_manifest(store, digest)
        except (NotFound, DataLoss):
            continue
    return found


async def _run(uri: str, target: str, *, debug: bool) -> dict[str, Any]:
    """Runs the training in a process of its own, which ends with this one.

    Raises:
        FailedPrecondition: It failed; the line is its own.
    """
    with tempfile.TemporaryDirectory(prefix="podrace-") as name:
        folder, held = Path(name) / "r", Path(name) / "lifeline"
        folder.mkdir()
        level = "debug" if debug else "warning"
        settings = {"store": uri, "manifest": target, "folder": folder, "lifeline": held, "telemetry.log_level": level}
        arguments = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
        with lifeline.hold(held):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "agentpod", "retrain", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if debug else asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            try:
                out, err = await process.communicate()
            except asyncio.CancelledError:
                process.terminate()
                await process.wait()
                raise
    if process.returncode:
        lines = [line for line in (err or b"").decode(errors="replace").splitlines() if line.strip()]
        last = lines[-1].removeprefix("error: ") if lines else f"it ended with code {process.returncode}"
        raise FailedPrecondition(f"lineage --retrain: {last}")
    answer: dict[str, Any] = json.loads(out)
    return answer


# --- showing -----------------------------------------------------------------------------------------------------


def _show(
    settings: Settings,
    agent_id: str,
    target: Manifest,
    compared: Sequence[Comparison],
    doubts: Sequence[str],
    *,
    same: bool,
) -> None:
    if settings.as_json:
        files = [
            {
                "environment_steps": entry.environment_steps,
                "part": entry.part,
                "recorded": entry.recorded,
                "again": entry.again or None,
            }
            for entry in compared
        ]
        show_json({"agent_id": agent_id, "same": same, "reservations": list(doubts), "files": files})
        return
    begin = (
        f"checkpoint {target.starting_manifest_digest[:SHORT]}" if target.starting_manifest_digest else "new networks"
    )
    equal = sum(entry.same for entry in compared)
    verdict = "the same" if same else f"{equal} of {len(compared)} the same"
    show(
        f"{agent_id} trained again from {begin}, seed {target.seed}: {formats.things(len(compared), 'file')}, {verdict}"
    )
    show(_table(compared))
    for doubt in doubts if not same else ():
        show(f"  {doubt}")


def _table(compared: Sequence[Comparison]) -> Table:
    table = plain_table("steps", "file", "recorded", "again", "", right=("steps",))
    for entry in compared:
        verdict = Text("same", style="green") if entry.same else Text("differs", style="yellow")
        again = entry.again[:SHORT] or NOTHING
        table.add_row(formats.count(entry.environment_steps), entry.part, entry.recorded[:SHORT], again, verdict)
    return table
