"""Tests the metric of refused submissions."""

import subprocess
import sys

PROGRAM = """
import prometheus_client
import leaderboard.checkpoints.submission_check
print(prometheus_client.generate_latest().decode())
"""


def test_every_reason_to_refuse_a_submission_has_a_sample_before_the_first_refusal() -> None:
    """Prometheus sees no increase in a counter whose first sample is 1."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    for reason in ("bad_checkpoint", "bad_digest", "non_finite"):
        assert f'podrace_leaderboard_submissions_refused_total{{reason="{reason}"}} 0.0\n' in done.stdout
