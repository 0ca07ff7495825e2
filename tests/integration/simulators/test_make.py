import subprocess
import sys
from pathlib import Path

import pytest
import torch

from podrace.errors import DataLoss, InvalidArgument, Unimplemented
from simulators import make

REPOSITORY = Path(__file__).parents[3]

OWN_ENVIRONMENTS = """
import gymnasium, simulators

def one_lane(steps=200):
    return gymnasium.make("CartPole-v1", max_episode_steps=steps)

def whole_batch(count, device, steps=200):
    return simulators.make("CartPole-v1", count, {"max_episode_steps": steps}, device)

class Diverges(gymnasium.Wrapper):
    def step(self, action):
        observation, _, terminated, truncated, information = self.env.step(action)
        return observation, float("nan"), terminated, truncated, information

def diverges():
    return Diverges(one_lane())

def too_few(count):
    return whole_batch(count - 1, "cpu")

def nothing():
    return None

def nothing_batched(count):
    return None
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_environments.py").write_text(OWN_ENVIRONMENTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_environments", raising=False)
    return "own_environments"


@pytest.mark.parametrize(("id", "hint"), [("CartPol-v1", "CartPole-v1"), ("stock", "stocks"), ("cartpol", "cartpole")])
def test_an_unknown_id_is_refused_with_the_closest_known_one(id: str, hint: str) -> None:
    with pytest.raises(InvalidArgument, match=f"no simulator '{id}'; did you mean '{hint}'"):
        make(id, 1)


def test_an_id_close_to_nothing_is_refused_with_the_kinds_of_ids() -> None:
    with pytest.raises(
        InvalidArgument,
        match=r"built-in one \(cartpole, .*, mujoco:Ant-v5, .*\), a Gymnasium id, or python:module:factory",
    ):
        make("qqqq", 1)


@pytest.mark.parametrize(("id", "hint"), [("gym:CartPol-v1", "CartPole-v1"), ("gym:Atn-v5", "Ant-v5")])
def test_an_unknown_gymnasium_id_is_refused_as_it_was_written(id: str, hint: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{id}: Gymnasium has no environment '.*'; did you mean '{hint}'"):
        make(id, 1)


def test_a_prefix_changes_only_the_name() -> None:
    plain, prefixed = make("CartPole-v1", 3), make("gym:CartPole-v1", 3)
    assert torch.equal(plain.reset(1), prefixed.reset(1))


@pytest.mark.parametrize(
    ("id", "key", "allowed"),
    [
        ("gym:Ant-v5", "frame_skips", "frame_skip"),
        ("gym:CartPole-v1", "proceses", "processes"),
        ("stocks", "initial_cahs", "initial_cash"),
        ("CartPole-v1", "max_episode_step", "max_episode_steps"),
        ("Ant-v5", "frame_skips", "frame_skip"),
        ("Ant-v5", "widht", "width"),
    ],
)
def test_an_unknown_option_is_refused_with_its_name_and_the_allowed_ones(id: str, key: str, allowed: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{id}: unknown option '{key}'; did you mean '{allowed}'.*allowed: .*"):
        make(id, 1, {key: 1})


@pytest.mark.parametrize(
    ("id", "options"),
    [
        ("CartPole-v1", {"max_episode_steps": "a"}),
        ("Ant-v5", {"xml_file": "absent.xml"}),
        ("FrozenLake-v1", {"map_name": "a"}),
    ],
)
def test_an_option_that_gymnasium_refuses_is_reported_in_one_line_that_names_the_id_and_the_options(
    id: str, options: dict[str, object]
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make(id, 1, options)
    assert caught.value.message.startswith(f"{id} refuses its options {options}: ")
    assert "\n" not in caught.value.message


def test_a_batch_has_at_least_one_lane() -> None:
    with pytest.raises(InvalidArgument, match="number of environments must be at least 1, not 0"):
        make("CartPole-v1", 0)


@pytest.mark.parametrize("device", ["cuda:99", "nonsense"])
def test_an_unavailable_device_is_named(device: str) -> None:
    with pytest.raises(Unimplemented, match=f"CartPole-v1: device '{device}' cannot be used"):
        make("CartPole-v1", 1, device=device)


@pytest.mark.parametrize("id", ["absent_package:Environment-v0", "gym:absent_package:Environment-v0"])
def test_a_gymnasium_module_that_is_not_installed_is_named(id: str) -> None:
    with pytest.raises(Unimplemented, match=f"^{id}: module 'absent_package' cannot be imported"):
        make(id, 1)


def test_a_failing_user_environment_is_named_with_its_lane_and_step(own_module: str) -> None:
    simulator = make(f"python:{own_module}:diverges", 2, seed=0)
    with pytest.raises(DataLoss, match=f"^python:{own_module}:diverges: lane 0 returned a reward that is not finite"):
        simulator.step(torch.zeros(2, dtype=torch.int64))


def test_a_missing_package_of_trading_is_named_with_an_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bokeh_sampledata", None)
    with pytest.raises(Unimplemented, match=r"package 'bokeh_sampledata' is not installed: pip install pandas"):
        make("stocks", 1)


@pytest.mark.parametrize("factory", ["one_lane", "whole_batch"])
def test_a_factory_makes_one_lane_or_the_whole_batch_as_its_signature_says(own_module: str, factory: str) -> None:
    simulator = make(f"python:{own_module}:{factory}", 3, {"steps": 5})
    assert simulator.reset(0).shape == (3, 4)


@pytest.mark.parametrize(
    ("path", "options", "line"),
    [
        ("{module}:one_lan", {}, "no function 'one_lan'; did you mean 'one_lane'"),
        ("absent_module:factory", {}, "module 'absent_module' cannot be imported"),
        ("{module}", {}, "expected python:module:name"),
        ("{module}:one_lane", {"step": 5}, "unknown option 'step'; did you mean 'steps'\\? \\(allowed: steps\\)"),
        ("{module}:whole_batch", {"count": 5}, "unknown option 'count'"),
        ("{module}:too_few", {}, "asked for 3 environments and made 2 lanes"),
        ("{module}:nothing", {}, "must return one gymnasium.Env, not NoneType"),
        ("{module}:nothing_batched", {}, "must return a simulators.Simulator, not NoneType"),
    ],
)
def test_a_wrong_import_path_or_factory_is_one_clear_line(
    own_module: str, path: str, options: dict[str, object], line: str
) -> None:
    with pytest.raises(InvalidArgument, match=line):
        make("python:" + path.format(module=own_module), 3, options)


MAKE_EACH_IN_A_FORK = """
import os, sys, simulators
for id, absent in {cases!r}:
    if not os.fork():
        try:
            simulators.make(id, 1)
            os._exit(absent in sys.modules)
        finally:
            os._exit(2)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_simulator_imports_only_what_it_needs() -> None:
    cases = (
        ("CartPole-v1", "pandas"),
        ("CartPole-v1", "mujoco"),
        ("stocks", "gymnasium"),
        ("mujoco:Ant-v5", "gymnasium"),
    )
    program = MAKE_EACH_IN_A_FORK.format(cases=cases)
    printed = subprocess.check_output([sys.executable, "-c", program], cwd=REPOSITORY, timeout=60)
    assert printed.split() == [b"0"] * len(cases)
