"""Examines GPUs: the driver in this process, PyTorch and NCCL in a child process, because they are slow to import."""

from podrace.cli.doctor import judgement
from podrace.cli.doctor.diagnosis import Diagnosis
from podrace.errors import FailedPrecondition
from podrace.gpus import Reading, read_gpus
from podrace.qualification import supervision

PART = "machine"
"""The part of `podrace qualify` that examines driver, versions, NCCL and names of devices."""


async def examine(*, debug: bool, read: Reading | None = None) -> list[Diagnosis]:
    """Judges the GPUs of this machine.

    Args:
        debug: Whether to show the log of the child process.
        read: What the driver reports; None: it is asked.
    """
    reading = read_gpus() if read is None else read
    found = list(judgement.judge_gpus(reading))
    if not reading.gpus:
        return found
    try:
        supervision.check_installed("doctor")
    except FailedPrecondition:
        # The packages that are missing are reported by `judge_packages`.
        return found + [judgement.judge_gpu(each) for each in reading.gpus]
    request = supervision.Request([PART], quick=True, debug=debug)
    return found + [judgement.judge_finding(each) for each in await supervision.run(request, lambda _: None)]
