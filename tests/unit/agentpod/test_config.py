"""Where the roles of a pod compute."""

from pathlib import Path

import pytest

from agentpod.config import PodConfig


def pod(**changes: object) -> PodConfig:
    settings: dict[str, object] = {"layout": "separate", **changes}
    return PodConfig("p", "unix:o", "unix:l", "folder:///s", Path("/tmp"), **settings)  # type: ignore[arg-type]


def devices(config: PodConfig) -> dict[str, str]:
    return {role: config.device(role) for role in config.roles}


def test_without_gpus_everything_is_computed_by_processors() -> None:
    assert set(devices(pod(learners=2, workers=2)).values()) == {"cpu"}


def test_learners_take_the_gpus_in_turn_and_their_workers_stay_with_them() -> None:
    assert devices(pod(learners=3, workers=2, gpus=(4, 7))) == {
        "learner": "cuda:0",
        "learner-1": "cuda:1",
        "learner-2": "cuda:0",
        "worker-0": "cuda:0",
        "worker-1": "cuda:0",
        "worker-2": "cuda:1",
        "worker-3": "cuda:1",
        "worker-4": "cuda:0",
        "worker-5": "cuda:0",
        "evaluator": "cuda:0",
    }


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ((0, 1, 2, 3), ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:2"]),
        ((0, 1, 2), ["cuda:0", "cuda:1", "cuda:2", "cuda:2", "cuda:2"]),
        ((0, 1), ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]),
    ],
)
def test_a_group_spans_the_gpus_that_the_learners_leave_over(gpus: tuple[int, ...], expected: list[str]) -> None:
    config = pod(learners=2, gpus=gpus, plane="group")
    assert config.roles == ("learner", "learner-1", "worker-0", "worker-1", "evaluator")
    assert list(devices(config).values()) == expected
