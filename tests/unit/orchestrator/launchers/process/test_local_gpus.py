"""Which GPUs of a machine pods get."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.launchers.process.local_gpus import READ_SECONDS, LocalGpus, why_withheld
from podrace.errors import InvalidArgument
from podrace.gpus import Gpu, Reading

USER, OTHER = os.getuid() or 1000, 4321


def gpu(uuid: str, **changes: Any) -> Gpu:
    return replace(Gpu(uuid, "NVIDIA H100 80GB HBM3", 0, 80, 79), **changes)


def local(*gpus: Gpu, environ: Mapping[str, str] | None = None, owners: Mapping[int, int] | None = None) -> LocalGpus:
    return LocalGpus(lambda: Reading(gpus), environ=environ or {}, owner=(owners or {}).get, clock=lambda: 0.0)


def test_gpus_with_a_fault_or_of_other_users_are_withheld_and_those_with_errors_come_last() -> None:
    gpus = local(
        gpu("GPU-errors", uncorrected_errors=1),
        gpu("GPU-fault", fault="reset it"),
        gpu("GPU-other", pids=(1, 5)),
        gpu("GPU-own", pids=(6,)),
        owners={1: 0, 5: OTHER, 6: os.getuid()},
    )
    assert gpus.usable() == ["GPU-own", "GPU-errors"]


def test_a_gpu_that_a_pod_has_stays_usable() -> None:
    gpus = local(gpu("GPU-a", pids=(5,)), gpu("GPU-b"), owners={5: OTHER})
    assert gpus.usable({"GPU-a"}) == ["GPU-a", "GPU-b"]


def test_what_is_withheld_is_logged_once_with_the_reason(log_lines: Any) -> None:
    gpus = local(gpu("GPU-a", pids=(5,)), environ={"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-z"}, owners={5: OTHER})
    for _ in range(3):
        assert gpus.usable() == []
    events = [line["event"] for line in log_lines]
    assert events == [
        "GPU GPU-a is not given to pods: process 5 of user 4321 computes on it",
        "there is no GPU GPU-z",
    ]


@pytest.mark.parametrize("owner", [None, 0, USER])
def test_processes_of_the_user_of_the_system_and_unseen_ones_withhold_nothing(owner: int | None) -> None:
    assert why_withheld(gpu("GPU-a", pids=(5,)), USER, lambda _: owner) == ""


def test_the_driver_is_read_again_only_after_a_while() -> None:
    now, readings = [0.0], [Reading((gpu("GPU-a"),)), Reading(())]
    gpus = LocalGpus(lambda: readings.pop(0), environ={}, owner=lambda _: None, clock=lambda: now[0])
    assert [gpus.usable(), gpus.usable()] == [["GPU-a"], ["GPU-a"]]
    now[0] = READ_SECONDS
    assert gpus.usable() == []


def test_names_of_gpus_that_do_not_exist_are_refused_at_start() -> None:
    with pytest.raises(InvalidArgument, match="CUDA_VISIBLE_DEVICES = 'GPU-z': there is no GPU 'GPU-z'"):
        local(gpu("GPU-a"), environ={"CUDA_VISIBLE_DEVICES": "GPU-z"}).check()
    local(environ={"CUDA_VISIBLE_DEVICES": "0"}).check()
