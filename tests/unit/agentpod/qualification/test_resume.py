from dataclasses import replace

import pytest

from agentpod.qualification.resume import CASES, Continued, judge
from podrace.qualification.findings import Grade

GOOD = Continued("ppo", "cuda:0", 20_480, 24_576, 40_960, 5.0)


def test_an_agent_that_continues_from_its_checkpoint_and_publishes_again_passes() -> None:
    assert judge(GOOD).grade == Grade.PASS


@pytest.mark.parametrize(
    "changes",
    [
        {"published_steps": 0, "message": "out of memory"},
        {"continued_steps": 2048},
        {"continued_steps": 0},
        {"republished_steps": 0},
        {"republished_steps": 20_480},
    ],
)
def test_an_agent_that_starts_again_or_publishes_nothing_later_fails(changes: dict[str, object]) -> None:
    found = judge(replace(GOOD, **changes))  # type: ignore[arg-type]
    assert found.grade == Grade.FAIL
    assert found.remedy


def test_one_case_has_a_replay_memory() -> None:
    assert any("replay_capacity" in settings for settings in CASES.values())
