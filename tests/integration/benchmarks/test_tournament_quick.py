"""The quick run of benchmarks/tournament.py, on a real mesh."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_quick_comparison_prints_its_report():
    done = subprocess.run(
        [sys.executable, "benchmarks/tournament.py", "--quick"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "| `tournament` | 1 |" in done.stdout, done.stderr[-2000:]
    assert "| `vanilla` | 1 |" in done.stdout
    assert "## Reported scores" in done.stdout
