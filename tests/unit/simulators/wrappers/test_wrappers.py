"""Wrappers around a simulator whose observations encode lane, episode and step."""

from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators import Report, Simulator, Space, Step, make
from simulators.wrappers import WRAPPERS, parse, wrap
from simulators.wrappers.pixels import area_weights

LENGTHS = (2, 3, 50)
COUNT = len(LENGTHS)


class Numbered:
    """Observes (lane, episode, step); lane i terminates after LENGTHS[i] steps; the reward is its action."""

    def __init__(self, action_space: Space | None = None) -> None:
        self.observation_space = Space("continuous", (3,), torch.float32)
        self.action_space = action_space or Space("continuous", (2,), torch.float32, (-2.0, 0.0), (4.0, 1.0))
        self.count, self.is_closed, self.actions = COUNT, False, torch.zeros(0)
        self.lengths = torch.tensor(LENGTHS)

    def reset(self, seed: int) -> Tensor:
        self.episode, self.steps = torch.zeros(COUNT), torch.zeros(COUNT)
        return self._observation()

    def _observation(self) -> Tensor:
        return torch.stack([torch.arange(float(COUNT)), self.episode, self.steps], 1)

    def step(self, action: Tensor) -> Step:
        self.actions = action.clone()
        self.steps += 1
        final = self._observation()
        over = self.steps >= self.lengths
        self.steps[over] = 0
        self.episode[over] += 1
        reward = action.float().reshape(COUNT, -1)[:, 0].clone()
        return Step(self._observation(), reward, over, torch.zeros(COUNT, dtype=torch.bool), final)

    def report(self) -> Report:
        return Report({"numbered": 7.0})

    def close(self) -> None:
        self.is_closed = True


