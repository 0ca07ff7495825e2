"""Reads the statistics that `VecNormalize.save` of Stable-Baselines3 wrote, without running code of the file.

The file is a pickle. Small classes of this module stand for the arrays and numbers of NumPy, and read numbers only.
Every other class becomes an empty object that keeps its state and runs nothing.
"""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentpod.models.entry_scaling import OBSERVATION_CLIP
from agentpod.models.normalizer import VARIANCE_FLOOR
from podrace.errors import InvalidArgument, NotFound

MOST_BYTES = 2**26
NUMBERS = re.compile("[fiu][1248]|b1")
"""Types of NumPy that are read. Those of others, such as `O`, would be pointers that the file chooses."""


class _Object:
    """An object of any class, which has its attributes and nothing else."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Type(_Object):
    """A type of NumPy: `dtype(code)`, with its byte order as state."""

    def __init__(self, code: Any, *others: Any) -> None:
        self._code, self._order = code, "="

    def __setstate__(self, state: Any) -> None:
        self._order = state[1]

    def of_numpy(self) -> np.dtype[Any]:
        if not isinstance(self._code, str) or not NUMBERS.fullmatch(self._code) or self._order not in tuple("<>|="):
            raise ValueError(f"an array of type {self._code!r}")
        return np.dtype(self._order + self._code)


class _Array(_Object):
    """An array: `_reconstruct(...)`, with its content as state. Nothing of it is checked before it is used."""

    _content: tuple[Any, ...] = ()
    """Shape, type, order of the elements, bytes."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        self._content = shape, kind, "F" if fortran else "C", data

    def numbers(self) -> NDArray[np.float64]:
        """Returns the elements; raises TypeError or ValueError if they are no numbers."""
        shape, kind, order, data = self._content
        if not isinstance(kind, _Type) or not isinstance(data, bytes | bytearray):
            raise TypeError("an array without bytes")
        return np.frombuffer(data, kind.of_numpy()).reshape(shape, order=order).astype(np.float64)


class _BufferedArray(_Array):
    """An array as protocol 5 writes it."""

    def __init__(self, data: Any, kind: Any, shape: Any, order: Any, *others: Any) -> None:
        self._content = shape, kind, order, data


class _Scalar(_Array):
    """A number of NumPy."""

    def __init__(self, kind: Any, data: Any) -> None:
        self._content = (), kind, "C", data


CLASSES: Mapping[tuple[str, str], type[_Object]] = {
    (module, name): made
    for package in ("numpy", "numpy.core", "numpy._core")
    for module, name, made in (
        (f"{package}.multiarray", "_reconstruct", _Array),
        (f"{package}.multiarray", "scalar", _Scalar),
        (f"{package}.numeric", "_frombuffer", _BufferedArray),
        (package, "dtype", _Type),
    )
}
"""What stands for the functions and classes of NumPy. They themselves build objects of any type from bytes."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return CLASSES.get((module, name), _Object)


def _numbers(found: Any) -> NDArray[np.float64]:
    if isinstance(found, _Array):
        return found.numbers()
    return np.array(float(found))


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
        mean, variance = (_numbers(each).reshape(-1) for each in (moments.mean, moments.var))
        clip, floor, used = (float(_numbers(each)) for each in (found.clip_obs, found.epsilon, found.norm_obs))
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
        LookupError,
        OverflowError,
        MemoryError,
        RecursionError,
    ) as error:
        raise InvalidArgument(f"{path}: has no statistics of VecNormalize ({type(error).__name__}: {error})") from None
    if not used or mean.shape != (inputs,) or variance.shape != (inputs,):
        raise InvalidArgument(f"{path}: has no statistics of {inputs} observed numbers")
    if clip != OBSERVATION_CLIP or floor != VARIANCE_FLOOR:
        raise InvalidArgument(
            f"{path}: clip_obs {clip:g} and epsilon {floor:g}; a policy of podrace has {OBSERVATION_CLIP:g} and"
            f" {VARIANCE_FLOOR:g}"
        )
    tensors = {"observation_mean": torch.from_numpy(mean), "observation_variance": torch.from_numpy(variance)}
    return {name: tensor.float() for name, tensor in tensors.items()}
