"""Checks and translates the names of GPUs that are given to a container engine. Pure functions."""

import re
from collections.abc import Mapping, Sequence

from podrace.errors import InvalidArgument

UUID_PREFIXES = ("GPU-", "MIG-")
NO_GPUS: Mapping[str, str] = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""Variables of a container without GPUs: NVIDIA's images state that they want all, and some engines then add them."""
GPU_NAME = r"(GPU|MIG)-[0-9A-Za-z/-]+|\d+(:\d+)?"
"""A UUID, a number, or the number of a GPU and of its MIG instance."""


def names_in_container(gpus: Sequence[str]) -> tuple[str, ...]:
    """Names of GPUs in the containers that were given them: UUIDs stay; a container numbers what it sees from 0."""
    if all(gpu.startswith(UUID_PREFIXES) for gpu in gpus):
        return tuple(gpus)
    return tuple(str(index) for index in range(len(gpus)))


def check_gpu_names(gpus: Sequence[str]) -> None:
    """Rejects names that the engine would not understand, and GPUs that would be assigned twice.

    Raises:
        InvalidArgument: There is such a name.
    """
    for index, gpu in enumerate(gpus):
        if not re.fullmatch(GPU_NAME, gpu):
            raise InvalidArgument(
                f"docker.gpus: {gpu!r} is not a GPU; list UUIDs as `nvidia-smi -L` prints them (GPU-..., MIG-...), or"
                " numbers as nvidia-smi shows them"
            )
        if gpu in gpus[:index]:
            raise InvalidArgument(f"docker.gpus: {gpu!r} is listed twice")
