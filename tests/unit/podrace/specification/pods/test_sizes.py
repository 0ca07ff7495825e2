"""Tests what a specification may say about pods that grow, and how they divide the work of an agent."""

from typing import Any

import pytest

from podrace.errors import InvalidArgument
from podrace.specification.pods.sizes import batch_of_a_learner, environments_of_a_worker, grows_by_learners
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1.tournament_pb2 import PodSpec, TournamentSpec

GPU_POD = {"gpus": 1, "cores": 4, "maximum_cores": 16}
LEARNERS = PodSpec(cores=2.0, maximum_cores=8.0, learners=2)
GPUS = PodSpec(cores=2.0, maximum_cores=8.0, learners=1, gpus=1)
WORKERS = PodSpec(cores=1.0, maximum_cores=4.0, learners=1)


def resolved(**sections: Any) -> TournamentSpec:
    values = {
        "environment": {"id": "CartPole-v1", "count": 64},
        "algorithms": {"ppo": {}},
        "objective": {"environment_steps": 100_000},
        **sections,
    }
    return resolve(parse(values, source="test"))


def test_a_pod_with_gpus_grows_by_learners_that_average_their_gradients() -> None:
    spec = resolved(pod=GPU_POD)
    assert grows_by_learners(spec.pod)
    assert spec.fusion.mode == "allreduce"
    assert resolve(spec) == spec


@pytest.mark.parametrize("pod", [{"gpus": 1}, {"gpus": 1, "cores": 4, "maximum_cores": 4}, {"maximum_cores": 4}])
def test_the_default_of_the_fusion_mode_is_the_usual_one_for_other_pods(pod: dict[str, Any]) -> None:
    assert resolved(pod=pod).fusion.mode == "average"


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        (
            {"fusion": {"mode": "average"}},
            "with fusion.mode = 'average' a pod with more learners would learn from",
        ),
        ({"algorithms": {"ppo": {}, "dqn": {}}}, "those of 'dqn' would not share its replay memory"),
        ({"environment": {"id": "CartPole-v1", "count": 7}}, "not divisible by any number of pods from 2 to 4"),
        ({"pod": GPU_POD | {"minimum_cores": 12}}, "not divisible by the 3 pods of pod.minimum_cores"),
        (
            {"algorithms": {"ppo": {"hyperparameters": {"environment.count": {"low": 8, "high": 64}}}}},
            "learners divide environment.count, so it cannot be searched",
        ),
        ({"algorithms": {"ppo": {"starts": [{"recurrent_size": 32}]}}}, "recurrent_size of 'ppo' would differ"),
        *(
            ({"algorithms": {"ppo": {"hyperparameters": {key: value}}}}, f"{key} of 'ppo' would differ between sizes")
            for key, value in (
                ("recurrent_size", 32),
                ("learning_rate_steps", 10_000),
                ("recurrent_size", {"low": 8, "high": 9}),
            )
        ),
        ({"pod": GPU_POD | {"gpus": 3, "layout": "separate"}}, "set pod.gpus to 2 or less"),
        ({"pod": GPU_POD | {"gpus": 2, "learners": 2, "hosts": 2}}, "a pod grows on one host"),
    ],
)
def test_a_pod_that_could_not_get_learners_is_refused(sections: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolved(**{"pod": GPU_POD, **sections})
    assert problem in caught.value.message


@pytest.mark.parametrize(
    ("pod", "learners", "workers", "environments"),
    [
        (GPUS, 1, 1, 64),
        (GPUS, 4, 1, 16),
        (LEARNERS, 2, 3, 64),
        (LEARNERS, 8, 3, 16),
        (WORKERS, 1, 2, 32),
        (PodSpec(cores=1.0, learners=4), 4, 2, 64),
    ],
)
def test_all_learners_and_workers_of_a_grown_pod_have_the_environments_of_a_small_one(
    pod: PodSpec, learners: int, workers: int, environments: int
) -> None:
    assert environments_of_a_worker(64, pod, learners, workers) == environments


def test_the_minibatches_of_all_learners_are_that_of_the_specification() -> None:
    values = {"minibatch_size": 512.0, "horizon": 128.0}
    assert batch_of_a_learner(values, GPUS, 4) == {"minibatch_size": 128, "horizon": 128.0}
    for unchanged in (batch_of_a_learner(values, GPUS, 1), batch_of_a_learner(values, PodSpec(learners=4), 4)):
        assert unchanged == values
    assert batch_of_a_learner({"horizon": 5}, GPUS, 4) == {"horizon": 5}
    assert batch_of_a_learner({"minibatch_size": 10}, GPUS, 4) == {"minibatch_size": 3}
    assert batch_of_a_learner({"minibatch_size": 0.0}, GPUS, 4) == {"minibatch_size": 0}, "the whole rollout"
