"""A small part of `make fuzz`: every method and every reader with some random, mutated and damaged inputs."""

import os
import re
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import calls
import campaign
import grpc
import pytest
import readers
import worlds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

REPOSITORY = Path(__file__).resolve().parents[3]
CASES = 4000
"""Cases of all targets together; `make fuzz` has a million."""
NARROW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


async def test_no_case_crashes_hangs_or_is_a_defect(tmp_path: Path):
    assert not await campaign.campaign(CASES, "", 0, 60.0, tmp_path)


async def test_every_service_of_the_contracts_is_called(tmp_path: Path):
    async with AsyncExitStack() as stack:
        called = {target.name.partition(".")[0] for target in await campaign.targets(tmp_path, stack)}
    contracts = REPOSITORY.glob("protos/podrace/**/*.proto")
    assert {name for path in contracts for name in re.findall(r"^service (\w+)", path.read_text(), re.M)} <= called


def test_make_fuzz_finds_what_the_campaign_imports():
    (paths,) = re.findall(r"PYTHONPATH=(\S+) .*campaign\.py", (REPOSITORY / "Makefile").read_text())
    command = [sys.executable, "tests/security/fuzz/campaign.py", "--help"]
    subprocess.run(command, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": paths}, check=True, stdout=subprocess.PIPE)


@pytest.mark.parametrize("name", readers.READERS)
def test_a_reader_refuses_what_it_cannot_read(name: str):
    @NARROW
    @given(st.randoms(use_true_random=False))
    def run(random: Random) -> None:
        readers.READERS[name](random)

    run()


async def test_every_method_of_every_service_describes_its_refusal_of_bytes_that_are_no_message(tmp_path: Path):
    async with AsyncExitStack() as stack:
        for world in await worlds.Worlds(tmp_path, stack).build():
            for method in await calls.methods_of(world.service):
                context = await calls.call(method, [b"\xff"])
                assert context.status == grpc.StatusCode.INVALID_ARGUMENT, method.name
                assert not calls.missing_detail(context, method.name), method.name
