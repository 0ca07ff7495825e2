"""Has pods evaluate snapshots, and reuses evaluations with the same settings that the orchestrator has recorded.

An interrupted command leaves a few evaluations queued. The next command finds them and waits for their results.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.struct_pb2 import Struct

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.client import evaluating
from podrace.client.client import Client
from podrace.errors import FailedPrecondition
from podrace.leaderboard.v1.leaderboard_pb2 import Snapshot
from podrace.orchestrator.v1.orchestrator_pb2 import EvaluationEntry, EvaluationWork
from podrace.tournament.v1.tournament_pb2 import Tournament

QUEUED_AT_ONCE = 8
"""More than enough to keep the pods of an ended tournament busy, and few enough to leave behind after an interrupt."""
MESSAGE_SECONDS = 10.0
"""Time between two progress messages."""


Ensembles = Mapping[str, Sequence[Checkpoint]]
"""The other members of ensembles, by digest of the first member's manifest."""
NO_ENSEMBLES: Ensembles = {}


@dataclass(frozen=True)
class EvaluationSettings:
    """How snapshots are evaluated."""

    episodes: int
    options: Struct
    seed: int
    """Seed of the environments."""
    stochastic: bool

    def match(self, work: EvaluationWork, members: Sequence[Checkpoint]) -> bool:
        """Returns whether an evaluation has these settings, and these other members of an ensemble."""
        return (
            list(work.members) == list(members)
            and (work.episodes, work.seed, work.stochastic) == (self.episodes, self.seed, self.stochastic)
            and work.options == self.options
        )


@dataclass(frozen=True)
class SnapshotEvaluations:
    """Results of the evaluations, by digest of the manifest."""

    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Errors of the evaluations that failed."""


def known(
    entries: Sequence[EvaluationEntry], how: EvaluationSettings, ensembles: Ensembles = NO_ENSEMBLES
) -> dict[str, EvaluationEntry]:
    """Returns earlier evaluations with the same settings that are done or queued, by digest of the manifest.

    Done evaluations have priority over queued ones. Scores of the built-in evaluator in place of a failing plugin are
    not comparable, so they are not reused.

    Args:
        entries: Evaluations of one tournament in any order.
        how: The settings.
        ensembles: The other members of ensembles.
    """
    usable = [
        entry
        for entry in entries
        if how.match(entry.work, ensembles.get(entry.work.checkpoint.manifest_digest, ()))
        and not entry.error
        and not entry.evaluation.evaluator_fault
    ]
    return {entry.work.checkpoint.manifest_digest: entry for entry in sorted(usable, key=lambda entry: entry.done)}


async def evaluate_snapshots(
    client: Client,
    tournament: Tournament,
    snapshots: Sequence[Snapshot],
    how: EvaluationSettings,
    notify: Callable[[str], None],
    ensembles: Ensembles = NO_ENSEMBLES,
) -> SnapshotEvaluations:
    """Evaluates every policy once, even if several snapshots refer to it.

    Args:
        client: Client of a mesh whose pods evaluate.
        tournament: Tournament of the snapshots.
        snapshots: The snapshots in the order in which they are evaluated.
        how: How they are evaluated.
        notify: Receives progress messages.
        ensembles: The other members of those that are ensembles.

    Raises:
        PodraceError: The mesh does not answer. Evaluations that fail are listed in the result instead.
    """
    before = known(await client.list_evaluations(tournament.tournament_id), how, ensembles)
    checkpoints = {
        one.manifest_digest: Checkpoint(agent_id=one.agent_id, manifest_digest=one.manifest_digest) for one in snapshots
    }
    results = SnapshotEvaluations(
        {digest: before[digest].evaluation for digest in checkpoints if _is_done(before, digest)}
    )
    missing = [checkpoint for digest, checkpoint in checkpoints.items() if digest not in results.evaluations]
    messages = _ProgressMessages(tournament.tournament_id, len(missing), notify)
    messages.begin(_counted(len(snapshots), "snapshot"), len(results.evaluations), how.episodes)
    slots = asyncio.Semaphore(QUEUED_AT_ONCE)

    async def evaluate(checkpoint: Checkpoint) -> None:
        async with slots:
            members = ensembles.get(checkpoint.manifest_digest, ())
            await _evaluate(client, tournament, checkpoint, members, how, before, results, notify)
        messages.one_more()

    async with _cancelling([asyncio.create_task(evaluate(checkpoint)) for checkpoint in missing]) as tasks:
        await asyncio.gather(*tasks)
    return results


@contextlib.asynccontextmanager
async def _cancelling(tasks: list[asyncio.Task[None]]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Cancels the tasks that still run at the end of the block."""
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()


def _is_done(entries: Mapping[str, EvaluationEntry], digest: str) -> bool:
    return digest in entries and entries[digest].done


async def _evaluate(
    client: Client,
    tournament: Tournament,
    checkpoint: Checkpoint,
    members: Sequence[Checkpoint],
    how: EvaluationSettings,
    before: Mapping[str, EvaluationEntry],
    results: SnapshotEvaluations,
    notify: Callable[[str], None],
) -> None:
    """Evaluates a checkpoint, or waits for its queued evaluation, and adds the result or the error to `results`."""
    digest = checkpoint.manifest_digest
    try:
        if digest in before:
            queued = before[digest].work.evaluation_id
            results.evaluations[digest] = await evaluating.awaited(client, tournament, queued, notify=notify)
            return
        results.evaluations[digest] = await evaluating.evaluated(
            client,
            tournament,
            checkpoint,
            members=members,
            episodes=how.episodes,
            options=how.options,
            seed=how.seed,
            stochastic=how.stochastic,
            keep=True,
            notify=notify,
        )
    except FailedPrecondition as error:
        results.failures[digest] = error.message


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class _ProgressMessages:
    """Reports the progress of the evaluations from time to time."""

    def __init__(self, name: str, wanted: int, notify: Callable[[str], None]) -> None:
        self._name, self._wanted, self._notify = name, wanted, notify
        self._done, self._last = 0, time.monotonic()

    def begin(self, snapshots: str, evaluated: int, episodes: int) -> None:
        line = f"{self._name}: {snapshots}"
        if evaluated:
            line += f", {evaluated} already evaluated"
        if self._wanted:
            line += f", evaluating {self._wanted} on {_counted(episodes, 'episode')} each"
        self._notify(line)

    def one_more(self) -> None:
        self._done += 1
        if self._done < self._wanted and time.monotonic() - self._last >= MESSAGE_SECONDS:
            self._last = time.monotonic()
            self._notify(f"{self._name}: {self._done} of {self._wanted} evaluated")
