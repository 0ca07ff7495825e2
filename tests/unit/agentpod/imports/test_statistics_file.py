"""Statistics of VecNormalize are read as numbers, whatever else the file is made of."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentpod.imports.statistics_file import read_statistics
from podrace.errors import InvalidArgument

pytestmark = pytest.mark.long
MEAN, VARIANCE = [1.0, 2.0, 0.0], [4.0, 9.0, 1.0]


class Kept:
    """Stands for the classes of Stable-Baselines3, which keep their attributes as state."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.called = function, arguments

    def __reduce__(self) -> Any:
        return self.called


def written(path: Path, mean: Any, *, protocol: int = 4, variance: Any = None, **changes: Any) -> Path:
    variance = np.array(VARIANCE) if variance is None else variance
    moments = Kept(mean=mean, var=variance, count=1e-4)
    settings = {"clip_obs": 10.0, "epsilon": 1e-8, "norm_obs": True, "random": np.random.default_rng(0)}
    path.write_bytes(pickle.dumps(Kept(obs_rms=moments, **settings | changes), protocol))
    return path


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("kind", ["<f8", ">f8", "<f4", "<i4", "u1", "?"])
def test_arrays_of_numbers_are_read_from_each_protocol(tmp_path: Path, kind: str, protocol: int) -> None:
    mean = np.array(MEAN).astype(kind)
    settings = {"clip_obs": np.float64(10.0), "norm_obs": np.bool_(True)}
    found = read_statistics(written(tmp_path / "file", mean, protocol=protocol, **settings), 3)
    assert found["observation_mean"].tolist() == mean.astype(float).tolist()
    assert found["observation_variance"].tolist() == VARIANCE


def test_statistics_that_were_not_used_are_refused(tmp_path: Path) -> None:
    for norm_obs in (False, np.bool_(False)):
        with pytest.raises(InvalidArgument, match="no statistics of 3 observed numbers"):
            read_statistics(written(tmp_path / "file", np.array(MEAN), norm_obs=norm_obs), 3)


BUFFERED: Any = np.zeros(1).__reduce_ex__(5)[0]
SCALAR: Any = np.float64(0.0).__reduce__()[0]
"""Functions of NumPy that pickles of arrays and numbers call."""
HOSTILE = {
    "pointers": Call(np.ndarray, (3,), np.dtype("O"), b"A" * 24),
    "buffered pointers": Call(BUFFERED, b"A" * 24, np.dtype("O"), (3,), "C"),
    "pointer": Call(SCALAR, np.dtype("O"), b"A" * 8),
    "records": np.zeros(3, [("x", "O")]),
    "objects": np.array([1, None, "x"], dtype=object),
    "texts": np.array(["a", "b", "c"]),
    "too few bytes": Call(BUFFERED, b"A" * 4, np.dtype("f8"), (3,), "C"),
    "another shape": Call(BUFFERED, b"A" * 24, np.dtype("f8"), (2**70,), "C"),
    "a class": np.ndarray,
    "nothing": None,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_of_anything_else_is_refused(tmp_path: Path, name: str) -> None:
    file = written(tmp_path / "file", HOSTILE[name])
    # In a child process: pointers out of a file would end it.
    code = (
        "import sys; from pathlib import Path; from podrace.errors import InvalidArgument\n"
        "from agentpod.imports.statistics_file import read_statistics\n"
        "try: read_statistics(Path(sys.argv[1]), 3)\n"
        "except InvalidArgument as error: print(error.message)"
    )
    found = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")
    assert f"{file}: has no statistics of VecNormalize" in found.stdout


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Kept())[:-5],
        b"\x80\x04\x8e" + b"\xff" * 8,  # BINBYTES8 of 2^64 - 1 bytes
        b"\x80\x04\x8e" + (2**62).to_bytes(8, "little"),
        b"(" * 10 + b".",
        b"0.",
        b"\x80\x04cnumpy\ndtype\n}b.",  # the state of a class
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(data)
    with pytest.raises(InvalidArgument, match="no statistics of VecNormalize"):
        read_statistics(file, 3)
