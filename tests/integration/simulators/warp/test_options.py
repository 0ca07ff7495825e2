"""The options of the bodies on MuJoCo Warp."""

import math

import pytest

from podrace.errors import InvalidArgument
from simulators import FAMILIES, SIMULATORS, make
from simulators.mujoco.tasks import TASKS as GYMNASIUM
from simulators.warp.options import STYLES, WarpAntOptions, parse_warp_options
from simulators.warp.simulator import TASKS

OURS = {"style", "nconmax", "njmax", "deterministic"}


@pytest.mark.parametrize(("body", "task"), [("ant", "Ant-v5"), ("humanoid", "Humanoid-v5")])
def test_gymnasiums_options_have_its_names_and_defaults(body: str, task: str) -> None:
    theirs = vars(GYMNASIUM[task].options_class())
    ours = vars(parse_warp_options({}, body))
    assert {name: value for name, value in ours.items() if name not in OURS} == theirs
    assert set(ours) == set(theirs) | OURS


def test_every_style_of_every_body_has_a_task() -> None:
    assert {options for styles in STYLES.values() for options in styles.values()} == set(TASKS)
    assert {f"warp:{body}" for body in STYLES} == {id for id in SIMULATORS if id.startswith("warp:")}
    assert "warp:" in FAMILIES


def test_options_are_parsed_to_the_values_given() -> None:
    options = parse_warp_options({"healthy_z_range": [0, 2], "ctrl_cost_weight": 1, "njmax": 70}, "ant")
    assert isinstance(options, WarpAntOptions)
    assert (options.healthy_z_range, options.ctrl_cost_weight, options.njmax) == ((0.0, 2.0), 1.0, 70)
    assert parse_warp_options({"style": "isaac", "death_cost": -9}, "humanoid").death_cost == -9.0


@pytest.mark.parametrize(
    ("id", "options", "line"),
    [
        ("warp:ants", {}, "warp: has no body 'ants'; did you mean 'ant'\\? \\(bodies: ant, humanoid\\)"),
        ("warp:ant", {"style": "isac"}, "option 'style' must be one of gymnasium, isaac, not 'isac'; did you mean 'is"),
        ("warp:ant", {"style": 3}, "'style' must be one of gymnasium, isaac, not 3"),
        (
            "warp:ant",
            {"frame_skips": 5},
            "warp:ant \\(gymnasium\\): unknown option 'frame_skips'; did you mean 'frame_",
        ),
        ("warp:ant", {"threads": 2}, "unknown option 'threads'"),
        ("warp:ant", {"style": "isaac", "healthy_reward": 2.0}, "\\(isaac\\): unknown option 'healthy_reward'"),
        ("warp:ant", {"frame_skip": 0}, "warp:ant: option 'frame_skip' must be at least 1, not 0"),
        ("warp:humanoid", {"max_episode_steps": 0}, "warp:humanoid: option 'max_episode_steps' must be at least 1"),
        ("warp:ant", {"style": "isaac", "max_episode_steps": -1}, "'max_episode_steps' must be at least 1, not -1"),
        ("warp:ant", {"njmax": -1}, "'njmax' must be at least 0, not -1"),
        ("warp:ant", {"nconmax": 2.5}, "'nconmax' must be int, not 2.5"),
        ("warp:ant", {"deterministic": 1}, "'deterministic' must be bool, not 1"),
        (
            "warp:ant",
            {"healthy_z_range": [2, 1]},
            "'healthy_z_range' must be \\[low, high\\] with low <= high, not \\[2.0, 1.0\\]",
        ),
        ("warp:ant", {"healthy_z_range": 2}, "'healthy_z_range' must be a list of two numbers, not 2"),
        ("warp:humanoid", {"style": "isaac", "up_weight": math.nan}, "'up_weight' must be a number, not nan"),
    ],
)
def test_an_invalid_option_is_refused_in_one_line(id: str, options: dict[str, object], line: str) -> None:
    with pytest.raises(InvalidArgument, match=line) as caught:
        make(id, 1, options)
    assert "\n" not in caught.value.message
