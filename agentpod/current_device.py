"""Makes a GPU the current device of a thread: streams, events and new tensors without a device belong to it.

It also checks whether a GPU can still be used after an error.
"""

import torch

from podrace.errors import FailedPrecondition


def is_usable(device: str) -> bool:
    """Whether CUDA still works on a device, after an error on it.

    An illegal access, an uncorrectable memory error or a lost GPU is reported by every later call until the process
    ends. Other errors, such as a kernel that could not be launched, are not reported again.
    """
    if torch.device(device).type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def use_device(device: str) -> None:
    """Makes a GPU the current device of the calling thread; the processor needs no such step.

    In the whole process, convolutions compute in float32 from then on, as matrix products do by default.

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
    # torch would round the inputs of convolutions to 10 bits of mantissa.
    torch.backends.cudnn.allow_tf32 = False
