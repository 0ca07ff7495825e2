"""Records learning curves from short real tournaments of the normal command, one for each number of pods."""

import json
import math
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate, SubmitCandidateResponse
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

LONGEST_SECONDS = 1500.0


@dataclass(frozen=True)
class RecordedRun:
    """The durations of a real tournament."""

    pods: int
    wall_seconds: float
    """From its creation until a score at or above the target was on the board."""
    startup_seconds: float
    """From its creation until a pod requested the first agent."""
    opening_seconds: float
    """From an agent's creation until its first score, without the training in between."""
    steps_per_second: float
    """Environment steps per second of a pod, including evaluations."""


@dataclass(frozen=True)
class Recorded:
    """Learning curves, and everything else that a prediction needs."""

    target_return: float
    assignment_steps: int
    evaluation_steps: int
    rollout_steps: int
    """All scores are at multiples of this number of steps."""
    evolution: Mapping[str, Any]
    """The section `evolution` of the specification."""
    runs: Sequence[RecordedRun]
    curves: Sequence[Sequence[tuple[float, float]]]
    """Environment steps and scores of each lineage, in the order of the new agents with which they start."""
    curves_by_pods: Mapping[str, Sequence[Sequence[tuple[float, float]]]] = field(default_factory=dict)
    """The curves of each run separately, by its number of pods."""

    @classmethod
    def read(cls, path: Path) -> "Recorded":
        """Reads a file written by `write`.

        Raises:
            SystemExit: The file was written by an earlier version of this benchmark.
        """
        values = json.loads(path.read_text())
        if missing := {field.name for field in fields(cls)} - values.keys():
            sys.exit(f"error: {path} lacks {', '.join(sorted(missing))}: delete it to record it again")
        return cls(**{**values, "runs": [RecordedRun(**run) for run in values["runs"]]})

    def write(self, path: Path) -> None:
        """Writes a JSON file."""
        path.write_text(json.dumps(asdict(self)))

    def curves_of(self, run: RecordedRun, *, at: RecordedRun) -> "Recorded":
        """Returns the curves of one run, with the step rate and start-up times of another."""
        return replace(self, runs=[at], curves=self.curves_by_pods[str(run.pods)])

    def run_of(self, pods: int) -> RecordedRun:
        """Returns the run with the nearest number of pods."""
        return min(self.runs, key=lambda run: abs(run.pods - pods))


def pooled(recorded: Sequence[Recorded]) -> Recorded:
    """Combines several recordings of one specification with different seeds."""
    runs = [run for one in recorded for run in one.runs]
    curves = [curve for one in recorded for curve in one.curves]
    rollout_steps = math.gcd(*(one.rollout_steps for one in recorded))
    return replace(recorded[0], rollout_steps=rollout_steps, runs=runs, curves=curves, curves_by_pods={})


def record(spec: Path, numbers_of_pods: Sequence[int], seed: int | None = None) -> Recorded:
    """Runs a specification once for each number of pods.

    Args:
        spec: A specification with a target return.
        numbers_of_pods: Number of pods of each run.
        seed: Seed of all runs; None: the specification's.

    Raises:
        SystemExit: A tournament ended before it reached its target.
    """
    runs: list[RecordedRun] = []
    rollout_steps = 0
    curves: dict[int, list[tuple[float, float]]] = defaultdict(list)
    by_pods: dict[str, list[list[tuple[float, float]]]] = {}
    for pods in numbers_of_pods:
        with tempfile.TemporaryDirectory(prefix="pr-") as home:
            _train(spec, pods, Path(home), seed)
            own: dict[int, list[tuple[float, float]]] = defaultdict(list)
            resolved, run, steps = _read(Path(home), pods, own)
            runs.append(run)
            rollout_steps = math.gcd(rollout_steps, steps)
        by_pods[str(pods)] = [sorted(own[number]) for number in sorted(own)]
        for number, points in own.items():
            curves[number] += points
    return Recorded(
        target_return=resolved.objective.target_return,
        assignment_steps=resolved.assignment.environment_steps,
        evaluation_steps=resolved.evaluation.every_environment_steps,
        rollout_steps=rollout_steps,
        evolution={
            "strategy": resolved.evolution.strategy,
            "initial_agents": resolved.evolution.initial_agents,
            "board_capacity": resolved.evolution.board_capacity,
        },
        runs=runs,
        curves=[sorted(curves[number]) for number in sorted(curves)],
        curves_by_pods=by_pods,
    )


