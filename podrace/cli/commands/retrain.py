"""Implements `podrace lineage AGENT --retrain`: trains an agent again from its manifest and compares the files.

The training runs in separate processes (`python -m agentpod retrain`) with a temporary store. The tournament, its mesh
and its store are only read.
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
from podrace.cli.terminal.output import notify, show, show_json
from podrace.cli.views.tables import NOTHING, plain_table
from podrace.client.hyperparameters import hyperparameters_of
from podrace.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.mesh import store_choice
from podrace.mesh.home import Folders
from podrace.processes import lifeline
from podrace.specification.pods.sizes import grows
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

SHORT = 12
"""Number of digits of a digest shown in tables."""


@dataclass(frozen=True)
class FileComparison:
    """Digests of one checkpoint file, as recorded and after training again."""

    environment_steps: int
    """Environment steps of the agent at the checkpoint, without those of its ancestors."""
    part: str
    """Name of the checkpoint file."""
    recorded: str
    """Recorded digest."""
    again: str
    """Digest after training again; empty if the file was not published."""

    @property
    def same(self) -> bool:
        """Whether both files are identical, bit by bit."""
        return self.recorded == self.again


async def retrain(settings: Settings, agent_id: str, candidates: Sequence[Candidate], spec: TournamentSpec) -> int:
    """Trains an agent again, shows the differences, and returns the exit code.

    Args:
        settings: Options of the command.
        agent_id: The agent.
        candidates: All submissions of its tournament.
        spec: Specification of its tournament.

    Raises:
        FailedPrecondition: The agent was never scored, its checkpoints were deleted, or the training failed.
        InvalidArgument: The checkpoint store is not known.
    """
    digests = [candidate.candidate_id for candidate in candidates if candidate.agent_id == agent_id]
    uri = _store_of(settings)
    recorded = await asyncio.to_thread(_read_manifests, uri, digests)
    if not recorded:
        why = "it was never scored" if not digests else f"all of its {len(digests)} scored checkpoints were deleted"
        raise FailedPrecondition(f"agent {agent_id}: there is no checkpoint to compare with: {why}")
    target = max(recorded, key=lambda digest: recorded[digest].environment_steps)
    notify(f"training {agent_id} again for {formats.count(recorded[target].environment_steps)} steps")
    answer = await _run(uri, target, own=not settings.orchestrator, debug=settings.debug)
    again = [json_format.ParseDict(entry, Manifest(), ignore_unknown_fields=True) for entry in answer["manifests"]]
    compared = compare(list(recorded.values()), again)
    causes = list(reservations(recorded[target], answer["versions"], spec))
    if answer["outcome"] == "agent_failed":
        causes.append(f"the training failed: {answer['message']}")
    same = bool(compared) and all(entry.same for entry in compared)
    _show(settings, agent_id, recorded[target], compared, causes, same=same)
    return 0 if same else EXIT_FAILED


def compare(recorded: Sequence[Manifest], again: Sequence[Manifest]) -> list[FileComparison]:
    """Compares every recorded checkpoint file with the file published at the same step. Pure."""
    digests = {(manifest.environment_steps, part.name): part.digest for manifest in again for part in manifest.parts}
    return [
        FileComparison(
            manifest.environment_steps, part.name, part.digest, digests.get((manifest.environment_steps, part.name), "")
        )
        for manifest in sorted(recorded, key=lambda manifest: manifest.environment_steps)
        for part in manifest.parts
    ]


def reservations(target: Manifest, versions: dict[str, str], spec: TournamentSpec) -> Iterator[str]:
    """Returns the reasons why the files may differ, one line each; none if they must be identical. Pure.

    Args:
        target: Manifest of the checkpoint that was trained again.
        versions: Software versions of the new training.
        spec: Specification of the tournament.
    """
    if target.lease_epoch > 1:
        yield f"the agent was assigned {target.lease_epoch} times: each time new episodes started"
    for name in sorted(target.versions.keys() | versions.keys()):
        before, now = target.versions.get(name, ""), versions.get(name, "")
        if before != now:
            yield f"{name}: the version was {before or 'none'} and is now {now or 'none'}"
    if spec.assignment.HasField("duration"):
        yield "assignment.duration: the number of steps of an agent depends on the speed of its pod"
    if spec.pod.learners > 1:
        yield "pod.learners: which learners take part in a fusion round depends on their speed"
    if grows(spec.pod):
        yield "pod.maximum_cores: when a pod grows depends on the speed of the machine"
    if not spec.synchronous:
        yield "synchronous = false: identical files are guaranteed only for synchronous tournaments"


def _store_of(settings: Settings) -> str:
    """Returns the checkpoint store of the agent.

    Raises:
        InvalidArgument: --orchestrator was given without --store.
    """
    if not settings.orchestrator:
        return store_choice.choose_store(Folders.of(settings.home), settings.store, writes=False)
    if not settings.store:
        raise InvalidArgument("lineage --retrain: with --orchestrator, also name the store of its mesh with --store")
    return settings.store if "://" in settings.store else f"folder://{Path(settings.store).absolute()}"


def _read_manifests(uri: str, digests: Sequence[str]) -> dict[str, Manifest]:
    """Returns the manifests that are still in the store, by digest. Blocks."""
    from podrace.checkpoint_store import open_store  # imported late, because it takes longer than most commands
    from podrace.checkpoint_store.publish import read_manifest

    store = open_store(uri, deadline_seconds=store_choice.DEADLINE_SECONDS, only_reading=True)
    found: dict[str, Manifest] = {}
    for digest in digests:
        try:
            found[digest] = read_manifest(store, digest)
        except (NotFound, DataLoss):
            continue
    return found


async def _run(uri: str, target: str, *, own: bool, debug: bool) -> dict[str, Any]:
    """Runs the training in a child process, which exits together with this process.

    What the specification of another user names is limited by the keys `allow` of that process (`own` is false): it
    would run with the rights of the user of this command.

    Raises:
        FailedPrecondition: The training failed; the message is the last line of its output.
    """
    with tempfile.TemporaryDirectory(prefix="podrace-") as name:
        folder, held = Path(name) / "r", Path(name) / "lifeline"
        folder.mkdir(mode=0o700)
        level = "debug" if debug else "warning"
        settings = {"store": uri, "manifest": target, "folder": folder, "lifeline": held, "telemetry.log_level": level}
        settings |= {"allow.everything": "true"} if own else {}
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
        last = lines[-1].removeprefix("error: ") if lines else f"the process exited with code {process.returncode}"
        raise FailedPrecondition(f"lineage --retrain: {last}")
    answer: dict[str, Any] = json.loads(out)
    return answer


# --- output ------------------------------------------------------------------------------------------------------


def _show(
    settings: Settings,
    agent_id: str,
    target: Manifest,
    compared: Sequence[FileComparison],
    causes: Sequence[str],
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
        about = {"agent_id": agent_id, "hyperparameters": hyperparameters_of(target)}
        show_json(about | {"same": same, "reservations": list(causes), "files": files})
        return
    begin = (
        f"checkpoint {target.starting_manifest_digest[:SHORT]}" if target.starting_manifest_digest else "new networks"
    )
    equal = sum(entry.same for entry in compared)
    verdict = "identical" if same else f"{equal} of {len(compared)} identical"
    show(
        f"{agent_id} trained again from {begin}, seed {target.seed}: {formats.things(len(compared), 'file')}, {verdict}"
    )
    show(_table(compared))
    for cause in causes if not same else ():
        show(f"  {cause}")


def _table(compared: Sequence[FileComparison]) -> Table:
    table = plain_table("steps", "file", "recorded", "again", "", right=("steps",))
    for entry in compared:
        verdict = Text("same", style="green") if entry.same else Text("differs", style="yellow")
        again = entry.again[:SHORT] or NOTHING
        table.add_row(formats.count(entry.environment_steps), entry.part, entry.recorded[:SHORT], again, verdict)
    return table
