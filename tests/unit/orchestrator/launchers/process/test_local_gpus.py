"""Which GPUs of a machine pods get."""

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.launchers.process import local_gpus
from orchestrator.launchers.process.local_gpus import READ_SECONDS, LocalGpus, why_withheld
from podrace.errors import InvalidArgument
from podrace.gpus import Gpu, Reading

USER, OTHER = os.getuid() or 1000, 4321


def gpu(uuid: str, **changes: Any) -> Gpu:
    return replace(Gpu(uuid, "NVIDIA H100 80GB HBM3", 0, 80, 79), **changes)


def local(*gpus: Gpu, environ: Mapping[str, str] | None = None, owners: Mapping[int, int] | None = None) -> LocalGpus:
    return LocalGpus(lambda: Reading(gpus), environ=environ or {}, owner=(owners or {}).get, clock=lambda: 0.0)


async def test_gpus_with_a_fault_or_of_other_users_are_withheld_and_those_with_errors_come_last() -> None:
    gpus = local(
        gpu("GPU-errors", uncorrected_errors=1),
        gpu("GPU-fault", fault="reset it"),
        gpu("GPU-other", pids=(1, 5)),
        gpu("GPU-own", pids=(6,)),
        owners={1: 0, 5: OTHER, 6: os.getuid()},
    )
    await gpus.refresh()
    assert gpus.usable() == ["GPU-own", "GPU-errors"]


async def test_a_gpu_that_a_pod_has_stays_usable() -> None:
    gpus = local(gpu("GPU-a", pids=(5,)), gpu("GPU-b"), owners={5: OTHER})
    await gpus.refresh()
    assert gpus.usable({"GPU-a"}) == ["GPU-a", "GPU-b"]


async def test_what_is_withheld_is_logged_once_with_the_reason(log_lines: Any) -> None:
    gpus = local(gpu("GPU-a", pids=(5,)), environ={"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-z"}, owners={5: OTHER})
    for _ in range(3):
        await gpus.refresh()
        assert gpus.usable() == []
    events = [line["event"] for line in log_lines]
    assert events == [
        "GPU GPU-a is not given to pods: process 5 of user 4321 computes on it",
        "there is no GPU GPU-z",
    ]


@pytest.mark.parametrize("owner", [None, 0, USER])
def test_processes_of_the_user_of_the_system_and_unseen_ones_withhold_nothing(owner: int | None) -> None:
    assert why_withheld(gpu("GPU-a", pids=(5,)), USER, lambda _: owner) == ""


async def test_the_driver_is_read_again_only_after_a_while() -> None:
    now, readings = [0.0], [Reading((gpu("GPU-a"),)), Reading(())]
    gpus = LocalGpus(lambda: readings.pop(0), environ={}, owner=lambda _: None, clock=lambda: now[0])
    assert gpus.usable() == []
    for _ in range(2):
        await gpus.refresh()
        assert gpus.usable() == ["GPU-a"]
    now[0] = READ_SECONDS
    await gpus.refresh()
    assert gpus.usable() == []


async def test_while_the_driver_hangs_no_pod_gets_another_gpu_and_it_is_not_asked_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_gpus, "WAIT_SECONDS", 0.0)
    now, answers, asked = [0.0], threading.Event(), list[float]()

    def read() -> Reading:
        asked.append(now[0])
        if now[0]:
            assert answers.wait(10)
        return Reading((gpu("GPU-a"), gpu("GPU-b")))

    gpus = LocalGpus(read, environ={}, owner=lambda _: None, clock=lambda: now[0])
    await gpus.check()
    now[0] = READ_SECONDS
    for _ in range(3):
        await gpus.refresh()
        assert (gpus.usable(), gpus.usable({"GPU-a"})) == ([], ["GPU-a"])
    answers.set()
    monkeypatch.setattr(local_gpus, "WAIT_SECONDS", 10.0)
    await gpus.refresh()
    assert (gpus.usable(), asked) == (["GPU-a", "GPU-b"], [0.0, READ_SECONDS])


async def test_while_the_driver_does_not_answer_pods_keep_their_gpus_and_no_pod_gets_another(log_lines: Any) -> None:
    now, silent = (
        [0.0],
        Reading(problems=("the NVIDIA driver does not answer, so no GPU is used: timeout",), answered=False),
    )
    readings = [Reading((gpu("GPU-a"), gpu("GPU-b"))), silent, silent, Reading((gpu("GPU-a"), gpu("GPU-b")))]
    gpus = LocalGpus(lambda: readings.pop(0), environ={}, owner=lambda _: None, clock=lambda: now[0])
    found = []
    for _ in range(4):
        await gpus.refresh()
        found.append(gpus.usable({"GPU-a"}))
        now[0] += READ_SECONDS
    assert found == [["GPU-a", "GPU-b"], ["GPU-a"], ["GPU-a"], ["GPU-a", "GPU-b"]]
    assert [line["event"] for line in log_lines] == [
        "GPU GPU-b is not given to pods: the driver does not answer",
        *silent.problems,
    ]


async def test_names_of_gpus_that_do_not_exist_are_refused_at_start() -> None:
    with pytest.raises(InvalidArgument, match="CUDA_VISIBLE_DEVICES = 'GPU-z': there is no GPU 'GPU-z'"):
        await local(gpu("GPU-a"), environ={"CUDA_VISIBLE_DEVICES": "GPU-z"}).check()
    await local(environ={"CUDA_VISIBLE_DEVICES": "0"}).check()
