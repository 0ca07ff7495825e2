"""Models that Stable-Baselines3 2.9 saved act in podrace as in Stable-Baselines3, and nothing in them is executed."""

import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from agentpod.imports.conversion import convert
from agentpod.imports.model_file import read_model
from agentpod.imports.statistics_file import read_statistics
from podrace.errors import InvalidArgument, NotFound
from simulators.base import Space

pytestmark = pytest.mark.long
SB3 = Path(__file__).parents[3] / "fixtures/sb3"
ACTIONS = np.load(SB3 / "actions.npz")


def vector(size: int) -> Space:
    return Space("continuous", (size,), torch.float32)


CHOICES = Space("discrete", (), torch.int64, n=2)
SWITCHES = Space("multi_discrete", (2,), torch.int64, choices=(3, 2))
TORQUE = Space("continuous", (1,), torch.float32, low=(-2.0,), high=(2.0,))
ARM = Space("continuous", (2,), torch.float32, low=(-1.0, 0.0), high=(3.0, 5.0))
MODELS = {
    "ppo-cartpole": ("ppo", (8, 6), "relu", CHOICES),
    "ppo-arm": ("ppo", (8,), "tanh", ARM),
    "ppo-normalized": ("ppo", (8, 6), "tanh", TORQUE),
    "a2c-switches": ("a2c", (8, 6), "tanh", SWITCHES),
    "sac-pendulum": ("sac", (8, 6), "relu", TORQUE),
    "td3-arm": ("td3", (8, 6), "relu", ARM),
    "ddpg-pendulum": ("td3", (8, 6), "relu", TORQUE),
    "dqn-cartpole": ("dqn", (8, 6), "relu", CHOICES),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_acts_as_it_does_in_stable_baselines3(name: str):
    algorithm, layers, activation, actions = MODELS[name]
    observation = torch.from_numpy(ACTIONS[f"{name}.observation"])
    kept = SB3 / f"{name}.pkl"
    statistics = read_statistics(kept, observation.shape[1]) if kept.exists() else None
    found = convert(read_model(SB3 / f"{name}.zip"), vector(observation.shape[1]), actions, statistics)
    policy = found.policy
    assert (found.algorithm, policy.network.hidden_sizes, policy.network.activation) == (algorithm, layers, activation)
    outputs, _ = policy.advance(observation, policy.initial_state(len(observation)))
    acted = policy.to_environment(policy.head.mode(outputs)).numpy()
    wanted = ACTIONS[f"{name}.action"]
    if actions.kind == "continuous":
        assert np.abs(acted - wanted).max() < 1e-5
    else:
        assert (acted == wanted).all()
    assert len(np.unique(wanted.round(3), axis=0)) > 1, "a model that acts alike everywhere shows nothing"


def test_the_deviation_of_a_gaussian_is_in_units_of_the_policy():
    model = read_model(SB3 / "ppo-arm.zip")
    found = convert(model, vector(3), ARM).policy.tensors()["log_std"]
    scale = torch.tensor([2.0, 2.5])
    torch.testing.assert_close(found.exp() * scale, model.tensors["log_std"].exp())


@pytest.mark.parametrize(
    ("observed", "acted"), [(3, CHOICES), (4, TORQUE), (4, Space("discrete", (), torch.int64, n=3))]
)
def test_a_model_of_another_environment_is_refused(observed: int, acted: Space):
    with pytest.raises(InvalidArgument, match="is it the same one"):
        convert(
            read_model(SB3 / "dqn-cartpole.zip" if acted.kind == "discrete" else SB3 / "ppo-arm.zip"),
            vector(observed),
            acted,
        )


def test_images_are_refused():
    image = Space("continuous", (84, 84, 3), torch.uint8)
    with pytest.raises(InvalidArgument, match="vectors of numbers"):
        convert(read_model(SB3 / "dqn-cartpole.zip"), image, CHOICES)


def changed(path: Path, part: str, content: bytes) -> Path:
    """Returns a copy of a model with another part."""
    target = path.with_name("changed.zip")
    with zipfile.ZipFile(SB3 / "dqn-cartpole.zip") as source, zipfile.ZipFile(target, "w") as copy:
        for name in source.namelist():
            copy.writestr(name, content if name == part else source.read(name))
    return target


class Mark:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_nothing_that_a_model_or_its_statistics_pickle_is_executed(tmp_path: Path):
    mark = tmp_path / "executed"
    parameters = tmp_path / "policy.pth"
    torch.save({"q_net.q_net.0.weight": Mark(mark)}, parameters)
    with pytest.raises(InvalidArgument, match="damaged, or not a model"):
        read_model(changed(tmp_path / "x", "policy.pth", parameters.read_bytes()))
    statistics = tmp_path / "statistics.pkl"
    statistics.write_bytes(pickle.dumps(Mark(mark)))
    with pytest.raises(InvalidArgument, match="no statistics of VecNormalize"):
        read_statistics(statistics, 3)
    assert not mark.exists()
    pickle.loads(statistics.read_bytes())
    assert mark.exists(), "the files would have done it"


def test_models_that_are_not_converted_are_refused_with_the_reason(tmp_path: Path):
    def model(settings: dict[str, object]) -> Path:
        return changed(tmp_path / "x", "data", json.dumps(settings).encode())

    with pytest.raises(InvalidArgument, match="use_sde"):
        convert(read_model(model({"use_sde": True})), vector(4), CHOICES)
    gelu = read_model(model({"policy_kwargs": {"activation_fn": "<class 'torch.nn.modules.activation.GELU'>"}}))
    with pytest.raises(InvalidArgument, match="activation_fn GELU"):
        convert(gelu, vector(4), CHOICES)
    with pytest.raises(InvalidArgument, match="not a model of Stable-Baselines3"):
        read_model(model([]))
    parameters = tmp_path / "policy.pth"
    torch.save({"lstm_actor.weight_ih_l0": torch.zeros(1), "action_net.weight": torch.zeros(1)}, parameters)
    with pytest.raises(InvalidArgument, match="none of PPO, A2C"):
        convert(read_model(changed(tmp_path / "x", "policy.pth", parameters.read_bytes())), vector(4), CHOICES)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path):
    with pytest.raises(NotFound):
        read_model(tmp_path / "absent.zip")
    (tmp_path / "text.zip").write_text("text")
    with pytest.raises(InvalidArgument, match="damaged, or not a model"):
        read_model(tmp_path / "text.zip")
    whole = (SB3 / "dqn-cartpole.zip").read_bytes()
    (tmp_path / "half.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidArgument, match="not a model"):
        read_model(tmp_path / "half.zip")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    with pytest.raises(InvalidArgument, match="not a model"):
        read_model(tmp_path / "empty.zip")


def test_statistics_of_another_size_are_refused():
    with pytest.raises(InvalidArgument, match="no statistics of 4 observed numbers"):
        read_statistics(SB3 / "ppo-normalized.pkl", 4)
