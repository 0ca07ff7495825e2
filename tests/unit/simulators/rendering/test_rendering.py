import importlib.util
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import simulators
from podrace.errors import Unimplemented
from simulators.base import Report
from simulators.rendering.__main__ import drawn
from simulators.rendering.account import account_pictures
from simulators.rendering.animation import SIZE, Animation
from simulators.rendering.cameras import CLASSIC, camera_of, options_for_camera
from simulators.rendering.episode import PlayedEpisode, play


class ConstantPolicy:
    """Takes the same action in every step."""

    def __init__(self, simulator: simulators.Simulator) -> None:
        space = simulator.action_space
        self._action = np.zeros((1, *space.shape), np.int64 if space.kind == "discrete" else np.float32)

    def reset(self) -> None:
        pass

    def act(self, observation: Any, random: Any = None) -> Any:
        return self._action


@pytest.fixture
def made() -> Iterator[Any]:
    """Makes simulators with one lane that can be drawn, and their cameras; closes both."""
    opened: list[Any] = []

    def make(id: str, options: dict[str, object] | None = None) -> tuple[Any, Any]:
        simulator = simulators.make(id, 1, {**(options or {}), **options_for_camera(id)})
        opened.append(simulator)
        camera = camera_of(id, simulator)
        opened.append(camera)
        return simulator, camera

    yield make
    for one in reversed(opened):
        one.close()


def played(simulator: Any, camera: Any, animation: Animation, **more: Any) -> PlayedEpisode:
    settings: dict[str, Any] = {"seed": 3, "sampled": False, "most_steps": 40} | more
    policy: Any = ConstantPolicy(simulator)
    return play(simulator, policy, animation, camera, **settings)


@pytest.mark.parametrize("id", [*CLASSIC, "CartPole-v1", "gym:Acrobot-v1"])
@pytest.mark.long
def test_an_episode_is_drawn_in_pictures_that_differ(made: Any, id: str) -> None:
    pytest.importorskip("pygame")
    simulator, camera = made(id)
    animation = Animation(50)
    episode = played(simulator, camera, animation, most_steps=8)
    assert episode.steps == len(animation) == 8
    first, *_, last = (np.asarray(one.convert("RGB")) for one in animation._pictures)
    assert first.shape == last.shape
    assert (first != last).any()


MUJOCO = """
from simulators.rendering import cameras
cameras.choose_graphics()
import numpy, simulators
simulator = simulators.make("mujoco:HalfCheetah-v5", 1)
camera = cameras.camera_of("mujoco:HalfCheetah-v5", simulator)
before, state = camera.picture(), simulator.physics.qpos.copy()
state[0, 2] += 1.0
simulator.set_state(numpy.arange(1), state, simulator.physics.qvel.copy())
print(before.shape, bool((camera.picture() != before).any()))
"""


@pytest.mark.long
def test_mujoco_is_drawn_from_the_state_of_the_batch() -> None:
    # In another process, because MuJoCo chooses how it draws when it is imported.
    done = subprocess.run([sys.executable, "-c", MUJOCO], capture_output=True, text=True, timeout=100, check=False)
    if "MuJoCo cannot draw on this machine" in done.stderr:
        pytest.skip("MuJoCo cannot draw on this machine")
    assert done.stdout == "(480, 480, 3) True\n", done.stderr


def test_wrapped_simulators_are_drawn(made: Any) -> None:
    pytest.importorskip("pygame")
    _, camera = made("cartpole", {"wrappers": [{"name": "frame_stack", "count": 2}]})
    assert camera.picture().dtype == np.uint8


