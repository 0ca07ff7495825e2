"""Runs one part of a qualification and prints what it found as lines of JSON on standard output."""

import os
import signal
import threading
from collections.abc import Callable, MutableMapping
from importlib import import_module

import torch

from agentpod.current_device import use_device
from agentpod.qualification.bench import Bench, MeasuredPart
from agentpod.qualification.config import QualificationConfig
from podrace.gpus import ORDER, PCI_ORDER, VISIBLE, Gpu, Reading, check_selection, read_gpus, select, visible
from podrace.processes import lifeline
from podrace.qualification.findings import to_json
from podrace.qualification.parts import chosen_parts


def main(config: QualificationConfig) -> int:
    """Runs a part and returns the exit code.

    Raises:
        InvalidArgument: There is no such part, or a name of a GPU selects none, or may mean several.
        FailedPrecondition: PyTorch cannot use the GPUs.
    """
    chosen_parts([config.part])
    if config.lifeline:
        _end_with(config.lifeline)
    # Libraries and child processes print to standard output, which is for the findings alone.
    findings = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    bench = bench_of(config)
    if not bench.gpus:
        # Two threads that wait for each other are slow where other processes compute too.
        torch.set_num_threads(1)
    elif config.part != "machine":
        use_device(bench.devices[0])
    # A part imports much, simulators for instance, that the others do not need.
    part: MeasuredPart = import_module(f"agentpod.qualification.{config.part}").run
    for finding in part(bench):
        print(to_json(bench.graded(finding)), file=findings, flush=True)
    return 0


def bench_of(
    config: QualificationConfig,
    *,
    read: Callable[[], Reading] = read_gpus,
    environ: MutableMapping[str, str] = os.environ,
) -> Bench:
    """Chooses the GPUs to examine, and makes them the only ones that CUDA sees in this process and its children.

    Args:
        config: Names the GPUs.
        read: Reads the driver.
        environ: Environment of this process, which is changed.

    Raises:
        InvalidArgument: A name selects no GPU, or may mean several.
    """
    reading = read()
    seen = visible(reading.gpus, environ).gpus
    if config.gpus:
        selection = select(seen, config.gpus)
        check_selection(selection, seen, "gpus", ",".join(config.gpus))
        seen = selection.gpus
    gpus = usable(seen)
    if gpus:
        environ[VISIBLE], environ[ORDER] = ",".join(gpu.uuid for gpu in gpus), PCI_ORDER
    return Bench(config.folder, reading, gpus, config.quick, config.node, config.meet, config.orchestrator)


def usable(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Returns the GPUs that one process can use: all whole ones, or else one instance of a partitioned one. Pure."""
    whole = tuple(gpu for gpu in gpus if not gpu.is_instance)
    return whole or gpus[:1]


def _end_with(path: str) -> None:
    """Kills this process and its group when the holder of a lifeline exits."""
    descriptor = lifeline.attach(path)

    def wait() -> None:
        if descriptor is not None:
            # Returns at end-of-file: nothing is ever written. The descriptor does not block, so it is polled.
            os.set_blocking(descriptor, True)
            os.read(descriptor, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
