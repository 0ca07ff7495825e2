"""A small part of `make fuzz`: every method and every reader with some random, mutated and damaged inputs."""

from pathlib import Path
from random import Random

import campaign
import pytest
import readers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CASES = 4000
"""Cases of all targets together; `make fuzz` has a million."""
NARROW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


async def test_no_case_crashes_hangs_or_is_a_defect(tmp_path: Path):
    assert not await campaign.campaign(CASES, "", 0, 60.0, tmp_path)


@pytest.mark.parametrize("name", readers.READERS)
def test_a_reader_refuses_what_it_cannot_read(name: str):
    @NARROW
    @given(st.randoms(use_true_random=False))
    def run(random: Random) -> None:
        readers.READERS[name](random)

    run()