class Pictures(Numbered):
    """Observes one picture per lane and step, drawn from the seed."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        elements = int(np.prod(shape))
        self.observation_space = Space("continuous", shape, torch.uint8, (0.0,) * elements, (255.0,) * elements)
        self.generator = torch.Generator()

    def reset(self, seed: int) -> Tensor:
        self.generator.manual_seed(seed)
        super().reset(seed)
        return self.drawn()

    def drawn(self) -> Tensor:
        shape = (COUNT, *self.observation_space.shape)
        return torch.randint(256, shape, dtype=torch.uint8, generator=self.generator)

    def step(self, action: Tensor) -> Step:
        return replace(super().step(action), observation=self.drawn(), final_observation=self.drawn())


def wrapped(inner: Simulator, *tables: dict[str, Any]) -> Simulator:
    return wrap(inner, parse("numbered", list(tables)), "cpu")


def actions(*first: float) -> Tensor:
    return torch.tensor([[value, 0.0] for value in first])


# --- time limit


def test_a_time_limit_truncates_running_episodes_and_the_lane_continues() -> None:
    simulator = wrapped(Numbered(), {"name": "time_limit", "steps": 3})
    simulator.reset(0)
    flags, shown = [], []
    for _ in range(6):
        step = simulator.step(torch.zeros(COUNT, 2))
        flags.append([*step.terminated.tolist(), *step.truncated.tolist()])
        shown.append((step.observation[2].tolist(), step.final_observation[2].tolist()))
    yes, no = True, False
    assert flags == [
        [no, no, no, no, no, no],
        [yes, no, no, no, no, no],
        # A termination in the last allowed step counts as a termination.
        [no, yes, no, no, no, yes],
        [yes, no, no, no, no, no],
        [no, no, no, no, no, no],
        [yes, yes, no, no, no, yes],
    ]
    assert shown[2] == ([2.0, 0.0, 3.0], [2.0, 0.0, 3.0])


def test_the_steps_of_a_time_limit_restart_with_an_episode_and_a_reset() -> None:
    simulator = wrapped(Numbered(), {"name": "time_limit", "steps": 4})
    for _ in range(2):
        simulator.reset(0)
        cut = torch.stack([simulator.step(torch.zeros(COUNT, 2)).truncated for _ in range(6)])
        assert cut.nonzero().tolist() == [[3, 2]]


# --- actions


def test_actions_are_clipped_to_the_bounds() -> None:
    inner = Numbered()
    simulator = wrapped(inner, {"name": "clip_actions"})
    assert (simulator.action_space.low, simulator.action_space.high) == (None, None)
    simulator.reset(0)
    simulator.step(torch.tensor([[-9.0, -9.0], [9.0, 9.0], [1.5, 0.5]]))
    assert inner.actions.tolist() == [[-2.0, 0.0], [4.0, 1.0], [1.5, 0.5]]


def test_actions_are_scaled_to_the_bounds() -> None:
    inner = Numbered()
    simulator = wrapped(inner, {"name": "scale_actions"})
    assert (simulator.action_space.low, simulator.action_space.high) == ((-1.0, -1.0), (1.0, 1.0))
    simulator.reset(0)
    simulator.step(torch.tensor([[-1.0, 1.0], [0.0, -0.5], [7.0, -7.0]]))
    assert inner.actions.tolist() == [[-2.0, 1.0], [1.0, 0.25], [4.0, 0.0]]


@pytest.mark.parametrize(
    ("name", "space", "line"),
    [
        ("clip_actions", Space("discrete", (), torch.int64, n=2), "the actions are discrete, not continuous"),
        ("scale_actions", Space("discrete", (), torch.int64, n=2), "the actions are discrete, not continuous"),
        ("clip_actions", Space("continuous", (2,), torch.float32), "the action space has no bounds"),
        ("scale_actions", Space("continuous", (1,), torch.float32, (0.0,)), "not bounded on both sides"),
        ("scale_actions", Space("continuous", (1,), torch.float32, (0.0,), (torch.inf,)), "not bounded on both"),
    ],
)
def test_a_wrapper_that_does_not_fit_is_refused_and_its_simulator_closed(name: str, space: Space, line: str) -> None:
    inner = Numbered(space)
    with pytest.raises(InvalidArgument, match=f"numbered: wrapper '{name}': .*{line}"):
        wrapped(inner, {"name": name})
    assert inner.is_closed


# --- frame stack


def test_a_stack_holds_only_the_last_observations_of_the_episode() -> None:
    simulator = wrapped(Numbered(), {"name": "frame_stack", "count": 3})

    def steps_of(observation: Tensor, lane: int) -> list[list[float]]:
        frames = observation[lane].view(3, 3)
        assert frames[:, 0].tolist() == [lane] * 3
        return frames[:, 1:].tolist()

    assert steps_of(simulator.reset(0), 1) == [[0, 0]] * 3
    first, second, third, fourth = (simulator.step(torch.zeros(COUNT, 2)) for _ in range(4))
    assert steps_of(first.observation, 1) == [[0, 0], [0, 0], [0, 1]]
    assert steps_of(second.observation, 1) == [[0, 0], [0, 1], [0, 2]]
    assert steps_of(third.final_observation, 1) == [[0, 1], [0, 2], [0, 3]]
    assert steps_of(third.observation, 1) == [[1, 0]] * 3
    assert steps_of(fourth.observation, 1) == [[1, 0], [1, 0], [1, 1]]
    assert steps_of(fourth.observation, 2) == [[0, 2], [0, 3], [0, 4]]
    assert steps_of(simulator.reset(0), 2) == [[0, 0]] * 3


@pytest.mark.parametrize(("shape", "stacked"), [((5,), (20,)), ((3, 6, 7), (12, 6, 7)), ((6, 7), (4, 6, 7))])
def test_a_stack_of_vectors_or_channels_joins_them(shape: tuple[int, ...], stacked: tuple[int, ...]) -> None:
    simulator = wrapped(Pictures(shape), {"name": "frame_stack"})
    space = simulator.observation_space
    assert space.shape == stacked
    assert space.high == (255.0,) * int(np.prod(stacked))
    observation = simulator.reset(0)
    assert (observation.shape, observation.dtype) == ((COUNT, *stacked), torch.uint8)
    step = simulator.step(torch.zeros(COUNT, 2))
    frames = step.observation.view(COUNT, 4, *shape)
    assert torch.equal(frames[:, 0], observation.view(COUNT, 4, *shape)[:, 3])
    assert step.final_observation.shape == observation.shape


# --- running statistics


@pytest.mark.long
def test_observations_are_normalized_by_all_that_were_acted_upon() -> None:
    simulator, twin = wrapped(Numbered(), {"name": "normalize_observations", "clip": 1.5}), Numbered()
    seen = [twin.reset(0)]
    for step in range(10):
        shown = simulator.reset(0) if step == 0 else simulator.step(torch.zeros(COUNT, 2)).observation
        if step:
            seen.append(twin.step(torch.zeros(COUNT, 2)).observation)
        rows = torch.cat(seen).double()
        deviation = (rows.var(0, correction=0) + 1e-8).sqrt()
        expected = ((seen[-1] - rows.mean(0)) / deviation).clamp(-1.5, 1.5).float()
        torch.testing.assert_close(shown, expected)
    assert simulator.observation_space.low == (-1.5,) * 3


def test_a_final_observation_is_normalized_like_the_others_but_not_counted() -> None:
    simulator, twin = wrapped(Numbered(), {"name": "normalize_observations"}), Numbered()
    seen = [twin.reset(0)]
    simulator.reset(0)
    for _ in range(3):
        raw, step = twin.step(torch.zeros(COUNT, 2)), simulator.step(torch.zeros(COUNT, 2))
        seen.append(raw.observation)
    rows = torch.cat(seen).double()
    expected = (raw.final_observation - rows.mean(0)) / (rows.var(0, correction=0) + 1e-8).sqrt()
    assert raw.terminated[1]
    torch.testing.assert_close(step.final_observation[1], expected[1].float())


def test_rewards_are_divided_by_the_deviation_of_returns_reset_at_the_end_of_episodes() -> None:
    simulator = wrapped(Numbered(), {"name": "normalize_rewards", "discount": 0.5, "clip": 1.25})
    for _ in range(2):
        simulator.reset(0)
        returns, all_returns, steps = [0.0] * COUNT, [], [0] * COUNT
        for step in range(7):
            rewards = [float(step + 1), -float(step), 0.5]
            brought = simulator.step(actions(*rewards))
            returns = [0.5 * running + reward for running, reward in zip(returns, rewards, strict=True)]
            all_returns += returns
            deviation = np.sqrt(np.var(all_returns) + 1e-8)
            expected = np.clip(np.array(rewards) / deviation, -1.25, 1.25).astype(np.float32)
            np.testing.assert_allclose(brought.reward, expected, rtol=1e-6)
            steps = [count + 1 for count in steps]
            for lane, length in enumerate(LENGTHS):
                if steps[lane] == length:
                    steps[lane], returns[lane] = 0, 0.0


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"name": "normalize_rewards", "discount": 1.5}, r"option 'discount' must be in \[0, 1\], not 1.5"),
        ({"name": "normalize_rewards", "clip": 0}, "option 'clip' must be positive, not 0"),
        ({"name": "normalize_observations", "clip": -1.0}, "option 'clip' must be positive, not -1.0"),
        ({"name": "frame_stack", "count": 0}, "option 'count' must be at least 1, not 0"),
        ({"name": "time_limit"}, "option 'steps' must be at least 1, not 0"),
    ],
)
def test_an_invalid_value_is_refused(table: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidArgument, match=f"numbered: wrapper '{table['name']}': {line}"):
        wrapped(Numbered(), table)


def test_bytes_are_not_normalized() -> None:
    with pytest.raises(InvalidArgument, match="the observations are bytes"):
        wrapped(Pictures((4, 4)), {"name": "normalize_observations"})


# --- pictures


@pytest.mark.parametrize("shape", [(210, 160, 3), (210, 160, 1), (96, 128)])
def test_pictures_are_resized_by_area(shape: tuple[int, ...]) -> None:
    inner, twin = Pictures(shape), Pictures(shape)
    simulator = wrapped(inner, {"name": "pixels", "height": 84, "width": 80})
    assert simulator.observation_space.shape == (1, 84, 80)
    small, raw = simulator.reset(3), twin.reset(3)
    for lane in range(COUNT):
        picture = raw[lane].numpy()
        grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY) if shape[-1] == 3 else picture.reshape(shape[:2])
        expected = cv2.resize(grey, (80, 84), interpolation=cv2.INTER_AREA).astype(int)
        assert np.abs(small[lane, 0].numpy().astype(int) - expected).max() <= 1


def test_colors_are_kept_on_request() -> None:
    simulator, twin = (
        wrapped(Pictures((20, 12, 3)), {"name": "pixels", "height": 10, "width": 6, "grayscale": False}),
        Pictures((20, 12, 3)),
    )
    small, raw = simulator.reset(1), twin.reset(1)
    assert simulator.observation_space.shape == (3, 10, 6)
    expected = raw.float().view(COUNT, 10, 2, 6, 2, 3).mean((2, 4)).movedim(3, 1)
    assert torch.equal(small, expected.round().byte())


def test_final_pictures_are_those_of_the_lanes_that_ended() -> None:
    simulator, twin = wrapped(Pictures((8, 8)), {"name": "pixels", "height": 4, "width": 4}), Pictures((8, 8))
    for wrapper in (simulator, twin):
        wrapper.reset(0)
    for _ in range(2):
        small, raw = simulator.step(torch.zeros(COUNT, 2)), twin.step(torch.zeros(COUNT, 2))
    expected = raw.final_observation[0].float().view(4, 2, 4, 2).mean((1, 3)).round().byte()
    assert small.terminated[0]
    assert torch.equal(small.final_observation[0, 0], expected)


def test_area_weights_are_the_shared_areas_of_pixels() -> None:
    assert area_weights(5, 2).tolist() == pytest.approx(np.array([[0.4, 0.4, 0.2, 0, 0], [0, 0, 0.2, 0.4, 0.4]]))


@pytest.mark.parametrize(
    ("inner", "options", "line"),
    [
        (Numbered(), {}, r"observations of shape \(3,\) and type torch.float32 are not pictures of bytes"),
        (Pictures((9, 9, 4)), {}, "are not pictures of bytes"),
        (Pictures((9, 90, 3)), {}, "option 'height' must be between 1 and 9, the size of the picture, not 84"),
        (Pictures((9, 9)), {"height": 9, "width": 0}, "option 'width' must be between 1 and 9"),
    ],
)
def test_observations_that_are_not_pictures_or_too_small_are_refused(
    inner: Simulator, options: dict[str, int], line: str
) -> None:
    with pytest.raises(InvalidArgument, match=line):
        wrapped(inner, {"name": "pixels", **options})


# --- all of them


def test_wrappers_are_applied_from_the_inside_out() -> None:
    simulator = wrapped(
        Numbered(), {"name": "frame_stack", "count": 2}, {"name": "normalize_observations", "clip": 2.0}
    )
    assert simulator.observation_space.high == (2.0,) * 6


OPTIONS: dict[str, dict[str, object]] = {
    "time_limit": {"steps": 5},
    "shape_rewards": {"function": "python:math:isfinite"},
}
"""Those without a default."""


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_reports_and_closes_what_it_wraps(name: str) -> None:
    inner = Pictures((84, 84)) if name == "pixels" else Numbered()
    simulator = wrapped(inner, {"name": name, **OPTIONS.get(name, {})})
    assert simulator.report().metrics == {"numbered": 7.0}
    assert isinstance(simulator, Simulator)
    simulator.close()
    assert inner.is_closed


@pytest.mark.parametrize(
    ("tables", "line"),
    [
        ("frame_stack", r"must be a list of tables with a name, as \[\{ name = .*not 'frame_stack'"),
        ({"name": "frame_stack"}, "must be a list of tables"),
        ([{"count": 4}], "must be a list of tables with a name"),
        ([{"name": "frame_stac"}], r"no wrapper 'frame_stac'; did you mean 'frame_stack'\? \(wrappers: time_limit, "),
        ([{"name": 3}], r"no wrapper 3 \(wrappers: "),
        ([{"name": "frame_stack", "cuont": 4}], "wrapper 'frame_stack': unknown option 'cuont'; did you mean 'count'"),
        ([{"name": "frame_stack", "count": "4"}], "wrapper 'frame_stack': option 'count' must be int, not '4'"),
    ],
)
def test_an_unknown_wrapper_or_option_is_refused_in_one_line(tables: object, line: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^cartpole: .*{line}"):
        make("cartpole", 2, {"wrappers": tables})


def test_options_name_wrappers_and_the_simulators_own_options() -> None:
    wrappers = [{"name": "normalize_rewards"}, {"name": "frame_stack", "count": 2}]
    simulator = make("gym:Pendulum-v1", 3, {"max_episode_steps": 2, "wrappers": wrappers}, seed=0)
    assert simulator.observation_space.shape == (6,)
    assert [bool(simulator.step(torch.zeros(3, 1)).truncated.all()) for _ in range(2)] == [False, True]


@pytest.mark.long
def test_no_wrapper_waits_for_the_device() -> None:
    # Tensors on the meta device have no values: any operation that reads one fails.
    class Meta(Numbered):
        def reset(self, seed: int) -> Tensor:
            return torch.zeros(
                (COUNT, *self.observation_space.shape), dtype=self.observation_space.dtype, device="meta"
            )

        def step(self, action: Tensor) -> Step:
            flags = torch.zeros(COUNT, dtype=torch.bool, device="meta")
            return Step(self.reset(0), torch.zeros(COUNT, device="meta"), flags, flags, self.reset(0))

    tables: list[dict[str, Any]] = [
        {"name": "normalize_observations"},
        {"name": "normalize_rewards"},
        {"name": "frame_stack"},
        {"name": "time_limit", "steps": 3},
        {"name": "scale_actions"},
        {"name": "clip_actions"},
    ]
    simulator = wrap(Meta(), parse("numbered", tables), "meta")
    simulator.reset(0)
    for _ in range(4):
        step = simulator.step(torch.zeros((COUNT, 2), device="meta"))
    assert step.observation.shape == (COUNT, 12)
    pictures = Meta()
    pictures.observation_space = Space("continuous", (90, 90, 3), torch.uint8)
    small = wrap(pictures, parse("numbered", [{"name": "pixels"}]), "meta")
    assert (
        small.reset(0).shape == small.step(torch.zeros((COUNT, 2), device="meta")).observation.shape == (3, 1, 84, 84)
    )
