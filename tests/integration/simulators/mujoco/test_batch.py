import ctypes
from pathlib import Path

import mujoco
import numpy as np
import pytest

from podrace.errors import Internal, InvalidArgument
from simulators.mujoco.batch import PhysicsBatch
from simulators.noise import STRIDE, EpisodeNoise, mixed

PENDULUM = """<mujoco><worldbody><body name="pole"><joint name="hinge" axis="0 1 0"/>
<geom type="capsule" fromto="0 0 0 0 0 -1" size=".05"/></body><body name="anchor"/></worldbody>
<equality><weld body1="pole" body2="anchor" active="false"/></equality>
<actuator><motor joint="hinge"/></actuator></mujoco>"""


@pytest.fixture
def pendulum(tmp_path: Path) -> Path:
    path = tmp_path / "pendulum.xml"
    path.write_text(PENDULUM)
    return path


def test_every_simulation_equals_one_that_mujoco_computes_alone(pendulum: Path) -> None:
    batch = PhysicsBatch(pendulum, 3, 2)
    positions, torques = np.array([[0.1], [0.2], [0.3]]), np.array([[0.0], [1.0], [-1.0]])
    batch.qpos[:], batch.ctrl[:] = positions, torques
    height = batch.bind("xipos")
    batch.step(7)
    for lane in range(3):
        data = mujoco.MjData(batch.model)
        data.qpos[:], data.ctrl[:] = positions[lane], torques[lane]
        mujoco.mj_step(batch.model, data, nstep=7)
        np.testing.assert_array_equal(batch.positions_and_velocities[lane], [*data.qpos, *data.qvel])
        np.testing.assert_array_equal(height[lane], data.xipos.ravel())


def test_a_field_is_live_and_cannot_be_written(pendulum: Path) -> None:
    batch = PhysicsBatch(pendulum, 2, 1)
    centre = batch.bind("xipos")
    batch.qpos[1] = np.pi / 2
    batch.forward(np.array([1]))
    np.testing.assert_allclose(centre[:, 3], [0, -0.5])
    with pytest.raises(ValueError, match="read-only"):
        centre[0] = 1


@pytest.mark.parametrize("name", ["xposs", "ncon", "body_mass"])
def test_an_unknown_field_is_refused(pendulum: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"no float64 field '{name}'"):
        PhysicsBatch(pendulum, 2, 1).bind(name)


def test_an_empty_batch_is_refused_with_mujocos_reason(pendulum: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"pendulum.xml: 0 simulations cannot be created: .*positive"):
        PhysicsBatch(pendulum, 0, 1)


def test_a_failed_simulation_is_reported_in_one_line_that_names_the_lane(pendulum: Path) -> None:
    batch = PhysicsBatch(pendulum, 4, 2)
    expand = batch._library.mjb_expand
    expand.restype = ctypes.c_void_p
    expand.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
    for name, kind, value in ((b"eq_type", ctypes.c_int, 99), (b"eq_active0", ctypes.c_bool, True)):
        ctypes.cast(expand(batch._pointer, name, None, None), ctypes.POINTER(kind))[2] = value
    batch.reset(np.array([1, 2]))
    with pytest.raises(Internal, match=r"MuJoCo failed in 1 of 2 simulations; lane 2: \S+") as caught:
        batch.forward(np.array([1, 2]))
    assert "\n" not in caught.value.message


def test_noise_is_the_splitmix64_sequence() -> None:
    outputs = mixed(STRIDE * np.arange(1, 4, dtype=np.uint64))
    # The first outputs of the authors' generator, seeded with 0.
    assert [hex(each) for each in outputs.tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


def test_noise_is_a_function_of_seed_lane_and_episode() -> None:
    lanes, episodes = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    drawn = EpisodeNoise(4).uniform(lanes, episodes, 5)
    np.testing.assert_array_equal(EpisodeNoise(4).uniform(lanes[[3, 1]], episodes[[3, 1]], 3), drawn[[3, 1], :3])
    assert len(np.unique(np.concatenate([drawn, EpisodeNoise(5).uniform(lanes, episodes, 5)]))) == 40
    assert ((drawn >= 0) & (drawn < 1)).all()
