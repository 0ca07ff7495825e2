"""Makes a GPU the current device of a thread: streams, events and new tensors without a device belong to it."""

import torch

from podrace.errors import FailedPrecondition


def use_device(device: str) -> None:
    """Makes a GPU the current device of the calling thread; the processor needs no such step.

    Raises:
        FailedPrecondition: PyTorch cannot use the GPU.
    """
    if torch.device(device).type != "cuda":
        return
    try:
        torch.cuda.set_device(device)
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise FailedPrecondition(
            f"device {device}: PyTorch {torch.__version__} for CUDA {torch.version.cuda or '(none)'} cannot use it:"
            f" {reason}; check that the image has a PyTorch for CUDA, and a driver that is new enough for it"
        ) from error
