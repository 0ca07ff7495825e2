"""Gives a process of a pod its GPUs, before anything initializes CUDA.

The names in the configuration are resolved to UUIDs, and CUDA_VISIBLE_DEVICES is set to these in the order of the
configuration. So `cuda:1` is the second GPU of the pod, in whatever order CUDA would count.
"""

import os
from collections.abc import Callable, MutableMapping
from dataclasses import replace

import structlog

from agentpod.config import PodConfig
from podrace.errors import FailedPrecondition
from podrace.gpus import ORDER, PCI_ORDER, VISIBLE, Gpu, Reading, check_selection, read_gpus, select, visible

SHORT_OF_MEMORY = 0.5
"""A GPU with a smaller free share of its memory is reported: something else uses it."""

_log = structlog.get_logger(__name__)


def bind_gpus(
    config: PodConfig,
    role: str,
    *,
    read: Callable[[], Reading] = read_gpus,
    environ: MutableMapping[str, str] = os.environ,
) -> PodConfig:
    """Makes the GPUs of a pod the only ones that this process sees, and reports their state.

    Args:
        config: Configuration of the pod.
        role: Role of this process.
        read: Reads the driver.
        environ: Environment of this process, which is changed.

    Returns:
        The configuration with the UUIDs of the GPUs.

    Raises:
        FailedPrecondition: The driver does not show the GPUs to this process.
        InvalidArgument: A name selects no GPU, or may mean several.
    """
    if not config.gpus:
        return config
    reading = read()
    for problem in reading.problems:
        _log.warning(problem)
    seen = visible(reading.gpus, environ).gpus
    if not seen:
        raise FailedPrecondition(
            f"gpus = {','.join(config.gpus)}: the driver shows no GPU to {role}; in a container, check that it was"
            " given a GPU and that the driver capabilities compute and utility are set"
        )
    names = [_by_position(seen, name) for name in config.gpus]
    selection = select(seen, names)
    check_selection(selection, seen, "gpus", ",".join(config.gpus))
    bound = replace(config, gpus=tuple(gpu.uuid for gpu in selection.gpus))
    own = bound.visible_gpus(role)
    environ[VISIBLE], environ[ORDER] = ",".join(own), PCI_ORDER
    for gpu in selection.gpus:
        if gpu.uuid in own:
            _report(gpu)
    return bound


def _by_position(seen: tuple[Gpu, ...], name: str) -> str:
    """The UUID of a GPU that is named by its position among those that this process sees; other names as they are."""
    return seen[int(name)].uuid if name.isdigit() and int(name) < len(seen) else name


def _report(gpu: Gpu) -> None:
    _log.info("using a GPU", gpu=gpu.uuid, model=gpu.model, memory=gpu.memory, processes=len(gpu.pids))
    if gpu.fault:
        _log.warning(f"GPU {gpu.uuid}: {gpu.fault}")
    if gpu.uncorrected_errors:
        _log.warning(f"GPU {gpu.uuid} has uncorrected memory errors", errors=gpu.uncorrected_errors)
    if gpu.free_bytes < SHORT_OF_MEMORY * gpu.memory_bytes:
        _log.warning(f"GPU {gpu.uuid} is used by other processes too: {gpu.memory}")
