from typing import Any

import pytest

from orchestrator.decisions.pod_sizes.resized_pods import resized, workers_for
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import PodSpec, TournamentSpec

GIB = 1 << 30


def specification(*, environments: int = 16, **pod: Any) -> TournamentSpec:
    fields = {"cores": 1.0, "memory_bytes": GIB, "workers": 1, "learners": 1, "plane": "auto"} | pod
    made = TournamentSpec(pod=PodSpec(layout=tournament_pb2.LAYOUT_FUSED, **fields))
    made.environment.count = environments
    made.algorithms["ppo"].SetInParent()
    return made


def test_a_resized_pod_keeps_what_the_updates_depend_on() -> None:
    spec = specification()
    grown = resized(spec, 2.0)
    assert (grown.cores, grown.memory_bytes, grown.layout) == (2.0, 2 * GIB, tournament_pb2.LAYOUT_SEPARATE)
    assert (grown.workers, grown.learners, grown.plane) == (1, 1, "auto")
    assert resized(spec, 1.0) == spec.pod


@pytest.mark.parametrize(
    ("cores", "environments", "workers"),
    [(2.0, 16, 1), (2.5, 16, 1), (3.0, 16, 2), (4.0, 16, 2), (5.0, 16, 4), (9.0, 16, 8), (64.0, 6, 6), (3.0, 7, 1)],
)
def test_each_further_core_may_get_a_worker_if_the_workers_divide_the_environments(
    cores: float, environments: int, workers: int
) -> None:
    assert resized(specification(environments=environments), cores).workers == workers


def test_workers_always_divide_the_environments_and_leave_a_core_for_the_learner() -> None:
    for environments in range(1, 65):
        for cores in range(2, 20):
            workers = workers_for(float(cores), environments)
            assert environments % workers == 0
            assert 1 <= workers <= max(1, cores - 1)


def test_no_workers_are_added_if_agents_differ_in_their_environments_or_the_worker_is_a_third_partys() -> None:
    searched = specification()
    searched.algorithms["ppo"].hyperparameters["environment.count"].SetInParent()
    assert resized(searched, 5.0).workers == 1
    assert resized(specification(worker="grpc://unix:/w.sock"), 5.0).workers == 1


@pytest.mark.parametrize("layout", [tournament_pb2.LAYOUT_FUSED, tournament_pb2.LAYOUT_SEPARATE])
def test_a_pod_with_gpus_gets_further_learners_with_as_many_gpus(layout: "tournament_pb2.Layout.ValueType") -> None:
    spec = specification(environments=4096, cores=4.0, gpus=2, learners=2, maximum_cores=16.0)
    spec.pod.layout = layout
    grown = resized(spec, 16.0)
    assert (grown.cores, grown.memory_bytes, grown.gpus, grown.learners) == (16.0, 4 * GIB, 8, 8)
    assert (grown.workers, grown.layout) == (1, layout)
    assert resized(spec, 4.0) == spec.pod


def test_a_pod_with_several_learners_and_no_gpus_grows_in_the_same_way() -> None:
    grown = resized(specification(cores=2.0, learners=2, maximum_cores=4.0), 4.0)
    assert (grown.learners, grown.gpus, grown.layout) == (4, 0, tournament_pb2.LAYOUT_FUSED)
