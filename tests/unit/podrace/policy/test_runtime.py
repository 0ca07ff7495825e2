"""A loaded policy acts on single observations and on batches, keeps its state, and samples as its head says."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from policies import CASES, published

import podrace
from agentpod.models.description import random_observations
from podrace.errors import DataLoss, InvalidArgument, NotFound
from podrace.policy.loading import onnx_file
from podrace.policy.runtime import Policy
from podrace.spaces.entries import flattened

OBSERVATIONS = np.array([[0.5, -2.1, 3.0], [-4.0, -2.0, 0.1]], np.float32)


def loaded(case: str) -> Policy:
    return Policy(onnx_file([published(case).checkpoint]))


def test_a_file_acts_on_one_observation_and_on_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    path.write_bytes(onnx_file([published("gaussian").checkpoint]))
    policy = podrace.load_policy(path)
    one, both = policy.act(OBSERVATIONS[0]), policy.act(OBSERVATIONS)
    assert one.shape == (2, 1)
    assert np.allclose(both[0], one)
    assert isinstance(loaded("logits").act(list(map(float, OBSERVATIONS[1]))), int)
    assert policy.members[0].agent_id == "race-1-a3"


def test_the_state_is_carried_within_an_episode_and_cleared_lane_by_lane() -> None:
    policy = loaded("recurrent-force")
    first, second = policy.act(OBSERVATIONS), policy.act(OBSERVATIONS)
    assert not np.allclose(first, second)
    policy.reset(np.array([True, False]))
    third = policy.act(OBSERVATIONS)
    assert np.allclose(third[0], first[0])
    assert not np.allclose(third[1], first[1])
    with pytest.raises(InvalidArgument, match=r"1 observations after 2: call reset\(\)"):
        policy.act(OBSERVATIONS[0])
    policy.reset()
    assert np.allclose(policy.act(OBSERVATIONS[0]), first[0])


@pytest.mark.parametrize("case", ["gaussian", "squashed", "deterministic"])
def test_sampled_actions_have_the_moments_of_the_head(case: str) -> None:
    made, count = published(case), 20_000
    policy = Policy(onnx_file([made.checkpoint]))
    observation = np.repeat(OBSERVATIONS[:1], count, 0)
    noise = made.policy.noise((count,), torch.Generator().manual_seed(1))
    wanted = made.policy.to_environment(made.policy.act(torch.from_numpy(observation), noise)).flatten(1).numpy()
    found = policy.act(observation, np.random.default_rng(1)).reshape(count, -1)
    assert np.abs(found.mean(0) - wanted.mean(0)).max() < 0.05 * wanted.std(0).max()
    assert np.abs(found.std(0) - wanted.std(0)).max() < 0.05 * wanted.std(0).max()


@pytest.mark.parametrize("case", ["dict", "dict-values", "dict-dueling", "dict-pair", "grid", "flags"])
def test_sampled_choices_of_entries_and_elements_have_the_frequencies_of_the_head(case: str) -> None:
    made, count = published(case), 20_000
    row = random_observations(made.policy, 2, torch.Generator().manual_seed(2))[1]
    rows = row.expand(count, -1)
    noise = made.policy.noise((count,), torch.Generator().manual_seed(1))
    wanted = made.policy.to_environment(made.policy.act(rows, noise)).reshape(count, -1)
    found = loaded(case).act(rows.numpy(), np.random.default_rng(1)).reshape(count, -1)
    for one, other in zip(found.T, wanted.T.numpy(), strict=True):
        assert np.abs(np.bincount(one, minlength=5) - np.bincount(other, minlength=5)).max() < 0.03 * count


def test_a_policy_acts_on_what_the_environment_returns(tmp_path: Path) -> None:
    policy, made = loaded("dict"), published("dict").policy
    observation = {
        "camera": np.full((12, 14, 3), 7, np.uint8),
        "place": {"x": np.array([0.5, -1.0], np.float32)},
        "kind": np.array([3, 1]),
        "lamps": np.array([1, 0], np.int8),
        "action_mask": np.array([0, 1, 1, 0], np.int8),
    }
    row = flattened(CASES["dict"][0].entries, observation)
    wanted = int(made.act_greedily(torch.from_numpy(row).unsqueeze(0))[0])
    assert policy.act(observation) == policy.act(row) == wanted
    stacked = {name: np.stack([part] * 3) for name, part in observation.items() if name != "place"}
    stacked["place"] = {"x": np.stack([observation["place"]["x"]] * 3)}
    assert policy.act(stacked).tolist() == [wanted] * 3
    with pytest.raises(InvalidArgument, match=r"an observation whose entry 'place.x' is absent"):
        policy.act({**observation, "place": {}})


@pytest.mark.parametrize("case", ["logits", "values"])
def test_sampled_choices_have_the_frequencies_of_the_head(case: str) -> None:
    made, count = published(case), 20_000
    observation = np.repeat(OBSERVATIONS[1:], count, 0)
    noise = made.policy.noise((count,), torch.Generator().manual_seed(1))
    wanted = np.bincount(made.policy.act(torch.from_numpy(observation), noise).numpy(), minlength=4)
    found = np.bincount(loaded(case).act(observation, np.random.default_rng(1)), minlength=4)
    assert np.abs(found - wanted).max() < 0.03 * count


def test_a_policy_acts_on_the_numbers_of_an_environment_that_observes_one_of_several_choices() -> None:
    policy, rows = loaded("number"), np.eye(5, dtype=np.float32)
    wanted = policy.act(rows).tolist()
    # As many lanes as choices: numbers are not mistaken for a row.
    assert policy.act(np.arange(5)).tolist() == wanted
    assert [policy.act(np.int64(number)) for number in range(5)] == wanted
    assert policy.act(rows[3]) == policy.act(3) == wanted[3]
    for wrong in (5, -1, np.array([0, 5])):
        with pytest.raises(InvalidArgument, match="expected numbers from 0 to 4"):
            policy.act(wrong)


@pytest.mark.parametrize(
    ("case", "observation", "line"),
    [
        ("gaussian", np.zeros(4), r"an observation of shape \[4\]: expected \[3\]"),
        ("gaussian", [0.0, np.nan, 1.0], "observation: row 0 has a number that is not finite"),
        ("gaussian", np.array([[0.0, 1.0, 1.0], [0.0, np.inf, 1.0]]), "observation: row 1 has a number"),
        ("gaussian", 1e39 * np.ones(3), "observation: row 0 has a number that is not finite"),
        ("gaussian", "text", "expected real numbers"),
        ("gaussian", None, "expected real numbers"),
        ("gaussian", np.zeros(3, np.complex64), "an observation of the type complex64: expected real numbers"),
        ("gaussian", [[0.0], [1.0, 2.0]], "whose parts have different shapes"),
        ("flat-pixels", np.full((12, 14, 3), 0.5, np.float32), r"float32: expected bytes from 0 to 255 \(uint8\)"),
        ("flat-pixels", np.full((12, 14, 3), 256), "int64: expected bytes from 0 to 255"),
        ("recurrent", [0.0, np.nan, 1.0], "observation: row 0 has a number that is not finite"),
    ],
)
def test_an_observation_that_cannot_be_acted_on_is_refused(case: str, observation: Any, line: str) -> None:
    policy = loaded(case)
    with pytest.raises(InvalidArgument, match=line):
        policy.act(observation)


def test_a_refused_observation_does_not_change_the_recurrent_state() -> None:
    policy, fresh = loaded("recurrent-force"), loaded("recurrent-force")
    for one in (policy, fresh):
        one.act(OBSERVATIONS)
    with pytest.raises(InvalidArgument, match="not finite"):
        policy.act(np.full_like(OBSERVATIONS, np.nan))
    assert np.array_equal(policy.act(OBSERVATIONS), fresh.act(OBSERVATIONS))


def test_a_folder_of_an_export_is_loaded_and_what_is_no_policy_is_refused(tmp_path: Path) -> None:
    (tmp_path / "policy.onnx").write_bytes(onnx_file([published("logits").checkpoint]))
    assert podrace.load_policy(tmp_path).act(OBSERVATIONS).shape == (2,)
    with pytest.raises(DataLoss, match="not a usable ONNX file"):
        Policy(b"not a model")
    (tmp_path / "card.json").write_text("{}")
    with pytest.raises(DataLoss, match=r"card.json is not a policy that `podrace export --format onnx` wrote"):
        podrace.load_policy(tmp_path / "card.json")
    for missing in (tmp_path / "missing.onnx", tmp_path.parent / "nowhere"):
        with pytest.raises(NotFound, match="there is no such file"):
            podrace.load_policy(missing)


def test_importing_podrace_loads_neither_numpy_nor_torch_and_acting_loads_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    path.write_bytes(onnx_file([published("recurrent").checkpoint]))
    program = (
        "import sys, podrace\n"
        "assert not {'numpy', 'torch', 'onnxruntime'} & set(sys.modules), 'import podrace'\n"
        f"podrace.load_policy({str(path)!r}).act([0.0, 1.0, 2.0])\n"
        "assert not {'torch', 'onnx', 'safetensors', 'gymnasium'} & set(sys.modules), 'acting'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