def _train(spec: Path, pods: int, home: Path, seed: int | None) -> None:
    command = [sys.executable, "-m", "podrace.cli", "train", str(spec), "--json", "--home", str(home)]
    for name in ("minimum_pods", "maximum_pods"):
        command += ["--set", f"pool.{name}={pods}"]
    if seed is not None:
        command += ["--set", f"seed={seed}"]
    ended = subprocess.run(command, capture_output=True, timeout=LONGEST_SECONDS, text=True)
    if ended.returncode:
        sys.exit(f"error: {' '.join(command)}: exit code {ended.returncode}: {ended.stderr[-500:]}")


def _read(
    home: Path, pods: int, curves: dict[int, list[tuple[float, float]]]
) -> tuple[TournamentSpec, RecordedRun, int]:
    """Adds the points of all agents to the curves; those of children to the curve of their first ancestor.

    Returns:
        The specification, the durations, and the largest number of which the steps of all scores are multiples.
    """
    with sqlite3.connect(home / "leaderboard.sqlite") as database:
        agents = [Agent.FromString(row[0]) for row in database.execute("SELECT agent FROM agents ORDER BY number")]
        answers = database.execute("SELECT answer FROM submissions ORDER BY sequence")
        candidates = [SubmitCandidateResponse.FromString(row[0]).candidate for row in answers]
    with sqlite3.connect(home / "orchestrator.sqlite") as database:
        row = database.execute("SELECT spec, create_time FROM tournaments").fetchone()
        spec, create_time = TournamentSpec.FromString(row[0]), float(row[1])
    best = [one for one in candidates if one.score >= spec.objective.target_return]
    if not best:
        sys.exit(
            f"error: {pods} pods did not reach {spec.objective.target_return:g}; give them more time in the objective"
        )
    roots = roots_of(agents)
    by_agent: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        by_agent[candidate.agent_id].append(candidate)
        curves[roots[candidate.agent_id]].append((candidate.environment_steps, candidate.score))
    rates = _rates(list(by_agent.values())) or _rates_with_openings(agents, by_agent)
    rate = statistics.median(rates)
    openings = [
        _seconds(own[0]) - agent.create_time.ToNanoseconds() / 1e9 - own[0].agent_environment_steps / rate
        for agent in agents
        if (own := by_agent[agent.agent_id])
    ]
    run = RecordedRun(
        pods=pods,
        wall_seconds=_seconds(best[0]) - create_time,
        startup_seconds=min(agent.create_time.ToNanoseconds() for agent in agents) / 1e9 - create_time,
        opening_seconds=max(0.0, statistics.median(openings)),
        steps_per_second=rate,
    )
    return spec, run, math.gcd(*(one.agent_environment_steps for one in candidates))


def roots_of(agents: Sequence[Agent]) -> dict[str, int]:
    """Returns the number of each agent's first ancestor (or of itself) by agent id; parents must precede children."""
    roots: dict[str, int] = {}
    for agent in agents:
        parent = agent.parent_agent_ids[0] if agent.parent_agent_ids else ""
        roots[agent.agent_id] = roots.get(parent, agent.number)
    return roots


def _rates(agents: Sequence[Sequence[Candidate]]) -> list[float]:
    """Returns the steps per second of each agent between its first and its last submission."""
    return [
        (own[-1].agent_environment_steps - own[0].agent_environment_steps) / (_seconds(own[-1]) - _seconds(own[0]))
        for own in agents
        if len(own) > 1
    ]


def _rates_with_openings(agents: Sequence[Agent], by_agent: Mapping[str, Sequence[Candidate]]) -> list[float]:
    """Returns rates since each agent's creation, if no agent was scored twice; these include the time to open it."""
    return [
        own[0].agent_environment_steps / (_seconds(own[0]) - agent.create_time.ToNanoseconds() / 1e9)
        for agent in agents
        if (own := by_agent.get(agent.agent_id, ()))
    ]


def _seconds(candidate: Candidate) -> float:
    return candidate.submit_time.ToNanoseconds() / 1e9
