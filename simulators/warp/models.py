"""Loads the bodies: the model of each style, and the capacities that MuJoCo Warp needs for it."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

from podrace.errors import Unimplemented

_ISAAC_SUBSTEP_SECONDS = 1 / 120


@dataclass(frozen=True)
class Body:
    """A model and its capacities for contacts and constraints."""

    model: mujoco.MjModel
    nconmax: int
    """Capacity for contacts, averaged over the lanes."""
    njmax: int
    """Capacity for constraint rows in each lane."""
    qpos: NDArray[np.float64]
    """Positions in which episodes start, before noise is added."""
    feet: tuple[int, ...] = ()
    """Bodies whose contact forces Isaac Gym's sensors measure."""


_ANT_CONTACTS, _ANT_ROWS = 25, 88
"""No state of the ant needs more: a sphere and twelve capsules can touch the floor, and eight joints have limits."""
_HUMANOID_CONTACTS, _GYMNASIUM_HUMANOID_ROWS, _ISAAC_HUMANOID_ROWS = 32, 96, 112
"""Three times what 256 lanes needed in 250 steps of random actions (18 and 32 rows, 8 and 15 contacts)."""


def load_body(name: str, style: str) -> Body:
    """Loads the body of a style.

    Args:
        name: "ant" or "humanoid".
        style: "gymnasium" or "isaac".

    Raises:
        ModuleNotFoundError: The package that contains the model is not installed.
        Unimplemented: The installed version of that package does not contain the model.
    """
    return {
        ("ant", "gymnasium"): _gymnasium_ant,
        ("humanoid", "gymnasium"): _gymnasium_humanoid,
        ("ant", "isaac"): _isaac_ant,
        ("humanoid", "isaac"): _isaac_humanoid,
    }[name, style]()


def _gymnasium_ant() -> Body:
    model = _gymnasium_model("ant.xml")
    return Body(model, _ANT_CONTACTS, _ANT_ROWS, model.qpos0)


def _gymnasium_humanoid() -> Body:
    model = _gymnasium_model("humanoid.xml")
    return Body(model, _HUMANOID_CONTACTS, _GYMNASIUM_HUMANOID_ROWS, model.qpos0)


def _isaac_ant() -> Body:
    """Makes Gymnasium's ant, in the initial state of Isaac Gym's.

    Isaac Gym's own model (its assets/mjcf/nv_ant.xml) has motors a tenth as strong, on joints with a hundredth of the
    armature. With random actions at 1/120 s in MuJoCo, one of 256 such ants diverges every 30 steps.
    """
    model = _gymnasium_model("ant.xml")
    feet = ("left_ankle_geom", "right_ankle_geom", "third_ankle_geom", "fourth_ankle_geom")
    body_ids = tuple(int(model.geom(foot).bodyid[0]) for foot in feet)
    return _isaac_body(model, body_ids, 0.44, _ANT_CONTACTS, _ANT_ROWS)


def _isaac_humanoid() -> Body:
    """Makes the humanoid of MuJoCo Warp's tests (DeepMind's model), which has as many joints as Isaac Gym's."""
    model = _model(_folder("mujoco_warp") / "test_data" / "humanoid" / "humanoid.xml")
    # The file's 10 and 20 favor speed: one step in some thousands would stop before the solver has converged.
    model.opt.iterations, model.opt.ls_iterations = 20, 50
    body_ids = tuple(int(model.body(foot).id) for foot in ("foot_right", "foot_left"))
    return _isaac_body(model, body_ids, model.qpos0[2], _HUMANOID_CONTACTS, _ISAAC_HUMANOID_ROWS)


def _isaac_body(model: mujoco.MjModel, feet: tuple[int, ...], height: float, nconmax: int, njmax: int) -> Body:
    """Sets Isaac Gym's time step and initial state."""
    model.opt.timestep = _ISAAC_SUBSTEP_SECONDS
    # Its joints are light: damping must be integrated implicitly.
    model.opt.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    # Recomputes constants that MuJoCo derives from masses and inertias.
    mujoco.mj_setConst(model, mujoco.MjData(model))
    # Joints start at 0, or the nearest position within their limits. (Not in qpos0: angles are measured from there.)
    qpos = model.qpos0.copy()
    qpos[2], qpos[7:] = height, np.clip(0.0, *model.jnt_range[1:].T)
    return Body(model, nconmax, njmax, qpos, feet)


def _gymnasium_model(file: str) -> mujoco.MjModel:
    """Loads one of Gymnasium's models without importing Gymnasium, which would take a third of a second."""
    model = _model(_folder("gymnasium") / "envs" / "mujoco" / "assets" / file)
    # Gymnasium's Runge-Kutta integrator would cost four times as much; Euler's method is the next stable one.
    model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
    return model


def _model(path: Path) -> mujoco.MjModel:
    if not path.is_file():
        raise Unimplemented(
            f"there is no {path}: install the releases of gymnasium and mujoco-warp of the extra 'warp'"
        )
    model = mujoco.MjModel.from_xml_path(str(path))
    model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    # With pyramidal cones, capsules that stand nearly upright receive other forces than in MuJoCo itself.
    model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    return model


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return Path(found.origin).parent
