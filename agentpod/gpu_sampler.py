"""Samples the use of the GPUs of a pod in a thread, for the reports of its leader."""

import threading
from collections.abc import Callable, Sequence

import prometheus_client
import structlog

from podrace.gpus import GpuSample, sample_gpus
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

MOST_GPUS = 16
"""GPUs in one report."""
LARGEST_MEMORY = 10**15
"""Bytes of memory that a report can state."""

_log = structlog.get_logger(__name__)
UTILIZATION = prometheus_client.Gauge(
    "podrace_learner_gpu_utilization_percent", "Share of the time in which a GPU of the pod computed", ["gpu"]
)
MEMORY_USED = prometheus_client.Gauge(
    "podrace_learner_gpu_memory_used_bytes", "Memory of a GPU of the pod that is used", ["gpu"]
)


class GpuSampler:
    """Samples GPUs in a separate thread, so that a slow driver delays neither a report nor the training.

    sampler = GpuSampler(config.gpus)
    progress.gpus.extend(sampler.take())

    Each call of `take` starts one sample, which the next call returns. A sample that takes longer than the time between
    two calls is not returned, and no second one is started.
    """

    def __init__(
        self, gpus: Sequence[str], *, sample: Callable[[Sequence[str]], Sequence[GpuSample]] = sample_gpus
    ) -> None:
        """Samples nothing yet.

        Args:
            gpus: UUIDs of the GPUs; if there are none, the driver is never asked.
            sample: Asks the driver.
        """
        self._gpus, self._sample = tuple(gpus)[:MOST_GPUS], sample
        self._sampling: threading.Thread | None = None
        self._sampled: Sequence[GpuSample] = ()
        self._failed = False

    def take(self) -> list[pb.GpuUse]:
        """Returns the sample that the previous call started, and starts the next one; empty if there is none."""
        if not self._gpus or (self._sampling and self._sampling.is_alive()):
            return []
        sampled, self._sampled = self._sampled, ()
        # A daemon: a driver that hangs does not keep the process from exiting.
        self._sampling = threading.Thread(target=self._run, name="gpu-sampler", daemon=True)
        self._sampling.start()
        return [use_of(each) for each in sampled]

    def join(self, seconds: float) -> None:
        """Waits until the sample under way is complete."""
        if self._sampling:
            self._sampling.join(seconds)

    def _run(self) -> None:
        try:
            self._sampled = self._sample(self._gpus)
        except Exception as error:  # whatever is wrong with the driver, the training continues
            self._sampled = ()
            if not self._failed:
                _log.warning("the use of the GPUs is not reported", error=str(error))
            self._failed = True
        _publish(self._sampled)


def use_of(sample: GpuSample) -> pb.GpuUse:
    """Returns the message, with values within the bounds of the contract."""
    use = pb.GpuUse(uuid=sample.uuid)
    if sample.utilization_percent is not None:
        use.utilization_percent = min(max(sample.utilization_percent, 0), 100)
    if sample.memory_used_bytes is not None:
        use.memory_used_bytes = min(max(sample.memory_used_bytes, 0), LARGEST_MEMORY)
    if sample.memory_total_bytes is not None:
        use.memory_total_bytes = min(max(sample.memory_total_bytes, 0), LARGEST_MEMORY)
    return use


def _publish(samples: Sequence[GpuSample]) -> None:
    UTILIZATION.clear()
    MEMORY_USED.clear()
    for each in samples:
        if each.utilization_percent is not None:
            UTILIZATION.labels(each.uuid).set(each.utilization_percent)
        if each.memory_used_bytes is not None:
            MEMORY_USED.labels(each.uuid).set(each.memory_used_bytes)
