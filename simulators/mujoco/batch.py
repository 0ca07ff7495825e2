"""Steps many simulations of one MuJoCo model together on a thread pool; independent of the task.

MuJoCo's own Python class (`mujoco.batch.Batch`) wraps the same C functions (mujoco/mjbatch.h) except `mjb_apply`, which
is the only way to compute contact forces as Gymnasium does. So this module calls the C functions through ctypes, which
releases the global interpreter lock while they run.
"""

import ctypes
import functools
import weakref
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from podrace.errors import FailedPrecondition, Internal, InvalidArgument, Unimplemented

Lanes = NDArray[np.integer[Any]]
Numbers = NDArray[np.float64]

_POINTER, _INT, _INT_POINTER = ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "mjb_makeBatch": (_POINTER, [_POINTER, _INT, _POINTER, ctypes.c_char_p, _INT]),
    "mjb_deleteBatch": (None, [_POINTER]),
    "mjb_nstate": (_INT, [_POINTER]),
    "mjb_state": (_POINTER, [_POINTER]),
    "mjb_stateComponent": (_POINTER, [_POINTER, _INT, _INT_POINTER]),
    "mjb_output": (_POINTER, [_POINTER, ctypes.c_char_p, _INT_POINTER, _INT_POINTER]),
    "mjb_step": (_INT, [_POINTER, _POINTER, _INT, _INT, _INT]),
    "mjb_forward": (_INT, [_POINTER, _POINTER, _INT, _INT]),
    "mjb_reset": (_INT, [_POINTER, _POINTER, _INT, _POINTER, _INT]),
    "mjb_apply": (_INT, [_POINTER, _POINTER, _INT, _POINTER, _POINTER, _INT]),
    "mjb_status": (_INT_POINTER, [_POINTER]),
    "mjb_error": (ctypes.c_char_p, [_POINTER, _INT]),
}
_ERROR_BYTES = 1024
_NOTHING = int(mujoco.mjtStage.mjSTAGE_NONE)
_EVERYTHING = int(mujoco.mjtStage.mjSTAGE_ACC)


class _Config(ctypes.Structure):
    """The C struct mjBatchConfig."""

    _fields_ = (("nthread", ctypes.c_int), ("persistent", ctypes.c_bool))


