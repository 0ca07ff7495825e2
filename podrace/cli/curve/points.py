"""What a learning curve consists of: snapshots with the episodes they were evaluated on. Pure."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.cli.terminal import formats
from podrace.client.client import END_STATES
from podrace.client.scores import standard_deviation, standard_error
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate, Snapshot
from podrace.tournament.v1.tournament_pb2 import Tournament

CHAMPION = "champion"
AGENTS = "agents"
ALL = "all"
COLUMNS = (
    "tournament_id", "agent_id", "algorithm", "seconds", "environment_steps", "mean", "standard_deviation",
    "standard_error", "episodes",
)  # fmt: skip
"""Of the CSV file; `agent_id` is `champion` for the champion's curve, whoever that was."""


@dataclass(frozen=True)
class Point:
    """A point of a curve."""

    snapshot: Snapshot
    evaluation: Evaluation

    @property
    def who(self) -> str:
        """Whose curve it belongs to: an agent's id, or `champion`."""
        return CHAMPION if self.snapshot.champion else self.snapshot.agent_id

    @property
    def seconds(self) -> float:
        """Time the tournament had been running when the policy was copied."""
        return formats.seconds(self.snapshot.running_duration)

    @property
    def environment_steps(self) -> int:
        """For the champion, what it took to find it: steps over all agents. For an agent, steps behind its policy."""
        snapshot = self.snapshot
        return snapshot.tournament_environment_steps if snapshot.champion else snapshot.environment_steps

    @property
    def mean(self) -> float:
        """Mean return over the episodes."""
        return self.evaluation.mean_return

    @property
    def standard_deviation(self) -> float | None:
        """Of the return between episodes; unknown of a single one."""
        return standard_deviation(self.evaluation)

    @property
    def standard_error(self) -> float | None:
        """Of the mean; unknown of a single episode."""
        return standard_error(self.evaluation)

    def values(self) -> dict[str, Any]:
        """A line of the CSV file, and what `curve --json` prints of it. Keys are added to, never renamed.

        What is unknown is None: null in JSON, nothing in the file.
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


def within(snapshots: Iterable[Snapshot], tournament: Tournament) -> list[Snapshot]:
    """The snapshots without those that pods took after the end, before they heard of it."""
    if tournament.state not in END_STATES:
        return list(snapshots)
    end = formats.seconds(tournament.running_duration)
    return [snapshot for snapshot in snapshots if formats.seconds(snapshot.running_duration) <= end]


def final(tournament: Tournament, board: Iterable[Candidate]) -> Snapshot | None:
    """Where the champion's curve ends: the champion that was named, at the end of the tournament; None before that.

    Args:
        tournament: Whose curve it is.
        board: Its candidates.
    """
    champion = next((one for one in board if one.candidate_id == tournament.champion_manifest_digest), None)
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
    """The snapshots of a tournament, in order of time, with the steps of all agents by then.

    What the orchestrator counted lags behind by up to a renewal of leases, and never runs ahead. Neither does the sum
    of what each agent had taken at its own last snapshot. The larger of the two is nearer.
    """
    steps: dict[str, int] = {}
    told = summed = 0
    counted = []
    # An agent's snapshot of a number belongs to the same moment as the champion's, which the orchestrator asked for.
    for snapshot in sorted(snapshots, key=lambda one: (one.number or math.inf, one.champion)):
        if not snapshot.champion:
            before = steps.get(snapshot.agent_id, 0)
            steps[snapshot.agent_id] = max(before, snapshot.agent_environment_steps)
            summed += steps[snapshot.agent_id] - before
        told = max(told, snapshot.tournament_environment_steps)
        entry = Snapshot()
        entry.CopyFrom(snapshot)
        entry.tournament_environment_steps = max(told, summed)
        counted.append(entry)
    return counted


def chosen(snapshots: Iterable[Snapshot], of: str) -> list[Snapshot]:
    """The snapshots that are to be drawn: the champion's, then those of each agent, in order of time.

    Args:
        snapshots: Of one tournament.
        of: `champion`, `agents` or `all`.
    """
    wanted = [snapshot for snapshot in snapshots if of == ALL or snapshot.champion == (of == CHAMPION)]
    return sorted(wanted, key=lambda one: (not one.champion, _agent_number(one), one.running_duration.ToNanoseconds()))


def _agent_number(snapshot: Snapshot) -> int:
    """Position of its agent in the sequence of agents; the champion's curve has many agents."""
    number = snapshot.agent_id.rpartition("-a")[2]
    return int(number) if number.isdecimal() and not snapshot.champion else 0


def curves(points: Iterable[Point]) -> dict[tuple[str, str], list[Point]]:
    """The points of each curve, by tournament and whose it is, in the order in which they come."""
    found: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        found.setdefault((point.snapshot.tournament_id, point.who), []).append(point)
    return found


def curve_seed(seed: int) -> int:
    """The seed of the evaluation environments: the first 63 bits of SHA-256 of `curve/seed`.

    Agents and champions are selected on seeds derived from other texts. It is the same for all snapshots of all
    tournaments, so that what differs between them is not the luck of the draw.
    """
    return int.from_bytes(sha256(f"curve/{seed}".encode()).digest()[:8]) >> 1


def csv_text(points: Sequence[Point]) -> str:
    """The points as CSV, with full numbers."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(point.values() for point in points)
    return text.getvalue()


def json_values(points: Sequence[Point], failures: Mapping[str, str]) -> dict[str, Any]:
    """`curve --json`: beside the CSV's, `number` of the period (none: the champion that was named at the end)."""
    return {
        "points": [
            point.values()
            | {
                "number": point.snapshot.number or None,
                "snapshot_agent_id": point.snapshot.agent_id,
                "policy_environment_steps": point.snapshot.environment_steps,
                "manifest_digest": point.snapshot.manifest_digest,
            }
            for point in points
        ],
        "failures": [{"manifest_digest": digest, "error": error} for digest, error in failures.items()],
    }
