"""The programs run alone, and the Makefile passes its variables on to them."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import chaos
import pytest
import soak
from chaos import ChaosOptions, options_of

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = REPOSITORY / "tests/chaos"


def arguments_of(target: str, program: str, *variables: str) -> list[str]:
    """Returns the arguments with which a target of the Makefile runs a program."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    command = ["make", "--dry-run", target, *variables]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
    (line,) = (line for line in done.stdout.splitlines() if f"tests/chaos/{program}" in line)
    return shlex.split(line)[2:]


@pytest.mark.parametrize("program", ["chaos.py", "soak.py"])
def test_a_program_runs_without_an_import_path(program: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, PROGRAMS / program, "--help"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_make_chaos_runs_the_program_with_its_variables() -> None:
    variables = (
        *("MESH=compose", "SECONDS=60", "SEED=2", "PODS=3", "CORES=0.5", "LEARNERS=2", "STEP_SECONDS=0.02"),
        *("PERIOD=9", "KINDS=kill,lose", "TARGETS=orchestrator,orchestrator database", "LASTING=4"),
    )
    given = chaos.parser().parse_args(arguments_of("chaos", "chaos.py", *variables))
    assert given.mesh == "compose"
    assert options_of(given) == ChaosOptions(
        seconds=60.0,
        seed=2,
        pods=3,
        cores=0.5,
        learners=2,
        step_seconds=0.02,
        period_seconds=9.0,
        kinds=["kill", "lose"],
        targets=["orchestrator", "orchestrator database"],
        lasting_seconds=4.0,
        memory_bytes=1 << 29,
    )


def test_make_chaos_without_variables_has_the_defaults_of_the_program() -> None:
    given = chaos.parser().parse_args(arguments_of("chaos", "chaos.py"))
    assert given == chaos.parser().parse_args([])


def test_make_soak_runs_the_program_with_its_variables() -> None:
    given = soak.parser().parse_args(arguments_of("soak", "soak.py", "HOURS=3", "PERIOD=10", "PODS=4"))
    assert vars(given) == {"hours": 3.0, "period": 10.0, "pods": 4}
    assert soak.parser().parse_args(arguments_of("soak", "soak.py")) == soak.parser().parse_args([])