@functools.cache
def _library() -> ctypes.CDLL:
    """Returns MuJoCo's C library, the same one that its Python package has loaded.

    Raises:
        Unimplemented: The installed MuJoCo does not have these functions yet.
    """
    (path,) = [path for path in Path(mujoco.__file__).parent.iterdir() if path.name.startswith("libmujoco")]
    library = ctypes.CDLL(str(path))
    if not hasattr(library, "mjb_makeBatch"):
        raise Unimplemented(f"MuJoCo {mujoco.__version__} cannot step batches: pip install 'mujoco>=4.0'")
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class PhysicsBatch:
    """N simulations of a model.

        batch = PhysicsBatch(path, count=16, threads=2)
        xpos = batch.bind("xpos")
        batch.reset(lanes)
        batch.qpos[lanes] += noise  # the state is live: the next step starts from what is written here
        batch.forward(lanes)
        while True:
            batch.ctrl[:] = policy(batch.qpos)
            batch.step(5)

    Every simulation equals, to the last bit, a single one stepped by `mujoco.mj_step`, for any number of threads.

    Attributes:
        model: The mujoco.MjModel.
        count: Number of simulations, N.
        qpos: [N, nq] float64, live, writable.
        qvel: [N, nv] float64, live, writable.
        ctrl: [N, nu] float64, live, writable.
        positions_and_velocities: [N, nq + nv] float64: `qpos` and `qvel`, which are adjacent in memory.

    All arrays are views of memory that is freed with this object.
    """

    qpos: Numbers
    qvel: Numbers
    ctrl: Numbers
    positions_and_velocities: Numbers

    def __init__(self, path: Path, count: int, threads: int, *, contact_forces: bool = False) -> None:
        """Creates simulations in the model's initial state.

        Args:
            path: The model's XML file.
            count: Number of simulations.
            threads: Threads that step them, including the caller's.
            contact_forces: Whether `compute_contact_forces` will be called; each simulation then keeps its results.

        Raises:
            InvalidArgument: The batch cannot be created.
            Unimplemented: The installed MuJoCo cannot step batches.
        """
        self.model = mujoco.MjModel.from_xml_path(str(path))
        self.count = count
        self._library = _library()
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        config = _Config(threads, contact_forces)
        address = self.model._address
        pointer = self._library.mjb_makeBatch(address, count, ctypes.byref(config), error, _ERROR_BYTES)
        if not pointer:
            raise InvalidArgument(f"{path.name}: {count} simulations cannot be created: {error.value.decode()}")
        self._pointer = pointer
        self._free = weakref.finalize(self, self._library.mjb_deleteBatch, pointer)
        rows = self._view(self._library.mjb_state(pointer), self._library.mjb_nstate(pointer))
        qpos, qvel, ctrl = (
            self._columns(component)
            for component in (mujoco.mjtState.mjSTATE_QPOS, mujoco.mjtState.mjSTATE_QVEL, mujoco.mjtState.mjSTATE_CTRL)
        )
        self.qpos, self.qvel, self.ctrl = rows[:, qpos], rows[:, qvel], rows[:, ctrl]
        self.positions_and_velocities = rows[:, qpos.start : qvel.stop]

    def _columns(self, component: Any) -> slice:
        """Returns the columns of a component in the rows that hold the states."""
        size = _INT()
        address = self._library.mjb_stateComponent(self._pointer, int(component), ctypes.byref(size))
        column = (address - self._library.mjb_state(self._pointer)) // np.dtype(np.float64).itemsize
        return slice(column, column + size.value)

    def bind(self, name: str) -> Numbers:
        """Returns a live, read-only view of a field of mjData: [N, size] float64, each simulation's array flattened.

        It belongs to the state that the last call computed. After `step` that is the state before the last substep (or
        before its last stage, with a Runge-Kutta integrator), as in mjData itself. It is 0 until the next call.

        Raises:
            InvalidArgument: mjData has no float64 field of this name.
        """
        size, item_bytes = _INT(), _INT()
        sizes = ctypes.byref(size), ctypes.byref(item_bytes)
        address = self._library.mjb_output(self._pointer, name.encode(), *sizes)
        if not address or item_bytes.value != np.dtype(np.float64).itemsize:
            raise InvalidArgument(f"mjData has no float64 field {name!r}")
        view = self._view(address, size.value)
        view.flags.writeable = False
        return view

    def _view(self, address: int, row_size: int) -> Numbers:
        pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_double))
        return np.ctypeslib.as_array(pointer, (self.count, row_size))

    def step(self, substeps: int) -> None:
        """Advances every simulation by `substeps` calls of mj_step.

        Raises:
            Internal: MuJoCo failed in a simulation.
        """
        self._run("mjb_step", None, substeps, _NOTHING)

    def compute_contact_forces(self) -> None:
        """Updates `cfrc_ext` to the last step, at about a hundredth of the step's cost.

        MuJoCo does not compute contact forces in a step. Gymnasium adds them with mj_rnePostConstraint, from the data
        that the step left; only `mjb_apply` can reach that data. It does not refresh bound fields, so an empty forward
        call follows.

        Raises:
            Internal: MuJoCo failed in a simulation.
        """
        # mjb_apply passes (model, data, simulation, argument); a C function that takes the first two ignores the rest.
        self._run("mjb_apply", None, ctypes.cast(self._library.mj_rnePostConstraint, _POINTER), None, 0)
        self._run("mjb_forward", None, _NOTHING)

    def reset(self, lanes: Lanes) -> None:
        """Puts simulations into the model's initial state, without computing any field.

        Args:
            lanes: Ascending, each at most once.

        Raises:
            Internal: MuJoCo failed in a simulation.
        """
        self._run("mjb_reset", lanes, None, _NOTHING)

    def forward(self, lanes: Lanes) -> None:
        """Computes all fields of simulations at their current state, without advancing it (mj_forward).

        Args:
            lanes: Ascending, each at most once.

        Raises:
            Internal: MuJoCo failed in a simulation.
        """
        self._run("mjb_forward", lanes, _EVERYTHING)

    def _run(self, name: str, lanes: Lanes | None, *arguments: object) -> None:
        if not self._free.alive:
            raise FailedPrecondition("these simulations are closed: make a new simulator")
        ids = None if lanes is None else np.ascontiguousarray(lanes, np.int32)
        count = self.count if ids is None else len(ids)
        failed = getattr(self._library, name)(self._pointer, ids if ids is None else ids.ctypes.data, count, *arguments)
        if failed:
            status = np.ctypeslib.as_array(self._library.mjb_status(self._pointer), (self.count,))
            lane = int(np.flatnonzero(status)[0])
            message = self._library.mjb_error(self._pointer, lane).decode()
            raise Internal(f"MuJoCo failed in {failed} of {count} simulations; lane {lane}: {message}")

    def close(self) -> None:
        """Frees the simulations and their threads; the live arrays are removed."""
        if self._free.alive:
            self._free()
            del self.qpos, self.qvel, self.ctrl, self.positions_and_velocities
