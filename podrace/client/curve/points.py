"""Selects the snapshots of a learning curve and computes its points from their evaluations. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from google.protobuf.duration_pb2 import Duration

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.client.calls.tournaments import END_STATES
from podrace.client.scores import standard_deviation, standard_error
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate, Snapshot
from podrace.tournament.v1.tournament_pb2 import Tournament

CHAMPION = "champion"
AGENTS = "agents"
ALL = "all"


@dataclass(frozen=True)
class CurvePoint:
    """A point of a learning curve."""

    snapshot: Snapshot
    evaluation: Evaluation

    @property
    def who(self) -> str:
        """Name of the curve: the id of an agent, or `champion`."""
        return CHAMPION if self.snapshot.champion else self.snapshot.agent_id

    @property
    def seconds(self) -> float:
        """Running time of the tournament at the snapshot."""
        return seconds_of(self.snapshot.running_duration)

    @property
    def environment_steps(self) -> int:
        """Champion: steps of all agents, which found it together. Agent: steps of its policy and its ancestors."""
        snapshot = self.snapshot
        return snapshot.tournament_environment_steps if snapshot.champion else snapshot.environment_steps

    @property
    def mean(self) -> float:
        """Mean return over the episodes."""
        return self.evaluation.mean_return

    @property
    def standard_deviation(self) -> float | None:
        """Standard deviation of the return over episodes; None for a single episode."""
        return standard_deviation(self.evaluation)

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean return; None for a single episode."""
        return standard_error(self.evaluation)

    def values(self) -> dict[str, Any]:
        """Returns the values of a row, as in the CSV file and in `curve --json`. Keys may be added, never renamed.

        Unknown values are None: null in JSON, empty in the CSV file.
        """
        return {
            "tournament_id": self.snapshot.tournament_id,
            "agent_id": self.who,
            "algorithm": self.snapshot.algorithm,
            "seconds": self.seconds,
            "environment_steps": self.environment_steps,
            "mean": self.mean,
            "standard_deviation": self.standard_deviation,
            "standard_error": self.standard_error,
            "episodes": self.evaluation.episodes,
        }


def seconds_of(length: Duration) -> float:
    """Returns the seconds of a Duration."""
    return length.seconds + length.nanos * 1e-9


def within(snapshots: Iterable[Snapshot], tournament: Tournament) -> list[Snapshot]:
    """Removes snapshots that pods took after the end of the tournament, before they were notified of it."""
    if tournament.state not in END_STATES:
        return list(snapshots)
    end = seconds_of(tournament.running_duration)
    return [snapshot for snapshot in snapshots if seconds_of(snapshot.running_duration) <= end]


def final(tournament: Tournament, submissions: Iterable[Candidate]) -> Snapshot | None:
    """Returns the last point of the champion's curve: the final champion at the end; None before the end.

    Args:
        tournament: The tournament.
        submissions: All its submissions. The champion need not be on the board.
    """
    champion = next((one for one in submissions if one.candidate_id == tournament.champion_manifest_digest), None)
    if champion is None or tournament.state not in END_STATES:
        return None
    return Snapshot(
        manifest_digest=champion.candidate_id,
        tournament_id=tournament.tournament_id,
        agent_id=champion.agent_id,
        algorithm=champion.algorithm,
        champion=True,
        running_duration=tournament.running_duration,
        environment_steps=champion.environment_steps,
        agent_environment_steps=champion.agent_environment_steps,
        tournament_environment_steps=tournament.environment_steps,
    )


def with_totals(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Returns the snapshots of a tournament in order of time, with the steps of all agents until then.

    There are two lower bounds of these steps: the orchestrator's count, which is late by up to one lease renewal, and
    the sum of the steps of each agent at its own last snapshot. The larger of the two is closer.
    """
    steps: dict[str, int] = {}
    reported = summed = 0
    counted = []
    # Snapshots with the same number, of agents and of the champion, are from the same time.
    for snapshot in sorted(snapshots, key=lambda one: (one.number or math.inf, one.champion)):
        if not snapshot.champion:
            before = steps.get(snapshot.agent_id, 0)
            steps[snapshot.agent_id] = max(before, snapshot.agent_environment_steps)
            summed += steps[snapshot.agent_id] - before
        reported = max(reported, snapshot.tournament_environment_steps)
        entry = Snapshot()
        entry.CopyFrom(snapshot)
        entry.tournament_environment_steps = max(reported, summed)
        counted.append(entry)
    return counted


def chosen(snapshots: Iterable[Snapshot], of: str) -> list[Snapshot]:
    """Returns the snapshots to draw: those of the champion, then those of each agent, in order of time.

    Args:
        snapshots: Snapshots of one tournament.
        of: `champion`, `agents` or `all`.
    """
    wanted = [snapshot for snapshot in snapshots if of == ALL or snapshot.champion == (of == CHAMPION)]
    return sorted(wanted, key=lambda one: (not one.champion, _agent_number(one), one.running_duration.ToNanoseconds()))


def _agent_number(snapshot: Snapshot) -> int:
    """Returns the number of the agent of a snapshot; 0 for the champion, whose curve has many agents."""
    number = snapshot.agent_id.rpartition("-a")[2]
    return int(number) if number.isdecimal() and not snapshot.champion else 0


def curves(points: Iterable[CurvePoint]) -> dict[tuple[str, str], list[CurvePoint]]:
    """Groups points by tournament and curve, in the given order."""
    found: dict[tuple[str, str], list[CurvePoint]] = {}
    for point in points:
        found.setdefault((point.snapshot.tournament_id, point.who), []).append(point)
    return found


def curve_seed(seed: int) -> int:
    """Returns the seed of the evaluation environments: the first 63 bits of the SHA-256 digest of `curve/<seed>`.

    Agents and champions are selected with seeds derived from other texts. All snapshots of all tournaments use the same
    seed, so differences between them are not due to different episodes.
    """
    return int.from_bytes(sha256(f"curve/{seed}".encode()).digest()[:8]) >> 1
