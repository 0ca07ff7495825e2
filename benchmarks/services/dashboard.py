"""Measures what the dashboard needs for a large tournament: memory for its points, and processor time for a chart.

    python -m benchmarks.services.dashboard [POINTS]

500 agents share the points. Times are those of the processor, so they do not depend on other work of the machine.
"""

import random
import sys
import time
from pathlib import Path

from podrace.dashboard.curves import ChartRequest, Curves, chart, chart_json
from podrace.dashboard.points import SubmissionPoints
from podrace.leaderboard.v1.leaderboard_pb2 import VERDICT_ACCEPTED, Candidate

AGENTS = 500
POINTS = 1_000_000


def resident_mb() -> float:
    """Returns the memory of this process in MB."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


def filled(count: int) -> SubmissionPoints:
    """Returns the points of a tournament whose scores are random."""
    points, draws = SubmissionPoints(0.0), random.Random(1)
    entry = Candidate(algorithm="ppo", verdict=VERDICT_ACCEPTED)
    for number in range(count):
        entry.sequence, entry.agent_id, entry.score = number + 1, f"large-a{number % AGENTS}", draws.random()
        entry.submit_time.seconds = number // 100
        entry.environment_steps = entry.agent_environment_steps = 1000 * (number // AGENTS)
        entry.core_seconds = float(number // AGENTS)
        points.add(entry)
    return points


def main() -> None:
    """Prints one line for each measurement."""
    before, start = resident_mb(), time.process_time()
    points = filled(int(sys.argv[1]) if len(sys.argv) > 1 else POINTS)
    print(f"{points.count} points: {resident_mb() - before:.0f} MB, {time.process_time() - start:.1f} s to add")
    for of in Curves:
        start = time.process_time()
        text = chart_json(chart(points, ChartRequest(of=of, width=500)))
        print(f"chart of {of.value}: {time.process_time() - start:.2f} s, {len(text) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
