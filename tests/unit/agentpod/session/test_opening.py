"""A role that compiles kernels may take longer to open than one that does not."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentpod.liveness.activity import Activity
from agentpod.session.opening import opened
from podrace.errors import DeadlineExceeded, InvalidArgument
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from simulators.compilation import compiling

COMPILING, OPENING = pb.ROLE_PHASE_COMPILING, pb.ROLE_PHASE_OPENING


class Role:
    """A role that answers after it was asked as often as it has phases; 10 s pass between two questions."""

    def __init__(self, phases: Sequence[Any]) -> None:
        self.phases, self.now = list(phases), 0.0
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def phase(self) -> Any:
        self.now += 10.0
        phase = self.phases.pop(0)
        if not self.phases:
            self.answer.set_result("open")
        return phase

    async def open(self) -> Any:
        return await opened(self.answer, self.phase, limit_seconds=30.0, poll_seconds=0.0, clock=lambda: self.now)


@pytest.mark.parametrize(
    "phases",
    [
        [OPENING, OPENING],
        [OPENING, *[COMPILING] * 50, OPENING],
        [None, COMPILING, None],
    ],
)
async def test_time_counts_only_while_nothing_is_compiled(phases: list[Any]) -> None:
    assert await Role(phases).open() == "open"


@pytest.mark.parametrize(
    "phases", [[OPENING] * 9, [None] * 9, [COMPILING, OPENING, COMPILING, OPENING, None, COMPILING, COMPILING]]
)
async def test_a_role_that_takes_long_without_compiling_is_given_up(phases: list[Any]) -> None:
    role = Role(phases)
    with pytest.raises(DeadlineExceeded, match="a role did not open within 30 s"):
        await role.open()
    assert role.answer.cancelled()


async def test_an_answer_is_returned_without_asking_and_an_error_is_raised() -> None:
    role = Role([])
    role.answer.set_result("open")
    assert await role.open() == "open"
    role = Role([])
    role.answer.set_exception(InvalidArgument("no such environment"))
    with pytest.raises(InvalidArgument):
        await role.open()
    assert role.now == 0.0


def test_a_role_reports_that_it_compiles_while_it_opens() -> None:
    activity = Activity()
    with activity.doing(OPENING):
        assert activity.phase == OPENING
        with compiling("kernels"), compiling("others"):
            assert activity.phase == COMPILING
        assert activity.phase == OPENING
    with compiling("kernels"):
        assert activity.phase == pb.ROLE_PHASE_IDLE, "another role of this process compiles"
