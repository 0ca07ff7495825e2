"""Tests that share what takes long to make run in one process."""

import os

import pytest


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="there is one process only")
@pytest.mark.xdist_group("example")
def test_groups_reach_the_scheduler(request: pytest.FixtureRequest) -> None:
    """The scheduler reads the group from the id of a test. pytest-xdist 3.8 cannot write it there with pytest 9.2."""
    assert request.node.nodeid.endswith("@example")
