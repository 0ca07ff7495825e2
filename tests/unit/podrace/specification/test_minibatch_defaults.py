from typing import Any

import pytest

from podrace.specification.hyperparameters import LARGEST_MINIBATCH, MINIBATCHES, minibatch_size
from podrace.specification.resolve import parse, resolve


def resolved_size(environment: dict[str, Any], pod: dict[str, Any], **hyperparameters: Any) -> float:
    values = {
        "environment": environment,
        "pod": pod,
        "algorithms": {"ppo": {"hyperparameters": hyperparameters}},
        "objective": {"environment_steps": 1000},
    }
    spec = resolve(parse(values, source="test"))
    assert resolve(spec) == spec
    return spec.algorithms["ppo"].hyperparameters["minibatch_size"].value.number_value


@pytest.mark.parametrize(
    ("rollout_steps", "size"),
    [
        (0, 512),
        (1, 512),
        (512 * MINIBATCHES, 512),
        (1024 * MINIBATCHES, 1024),
        (1023 * 32, 1024),
        (10**8, LARGEST_MINIBATCH),
    ],
)
def test_a_rollout_is_divided_into_at_least_sixteen_minibatches(rollout_steps: int, size: int) -> None:
    assert minibatch_size(rollout_steps, 512) == size
    assert size == 512 or rollout_steps / size >= MINIBATCHES


WARP = {"id": "warp:ant", "count": 2048}


@pytest.mark.parametrize(
    ("environment", "pod", "hyperparameters", "size"),
    [
        (WARP, {"gpus": 1}, {"horizon": 32}, 4096),
        (WARP, {"gpus": 1}, {}, 16_384),
        (WARP, {"gpus": 2, "workers": 2, "layout": "separate"}, {"horizon": 16}, 4096),
        (WARP, {"gpus": 1}, {"horizon": 32, "minibatch_size": 256}, 256),
        (WARP, {"gpus": 1, "layout": "separate", "plane": "shared"}, {"horizon": 32}, 512),
        (WARP, {}, {"horizon": 32}, 512),
        ({"id": "CartPole-v1", "count": 2048}, {"gpus": 1}, {"horizon": 32}, 512),
    ],
)
def test_the_default_grows_only_where_simulators_step_on_a_gpu(
    environment: dict[str, Any], pod: dict[str, Any], hyperparameters: dict[str, Any], size: int
) -> None:
    assert resolved_size(environment, pod, **hyperparameters) == size


def test_a_searched_size_stays_within_its_range() -> None:
    searched = {"low": 64, "high": 1024, "scale": "log"}
    assert resolved_size(WARP, {"gpus": 1}, minibatch_size=searched) == 1024
