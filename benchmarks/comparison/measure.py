"""Measures one run of the plan: runs the contender, evaluates its policies on fresh episodes, and makes the row."""

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.comparison import fresh, own, peer_runs
from benchmarks.comparison.contenders import Contender, Own, peer_values, resolved, settings_digest, values_of
from benchmarks.comparison.fresh import ROOT, Policy, Score
from benchmarks.comparison.outcome import Outcome
from benchmarks.comparison.plan import Run
from benchmarks.comparison.rows import COMPLETED, FAILED, Key, Point, Row, write_curve
from benchmarks.comparison.statistics import z_score
from benchmarks.comparison.tasks import TASKS, Task
from podrace.errors import PodraceError

EPISODES = 512
"""Fresh episodes of a final policy."""
SOURCES = ("agentpod", "benchmarks", "leaderboard", "orchestrator", "podrace", "protos", "simulators")


class Measurement:
    """One run of the plan."""

    def __init__(
        self,
        run: Run,
        contender: Contender,
        python: str = sys.executable,
        episodes: int = EPISODES,
        environment_steps: int = 0,
    ) -> None:
        """Prepares the run.

        Args:
            run: The run.
            contender: Its contender.
            python: Interpreter of other libraries.
            episodes: Fresh episodes of the final policy.
            environment_steps: Budget of a tournament of podrace instead of the wall clock; 0: the wall clock.
        """
        self.run, self._contender, self._python, self._episodes = run, contender, python, episodes
        self._task: Task = TASKS[run.task]
        self.values: dict[str, Any] = (
            values_of(contender, self._task, run.conditions, run.seed, run.seconds)
            if isinstance(contender, Own)
            else peer_values(contender, run.contender, self._task, run.conditions, run.seed, run.seconds)
        )
        if environment_steps:
            self.values["objective"] = {"environment_steps": environment_steps}

    @property
    def key(self) -> Key:
        """What identifies the run in the CSV file."""
        run = self.run
        return Key(run.conditions, run.task, run.contender, run.seed, settings_digest(self.values))

    def check(self) -> None:
        """Checks that podrace accepts the specification; raises InvalidArgument as podrace.specification.resolve."""
        if isinstance(self._contender, Own):
            resolved(self.values, self.run.contender)

    def measure(self, curves: Path, notify: Callable[[str], None]) -> Row:
        """Runs the contender and returns the row, also if the run fails.

        Args:
            curves: Folder of curve files; its name becomes part of the row.
            notify: Receives progress messages.
        """
        date, load = datetime.now(UTC), os.getloadavg()[0]
        # Sockets have short paths.
        with tempfile.TemporaryDirectory(prefix="pr-", ignore_cleanup_errors=True) as folder:
            try:
                outcome = self._outcome(Path(folder), notify)
                scores = self._scores(outcome)
                backtest = self._backtest(outcome.policy) if self._task.backtest and outcome.policy else None
            except (PodraceError, RuntimeError, OSError, subprocess.SubprocessError) as error:
                outcome = Outcome(None, 0.0, 0, 0, reason=str(error)[:500])
                scores, backtest = [], None
        return self._row(outcome, scores, backtest, curves, date, load)

    def _outcome(self, folder: Path, notify: Callable[[str], None]) -> Outcome:
        if isinstance(self._contender, Own):
            spec = resolved(self.values, self.run.contender)
            return own.run(spec, folder, self.run.seconds, notify)
        return peer_runs.run(self._contender.library, self.values, folder, self._python)

    def _scores(self, outcome: Outcome) -> list[Score]:
        """Evaluates the final policy, then those of the moments."""
        if outcome.policy is None:
            return []
        policies = [outcome.policy, *(moment.policy for moment in outcome.moments)]
        curve_episodes = min(self._task.curve_episodes, self._episodes)
        episodes = [self._episodes, *(curve_episodes for _ in outcome.moments)]
        return self._evaluate(self._request(self._task.evaluation(), policies, episodes))

    def _backtest(self, policy: Policy) -> float:
        options = {**self._task.evaluation(), "split": "backtest"}
        return self._evaluate(self._request(options, [policy], [self._episodes]))[0].mean

    def _request(
        self, options: Mapping[str, Any], policies: Sequence[Policy], episodes: Sequence[int]
    ) -> fresh.Request:
        return fresh.Request(self._task.id, options, policies, episodes, fresh.seed_of(self.run.seed))

    def _evaluate(self, request: fresh.Request) -> list[Score]:
        return fresh.evaluate(request, python=sys.executable if isinstance(self._contender, Own) else self._python)

    def _row(
        self,
        outcome: Outcome,
        scores: Sequence[Score],
        backtest: float | None,
        curves: Path,
        date: datetime,
        load: float,
    ) -> Row:
        run, final, key = self.run, scores[0] if scores else None, self.key
        name = ""
        if final is not None:
            name = f"{curves.name}/{run.conditions}-{run.task}-{run.contender}-{run.seed}-{key.settings}.csv"
            write_curve(curves.parent / name, points_of(outcome, scores))
        return Row(
            **vars(key),
            version=version(),
            machine=machine(),
            date=f"{date:%Y-%m-%d %H:%M}",
            load=load,
            budget_seconds=run.seconds,
            wall_seconds=outcome.wall_seconds,
            environment_steps=outcome.environment_steps,
            agents=outcome.agents,
            state=COMPLETED if final else FAILED,
            reason=outcome.reason,
            final_return=final.mean if final else None,
            final_error=final.standard_error if final else None,
            final_episodes=final.episodes if final else None,
            reported_score=outcome.reported_score,
            reported_error=outcome.reported_error,
            z=z_of(outcome, final),
            share_behind=outcome.share_behind,
            evaluation_share=outcome.evaluation_share,
            stopped_agents=outcome.stopped_agents,
            correlation=outcome.correlation,
            backtest_return=backtest,
            curve=name,
        )


def z_of(outcome: Outcome, final: Score | None) -> float | None:
    """Returns how many standard errors of the difference the reported score is above the final return."""
    if final is None or outcome.reported_score is None or outcome.reported_error is None:
        return None
    return z_score(outcome.reported_score, outcome.reported_error, final.mean, final.standard_error)


def points_of(outcome: Outcome, scores: Sequence[Score]) -> list[Point]:
    """Returns the points of the anytime curve; the last is the end of the run.

    Args:
        outcome: The outcome of the run.
        scores: Of the final policy, then of the moments.
    """
    final, *others = scores
    found = [
        Point(moment.seconds, moment.environment_steps, score.mean, score.standard_error, score.episodes)
        for moment, score in zip(outcome.moments, others, strict=True)
    ]
    end = Point(outcome.wall_seconds, outcome.environment_steps, final.mean, final.standard_error, final.episodes)
    return [*(point for point in found if point.seconds < end.seconds), end]


def version() -> str:
    """Returns the git commit of the code; with `+` at the end if the sources have uncommitted changes."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *SOURCES)
    return (commit or "unknown") + ("+" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def machine() -> str:
    """Returns the processor and the number of cores that this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor() or 'unknown'}, {len(os.sched_getaffinity(0))} cores"