@pytest.mark.long
def test_a_picture_shows_the_state_of_the_simulator(made: Any) -> None:
    pytest.importorskip("pygame")
    simulator, camera = made("cartpole")
    state = np.zeros((4, 1), np.float32)
    pictures = []
    for position in (-2.0, 2.0):
        state[0] = position
        simulator.set_state(np.arange(1), state)
        pictures.append((camera.picture() < 50).all(2))
    left, right = (dark[:, : dark.shape[1] // 2].sum() - dark[:, dark.shape[1] // 2 :].sum() for dark in pictures)
    assert left > 0 > right, "the cart is black"


def test_an_environment_that_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(Unimplemented, match="envpool:Ant-v5: cannot be drawn; environments of Gymnasium"):
        camera_of("envpool:Ant-v5", SimpleNamespace())  # type: ignore[arg-type]
    silent = SimpleNamespace(first_environment=lambda: SimpleNamespace(metadata={"render_modes": ["ansi"]}))
    with pytest.raises(Unimplemented, match="Silent-v0: cannot be drawn: the environment has no render mode rgb_array"):
        camera_of("Silent-v0", silent)  # type: ignore[arg-type]


def test_an_episode_ends_with_its_environment_or_after_the_most_steps(made: Any) -> None:
    pytest.importorskip("pygame")
    simulator, camera = made("cartpole")
    ended = played(simulator, camera, Animation(5))
    assert ended.ended
    assert ended.episode_return == ended.steps < 40
    cut = played(simulator, camera, Animation(5), most_steps=3)
    assert (cut.steps, cut.ended) == (3, False)


@pytest.mark.long
@pytest.mark.parametrize("pictures", [1, 7, 8, 9, 100])
def test_an_animation_keeps_an_even_spread_of_at_most_the_given_number(tmp_path: Path, pictures: int) -> None:
    animation, drawn = Animation(8), 0
    for number in range(pictures):
        if animation.wants_next:
            animation.add(Image.new("RGB", (600, 400), (number, 0, 0)))
            drawn += 1
        else:
            animation.skip()
    shown = [one.convert("RGB").getpixel((0, 0))[0] for one in animation._pictures]
    assert 1 <= len(shown) <= 8
    assert len({after - before for before, after in itertools.pairwise(shown)}) <= 1
    assert drawn < 40
    animation.write(tmp_path / "a", 25.0, ".gif")
    with Image.open(tmp_path / "a") as file:
        assert file.format == "GIF"
        assert max(file.size) == SIZE


@pytest.mark.parametrize("size", [(600, 400), (300, 225), (7, 5)])
def test_a_video_shows_every_picture_in_order_at_the_rate_of_the_steps(tmp_path: Path, size: tuple[int, int]) -> None:
    av = pytest.importorskip("av")
    animation = Animation(8)
    for number in range(10):
        if animation.wants_next:
            animation.add(Image.new("RGB", size, (20 * number, 0, 0)))
        else:
            animation.skip()
    animation.write(tmp_path / "a", 25.0, ".mp4")
    with av.open(str(tmp_path / "a")) as file:
        stream = file.streams.video[0]
        assert (file.format.name.split(",")[1], stream.codec_context.name) == ("mp4", "h264")
        assert float(stream.average_rate) == 12.5
        assert (stream.width % 2, stream.height % 2) == (0, 0)
        shown = [frame.to_ndarray(format="rgb24") for frame in file.decode(stream)]
    assert len(shown) == len(animation) == 5
    reds = [float(one[..., 0].mean()) for one in shown]
    assert reds == pytest.approx([0, 40, 80, 120, 160], abs=8)


def test_a_video_without_its_library_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unimplemented, match=r"writing \.mp4 needs the package 'av': pip install 'podrace\[video\]'"):
        drawn({"suffix": ".mp4"})


def test_an_account_grows_from_the_first_day_to_the_last() -> None:
    traces = {"account_value": [100.0, 120.0, 90.0, 150.0], "equal_weight_value": [100.0, 101.0, 102.0, 103.0]}
    report = Report(traces=traces, labels={"date": ["2021-01-04", "2021-01-05", "2021-01-06", "2021-01-07"]})
    pictures = [np.asarray(one) for one in account_pictures(report, 10)]
    assert len(pictures) == 4
    blue = [((one[..., 2] > 150) & (one[..., 0] < 60)).sum() for one in pictures]
    assert blue == sorted(blue)
    assert len(list(account_pictures(report, 2))) == 2


def test_an_account_needs_an_episode_over_a_whole_split() -> None:
    simulator, camera = simulators.make("cartpole", 1), None
    with pytest.raises(Unimplemented, match="only of an episode over a whole split"):
        played(simulator, camera, Animation(5))


@pytest.mark.long
def test_the_account_of_a_whole_split_is_drawn() -> None:
    pytest.importorskip("bokeh_sampledata")
    simulator = simulators.make("stocks", 1, {"split": "validation"})
    animation = Animation(20)
    episode = played(simulator, None, animation, most_steps=10_000)
    simulator.close()
    assert episode.ended
    assert 10 < len(animation) <= 20
