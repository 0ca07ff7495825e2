"""Where the roles of a pod compute."""

from pathlib import Path

import pytest

from agentpod.config import PodConfig
from podrace.errors import InvalidArgument


def pod(**changes: object) -> PodConfig:
    settings: dict[str, object] = {"layout": "separate", **changes}
    return PodConfig("p", "unix:o", "unix:l", "folder:///s", Path("/tmp"), **settings)  # type: ignore[arg-type]


def devices(config: PodConfig) -> dict[str, str]:
    return {role: config.device(role) for role in config.roles}


def test_without_gpus_everything_is_computed_by_processors() -> None:
    assert set(devices(pod(learners=2, workers=2)).values()) == {"cpu"}


def test_learners_take_the_gpus_in_turn_and_their_workers_stay_with_them() -> None:
    assert devices(pod(learners=3, workers=2, gpus=("4", "7"))) == {
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
        (("0", "1", "2", "3"), ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:2"]),
        (("0", "1", "2"), ["cuda:0", "cuda:1", "cuda:2", "cuda:2", "cuda:2"]),
        (("0", "1"), ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]),
    ],
)
def test_a_group_spans_the_gpus_that_the_learners_leave_over(gpus: tuple[str, ...], expected: list[str]) -> None:
    config = pod(learners=2, gpus=gpus, plane="group")
    assert config.roles == ("learner", "learner-1", "worker-0", "worker-1", "evaluator")
    assert list(devices(config).values()) == expected


def test_with_a_gpu_for_each_role_the_plane_auto_gives_each_its_own() -> None:
    assert devices(pod(gpus=("0", "1", "2"))) == {"learner": "cuda:0", "worker-0": "cuda:1", "evaluator": "cuda:2"}
    assert set(devices(pod(gpus=("0", "1", "2"), plane="cuda")).values()) == {"cuda:0"}
    assert set(devices(pod(gpus=("0", "1"))).values()) == {"cuda:0"}


def test_a_container_numbers_its_own_gpu_from_0_and_knows_how_many_the_pod_has() -> None:
    for pod_gpus, each in ((3, True), (2, False)):
        container = pod(gpus=("0",), pod_gpus=pod_gpus)
        assert set(devices(container).values()) == {"cuda:0"}
        assert container.one_gpu_each is each
    assert not pod(gpus=("0",), layout="fused").one_gpu_each


def test_a_fused_pod_that_is_isolated_has_worker_and_evaluator_in_a_second_process() -> None:
    fused, isolated = pod(layout="fused"), pod(layout="fused", isolated=True)
    assert (fused.roles, fused.shares_processes) == (("learner",), True)
    assert {fused.socket(role).name for role in ("learner", "worker-0", "evaluator")} == {"learner.sock"}
    assert (isolated.roles, isolated.shares_processes) == (("learner", "worker-0"), False)
    sockets = [isolated.socket(role).name for role in ("learner", "worker-0", "evaluator")]
    assert sockets == ["learner.sock", "worker-0.sock", "worker-0.sock"]
    separate = pod(isolated=True)
    assert separate.roles == pod().roles
    assert separate.socket("evaluator").name == "evaluator.sock"


def test_each_learner_of_a_fused_pod_is_a_process_with_its_worker_on_its_own_gpu() -> None:
    config = pod(layout="fused", learners=3, gpus=("4", "5", "7"))
    assert devices(config) == {"learner": "cuda:0", "learner-1": "cuda:1", "learner-2": "cuda:2"}
    processes = {role: config.process_of(role) for role in ("worker-0", "worker-1", "worker-2", "evaluator")}
    assert list(processes.values()) == ["learner", "learner-1", "learner-2", "learner"]
    for role, process in processes.items():
        assert config.device(role) == config.device(process)
        assert config.socket(role) == config.socket(process)
    assert not config.one_gpu_each
    # A container with one GPU for each learner.
    assert set(devices(pod(layout="fused", learners=3, gpus=("0",), pod_gpus=3)).values()) == {"cuda:0"}


def test_a_learner_of_a_fused_pod_that_is_isolated_calls_a_separate_worker_process() -> None:
    config = pod(layout="fused", isolated=True, learners=2, gpus=("0", "1"))
    assert list(devices(config).items()) == [
        ("learner", "cuda:0"),
        ("learner-1", "cuda:1"),
        ("worker-0", "cuda:0"),
        ("worker-1", "cuda:1"),
    ]
    assert [config.process_of(role) for role in ("worker-1", "evaluator")] == ["worker-1", "worker-0"]


def test_a_learner_of_a_fused_pod_has_one_worker() -> None:
    with pytest.raises(InvalidArgument, match="workers = 2: each learner of a fused pod has one"):
        pod(layout="fused", workers=2)


def test_roles_are_numbered_per_host_and_mapped_to_learners() -> None:
    hosts = [pod(learners=4, workers=2, hosts=2, host_index=index, head="p-0.names:5") for index in range(2)]
    for host in hosts:
        assert host.roles == ("learner", "learner-1", "worker-0", "worker-1", "worker-2", "worker-3", "evaluator")
    assert [[host.learner_of(role) for role in ("learner", "learner-1")] for host in hosts] == [[0, 1], [2, 3]]
    assert [hosts[1].workers_of(learner) for learner in (2, 3)] == [("worker-0", "worker-1"), ("worker-2", "worker-3")]
    assert [hosts[0].lifeline_of(learner) is None for learner in range(4)] == [False, False, True, True]
    assert [host.leader_address for host in hosts] == ["unix:/tmp/learner.sock", "p-0.names:5"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learners": 3, "hosts": 2, "head": "h:1"}, "learners = 3, hosts = 2, host_index = 0: expected an equal"),
        ({"learners": 2, "hosts": 2, "host_index": 2, "head": "h:1"}, "host_index = 2: expected"),
        ({"learners": 2, "hosts": 2}, "head = '': expected host:port"),
        ({"learners": 2, "hosts": 2, "head": "h"}, "head = 'h': expected host:port"),
        ({"learners": 2, "hosts": 2, "head": "h:1", "host": "10.0.0.2"}, "unprotected_collectives = true"),
    ],
)
def test_hosts_that_cannot_work_together_are_rejected(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        pod(**changes)
