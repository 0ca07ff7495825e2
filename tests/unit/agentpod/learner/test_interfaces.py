"""The halves of a leader: the computing half runs without access to the services."""

import subprocess
import sys

import pytest

COMPUTING = ("training_setup", "evaluation_job", "follower")
CREDENTIALS = (
    "podrace.checkpoint_store",
    "podrace.leaderboard.v1.leaderboard_pb2_grpc",
    "podrace.orchestrator.v1.orchestrator_pb2_grpc",
)


@pytest.mark.long
def test_the_computing_half_imports_neither_store_nor_stubs_of_other_services() -> None:
    imports = "".join(f"import agentpod.learner.{module}\n" for module in COMPUTING)
    code = f"{imports}import sys\nprint(*(name for name in {CREDENTIALS!r} if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []
