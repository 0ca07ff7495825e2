from dataclasses import replace
from pathlib import Path

import pytest
from fake_nvml import NVMLError

from agentpod.qualification.bench import Bench, count
from agentpod.qualification.operations import Counted
from agentpod.qualification.rates import (
    CASES,
    END_TO_END_REFERENCE,
    HUMANOID_REFERENCE,
    PodRate,
    Rate,
    judge,
    judge_pod,
    lanes_of,
    measure_training,
    utilization,
    utilization_of,
)
from podrace.gpus import Gpu
from podrace.qualification.findings import Grade
from podrace.specification import catalog

LAUNCHED = Rate("cartpole", "cuda:0", 1000, 1e-3, 1000, Counted(100, 10**6), launch_seconds=5e-6, bandwidth=1000.0)
PHYSICS = Rate("warp:humanoid", "cuda:0", 8192, 0.01, 8192, published=5e6, substeps=5, reference=HUMANOID_REFERENCE)


def test_a_rate_near_the_bound_of_its_launches_passes() -> None:
    # 100 launches of 5 us are 0.5 ms at least, and the step takes 1 ms.
    found = judge(LAUNCHED)
    assert found.grade == Grade.PASS
    assert "1M steps/s" in found.measured
    assert "2.0 times the least time" in found.measured


def test_a_rate_far_below_its_bound_is_slow() -> None:
    found = judge(replace(LAUNCHED, seconds=2e-3))
    assert (found.grade, found.expected) == (Grade.SLOW, "at least 600k steps/s")
    assert found.remedy


def test_a_step_that_moves_many_bytes_is_bound_by_the_memory() -> None:
    counted = Counted(100, 2 * 10**9)
    assert judge(replace(LAUNCHED, seconds=3e-3, counted=counted)).grade == Grade.PASS


def test_a_step_without_operations_of_torch_has_no_bound() -> None:
    assert judge(replace(LAUNCHED, counted=Counted(0, 0))).grade == Grade.PASS


def test_physics_is_compared_with_the_published_rate() -> None:
    found = judge(PHYSICS)
    assert (found.grade, found.reference) == (Grade.PASS, HUMANOID_REFERENCE)
    assert "4.1M physics steps/s" in found.measured
    assert judge(replace(PHYSICS, seconds=0.1)).grade == Grade.SLOW


def test_every_simulator_that_steps_on_a_gpu_is_measured() -> None:
    stepped = {name.partition("<")[0] for name, entry in catalog.SIMULATORS.items() if entry.on_gpu}
    # A step of these reads one entry of a table, or is that of another board.
    left_out = ("matrix:", "game:tic-tac-toe", "game:rock-paper-scissors")
    stepped = {name for name in stepped if not name.startswith(left_out)}
    measured = [case.id for case in CASES]
    assert [name for name in stepped if not any(id.startswith(name) for id in measured)] == []


def test_a_rate_shows_the_utilization_of_the_gpu_if_it_is_known(tmp_path: Path) -> None:
    assert "GPU utilization 97 %" in judge(replace(LAUNCHED, utilization=97.2)).measured
    assert "utilization" not in judge(LAUNCHED).measured
    assert utilization_of(Bench(tmp_path), lambda: pytest.fail("repeated without a GPU")) is None


def test_a_pod_is_compared_with_its_parts_and_shows_utilization_and_reference() -> None:
    pod = PodRate("cuda:0", 80_000.0, 100_000.0, 87.0)
    found = judge_pod(pod)
    assert (found.grade, found.reference) == (Grade.PASS, END_TO_END_REFERENCE)
    assert "utilization 87 %" in found.measured
    assert judge_pod(replace(pod, steps_per_second=50_000.0)).grade == Grade.SLOW
    assert "unknown" in judge_pod(replace(pod, utilization=None)).measured


def test_a_pod_that_does_not_train_fails_with_its_message() -> None:
    found = judge_pod(PodRate("cuda:0", 0.0, 1e5, None, "out of memory"))
    assert (found.grade, found.measured) == (Grade.FAIL, "out of memory")


def test_rollouts_and_updates_are_measured_and_counted_on_the_processor(tmp_path: Path) -> None:
    rollout, update = measure_training(Bench(tmp_path, quick=True), 1e-6, 0.0)
    for rate in (rollout, update):
        assert rate.seconds > 0
        assert rate.counted is not None
        assert rate.counted.operations > 100


def test_fewer_lanes_are_measured_without_a_gpu_and_for_a_quick_report() -> None:
    gpu = (Gpu("GPU-1", "H100", 0, 80, 79),)
    quick, whole, none = Bench(Path("/f"), gpus=gpu, quick=True), Bench(Path("/f"), gpus=gpu), Bench(Path("/f"))
    for case in CASES:
        assert lanes_of(none, case) < lanes_of(quick, case) < lanes_of(whole, case)


class Utilization:
    NVMLError = NVMLError

    def __init__(self, value: int | None) -> None:
        self.gpu = value

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> "Utilization":
        assert handle == "GPU-1"
        if self.gpu is None:
            raise NVMLError("Not Supported")
        return self


def test_utilization_is_read_of_the_first_gpu() -> None:
    bench = Bench(Path("/f"), gpus=(Gpu("GPU-1", "H100", 0, 80, 79),))
    assert utilization(bench, Utilization(42)) == 42.0
    assert utilization(bench, Utilization(None)) is None
    assert utilization(Bench(Path("/f")), Utilization(42)) is None


@pytest.mark.parametrize(
    ("value", "text"), [(5.7e6, "5.7M"), (331_000, "331k"), (12.5, "12.5"), (2.5e9, "2.5G"), (0, "0")]
)
def test_large_rates_are_shown_with_a_suffix(value: float, text: str) -> None:
    assert count(value) == text
