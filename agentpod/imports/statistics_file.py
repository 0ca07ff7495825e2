"""Reads the statistics that `VecNormalize.save` of Stable-Baselines3 wrote, without running code of the file.

The file is a pickle. Only arrays and numbers of NumPy are constructed. Every other class becomes an empty object that
keeps its state and runs nothing.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentpod.models.entry_scaling import OBSERVATION_CLIP
from agentpod.models.normalizer import VARIANCE_FLOOR
from podrace.errors import InvalidArgument, NotFound

MOST_BYTES = 2**26
ARRAYS = {
    (module, name)
    for package in ("numpy", "numpy.core", "numpy._core")
    for module, name in (
        (f"{package}.multiarray", "_reconstruct"),
        (f"{package}.multiarray", "scalar"),
        (f"{package}.numeric", "_frombuffer"),
        (package, "ndarray"),
        (package, "dtype"),
    )
}
"""What is constructed."""


class _Object:
    """An object of any class, which has its attributes and nothing else."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(module, name) if (module, name) in ARRAYS else _Object


def read_statistics(path: Path, inputs: int) -> dict[str, Tensor]:
    """Returns `observation_mean` and `observation_variance`, each [inputs] float32.

    Raises:
        NotFound: There is no such file.
        InvalidArgument: It has no statistics of so many inputs, or normalizes in a way that podrace does not.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InvalidArgument(f"{path}: larger than {MOST_BYTES} bytes")
        with path.open("rb") as file:
            found = _Reader(file).load()
        moments = found.obs_rms
        mean, variance = (np.asarray(each, np.float64).reshape(-1) for each in (moments.mean, moments.var))
        clip, floor, used = float(found.clip_obs), float(found.epsilon), bool(found.norm_obs)
    except FileNotFoundError:
        raise NotFound(f"{path}: there is no such file") from None
    except (
        pickle.UnpicklingError,
        AttributeError,
        TypeError,
        ValueError,
        EOFError,
        ImportError,
        OSError,
        KeyError,
    ) as error:
        raise InvalidArgument(f"{path}: has no statistics of VecNormalize ({error})") from None
    if not used or mean.shape != (inputs,) or variance.shape != (inputs,):
        raise InvalidArgument(f"{path}: has no statistics of {inputs} observed numbers")
    if clip != OBSERVATION_CLIP or floor != VARIANCE_FLOOR:
        raise InvalidArgument(
            f"{path}: clip_obs {clip:g} and epsilon {floor:g}; a policy of podrace has {OBSERVATION_CLIP:g} and"
            f" {VARIANCE_FLOOR:g}"
        )
    tensors = {"observation_mean": torch.from_numpy(mean), "observation_variance": torch.from_numpy(variance)}
    return {name: tensor.float() for name, tensor in tensors.items()}
