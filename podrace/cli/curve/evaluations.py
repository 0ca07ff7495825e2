"""Has pods evaluate snapshots, but for those that were evaluated in the same way before; the orchestrator remembers.

A command that was interrupted leaves a few evaluations queued; the next finds them and waits for them.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.struct_pb2 import Struct

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.cli.results import scoring
from podrace.cli.terminal import formats
from podrace.client import Client
from podrace.errors import FailedPrecondition
from podrace.leaderboard.v1.leaderboard_pb2 import Snapshot
from podrace.orchestrator.v1.orchestrator_pb2 import EvaluationEntry, EvaluationWork
from podrace.tournament.v1.tournament_pb2 import Tournament

QUEUED_AT_ONCE = 8
"""More than the pods of a tournament that has ended take at a time, few enough to be left behind."""
TELL_SECONDS = 10.0


@dataclass(frozen=True)
class Manner:
    """How snapshots are evaluated."""

    episodes: int
    options: Struct
    seed: int
    """Of the evaluation environments."""
    stochastic: bool

    def made(self, work: EvaluationWork) -> bool:
        """Whether an evaluation was made in this manner, of one checkpoint alone."""
        return (
            not work.members
            and (work.episodes, work.seed, work.stochastic) == (self.episodes, self.seed, self.stochastic)
            and work.options == self.options
        )


@dataclass(frozen=True)
class Results:
    """What came of the evaluations, by digest of the manifest."""

    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """A line for each that could not be made."""


def known(entries: Sequence[EvaluationEntry], manner: Manner) -> dict[str, EvaluationEntry]:
    """What was asked for in this manner before and did not fail, by digest of the manifest; what is done comes first.

    What a pod's own evaluator scored in the tournament's place is a number of another kind: it is asked for anew.

    Args:
        entries: Of one tournament, in any order.
        manner: As wanted now.
    """
    usable = [
        entry
        for entry in entries
        if manner.made(entry.work) and not entry.error and not entry.evaluation.evaluator_fault
    ]
    return {entry.work.checkpoint.manifest_digest: entry for entry in sorted(usable, key=lambda entry: entry.done)}


async def evaluate_snapshots(
    client: Client,
    tournament: Tournament,
    snapshots: Sequence[Snapshot],
    manner: Manner,
    tell: Callable[[str], None],
) -> Results:
    """Evaluates every policy once, however many snapshots it has.

    Args:
        client: Of a mesh whose pods evaluate.
        tournament: Whose snapshots these are.
        snapshots: In the order in which they are to be evaluated.
        manner: How.
        tell: Is told how far it is.

    Raises:
        PodraceError: The mesh does not answer. What a pod could not evaluate is among the failures instead.
    """
    before = known(await client.list_evaluations(tournament.tournament_id), manner)
    checkpoints = {
        one.manifest_digest: Checkpoint(agent_id=one.agent_id, manifest_digest=one.manifest_digest) for one in snapshots
    }
    results = Results({digest: before[digest].evaluation for digest in checkpoints if _is_done(before, digest)})
    missing = [checkpoint for digest, checkpoint in checkpoints.items() if digest not in results.evaluations]
    told = _Told(tournament.tournament_id, len(missing), tell)
    told.begin(formats.things(len(snapshots), "snapshot"), len(results.evaluations), manner.episodes)
    places = asyncio.Semaphore(QUEUED_AT_ONCE)

    async def evaluate(checkpoint: Checkpoint) -> None:
        digest = checkpoint.manifest_digest
        queued = before[digest].work.evaluation_id if digest in before else ""
        async with places:
            try:
                results.evaluations[digest] = await _evaluated(client, tournament, checkpoint, manner, queued)
            except FailedPrecondition as error:
                results.failures[digest] = error.message
        told.one_more()

    tasks = [asyncio.create_task(evaluate(checkpoint)) for checkpoint in missing]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return results


def _is_done(entries: Mapping[str, EvaluationEntry], digest: str) -> bool:
    return digest in entries and entries[digest].done


async def _evaluated(
    client: Client, tournament: Tournament, checkpoint: Checkpoint, manner: Manner, queued: str
) -> Evaluation:
    if queued:
        return await scoring.awaited(client, tournament, queued)
    return await scoring.evaluated(
        client,
        tournament,
        checkpoint,
        episodes=manner.episodes,
        options=manner.options,
        seed=manner.seed,
        stochastic=manner.stochastic,
    )


class _Told:
    """Tells a person how far it is, now and then."""

    def __init__(self, name: str, wanted: int, tell: Callable[[str], None]) -> None:
        self._name, self._wanted, self._tell = name, wanted, tell
        self._done, self._last = 0, time.monotonic()

    def begin(self, snapshots: str, evaluated: int, episodes: int) -> None:
        line = f"{self._name}: {snapshots}"
        if evaluated:
            line += f", {evaluated} evaluated before"
        if self._wanted:
            line += f", {self._wanted} to be evaluated over {formats.things(episodes, 'episode')} each"
        self._tell(line)

    def one_more(self) -> None:
        self._done += 1
        if self._done < self._wanted and time.monotonic() - self._last >= TELL_SECONDS:
            self._last = time.monotonic()
            self._tell(f"{self._name}: {self._done} of {self._wanted} evaluated")
