"""Takes pictures of the first lane of a simulator.

camera = camera_of(id, simulator)
picture = camera.picture()    # [height, width, 3] uint8
"""

import os
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from podrace.errors import Unimplemented
from simulators.base import Simulator
from simulators.classic import ClassicOnCpu
from simulators.wrappers.wrapper import Wrapper

Picture = NDArray[np.uint8]

CLASSIC = {
    "cartpole": "CartPole-v1",
    "pendulum": "Pendulum-v1",
    "acrobot": "Acrobot-v1",
    "mountaincar": "MountainCar-v0",
}
"""The Gymnasium environment that draws a state of each classic task."""
RENDER_MODE = "render_mode"
HEIGHT, WIDTH = 480, 480
"""Size of a picture of MuJoCo, in pixels."""


class Camera(Protocol):
    """Draws the present state of the first lane."""

    def picture(self) -> Picture:
        """Returns the picture, [height, width, 3]."""
        ...

    def close(self) -> None:
        """Frees what drawing needs."""
        ...


def choose_graphics() -> None:
    """Lets MuJoCo draw without a display. Has to be called before the package mujoco is imported."""
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")


def options_for_camera(id: str) -> Mapping[str, str]:
    """Returns what a simulator of this id must be made with, so that it can be drawn."""
    return {RENDER_MODE: "rgb_array"} if _is_gymnasium(id) else {}


def camera_of(id: str, simulator: Simulator) -> Camera:
    """Returns the camera of a simulator that `options_for_camera` was made with.

    Raises:
        Unimplemented: Simulators of this id cannot be drawn, or not on this machine.
    """
    inner = simulator
    while isinstance(inner, Wrapper):
        inner = inner.inner
    if isinstance(inner, ClassicOnCpu):
        return ClassicCamera(CLASSIC[id], inner)
    if id.startswith("mujoco:"):
        return MujocoCamera(inner)
    if _is_gymnasium(id):
        return GymnasiumCamera(id, inner)
    raise Unimplemented(
        f"{id}: cannot be drawn; environments of Gymnasium, {', '.join(CLASSIC)}, mujoco: and stocks can"
    )


def _is_gymnasium(id: str) -> bool:
    from simulators import FAMILIES, SIMULATORS

    other = (prefix for prefix in FAMILIES if prefix != "gym:")
    return id not in SIMULATORS and not id.startswith(tuple(other))


class ClassicCamera:
    """Draws a classic task with the environment of Gymnasium that has the same state."""

    def __init__(self, name: str, simulator: ClassicOnCpu) -> None:
        """Makes the environment that draws; raises Unimplemented if it cannot."""
        self._simulator = simulator
        self._environment = _environment(name)

    def picture(self) -> Picture:
        """See Camera."""
        drawn: Any = self._environment.unwrapped
        drawn.state = self._simulator.state[:, 0].astype(np.float64)
        return _picture(self._environment)

    def close(self) -> None:
        """See Camera."""
        self._environment.close()


class GymnasiumCamera:
    """Draws an environment of Gymnasium by its own means."""

    def __init__(self, id: str, simulator: Any) -> None:
        """Takes the environment of the first lane; raises Unimplemented if it does not draw arrays."""
        self._environment = simulator.first_environment()
        modes = self._environment.metadata.get("render_modes", [])
        if "rgb_array" not in modes:
            raise Unimplemented(f"{id}: cannot be drawn: the environment has no render mode rgb_array")

    def picture(self) -> Picture:
        """See Camera."""
        return _picture(self._environment)

    def close(self) -> None:
        """The simulator closes the environment."""


class MujocoCamera:
    """Draws the state of the first lane with MuJoCo's renderer, from a camera that follows the body."""

    def __init__(self, simulator: Any) -> None:
        """Opens a renderer; raises Unimplemented where MuJoCo cannot draw."""
        try:
            import mujoco

            self._physics, self._data = simulator.physics, mujoco.MjData(simulator.physics.model)
            self._renderer = mujoco.Renderer(simulator.physics.model, HEIGHT, WIDTH)
        except Exception as error:  # OpenGL raises errors of several libraries
            raise Unimplemented(
                f"MuJoCo cannot draw on this machine ({error}); install EGL, or OSMesa and set MUJOCO_GL=osmesa"
            ) from None
        self._forward = mujoco.mj_forward
        cameras = [self._physics.model.camera(number).name for number in range(self._physics.model.ncam)]
        self._camera = "track" if "track" in cameras else -1

    def picture(self) -> Picture:
        """See Camera."""
        self._data.qpos[:], self._data.qvel[:] = self._physics.qpos[0], self._physics.qvel[0]
        self._forward(self._physics.model, self._data)
        self._renderer.update_scene(self._data, camera=self._camera)
        found: Picture = self._renderer.render()
        return found.copy()

    def close(self) -> None:
        """See Camera."""
        self._renderer.close()


def _environment(name: str) -> Any:
    import gymnasium

    try:
        environment = gymnasium.make(name, render_mode="rgb_array")
        environment.reset(seed=0)
        environment.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise Unimplemented(f"{name}: cannot be drawn: {error}") from None
    return environment


def _picture(environment: Any) -> Picture:
    import gymnasium

    try:
        drawn = environment.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise Unimplemented(f"{environment.spec.id}: cannot be drawn: {error}") from None
    if not isinstance(drawn, np.ndarray) or drawn.ndim != 3:
        raise Unimplemented(f"{environment.spec.id}: cannot be drawn: render() returned no picture")
    return np.asarray(drawn, np.uint8)
