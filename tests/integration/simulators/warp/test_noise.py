"""The numbers of simulators.noise, computed by torch."""

import numpy as np
import pytest
import torch

from simulators import noise
from simulators.warp.noise import LaneNoise, mixed, normal

EPISODES = torch.tensor([0, 1, 2, 70_000, (1 << 32) - 1])


@pytest.mark.parametrize("seed", [0, 7, 1 << 80])
def test_numbers_equal_those_of_the_cpu_to_the_last_bit(seed: int) -> None:
    ours = LaneNoise(5, torch.device("cpu"))
    ours.seed(seed)
    theirs = noise.EpisodeNoise(seed).uniform(np.arange(5), EPISODES.numpy(), 12)
    np.testing.assert_array_equal(ours.uniform(EPISODES, 12).numpy(), theirs)
    np.testing.assert_allclose(normal(torch.from_numpy(theirs)).numpy(), noise.normal(theirs), rtol=0, atol=1e-14)


def test_words_are_mixed_as_unsigned_words() -> None:
    words = np.array([0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 0x9E3779B97F4A7C15], np.uint64)
    np.testing.assert_array_equal(
        mixed(torch.from_numpy(words.view(np.int64))).numpy().view(np.uint64), noise.mixed(words)
    )


def test_a_lanes_numbers_depend_only_on_seed_lane_and_episode() -> None:
    few, many = LaneNoise(2, torch.device("cpu")), LaneNoise(5, torch.device("cpu"))
    for lanes in (few, many):
        lanes.seed(3)
    assert torch.equal(few.uniform(EPISODES[:2], 4), many.uniform(EPISODES, 9)[:2, :4])


def test_a_new_seed_takes_effect_in_the_same_tensors() -> None:
    lanes = LaneNoise(3, torch.device("cpu"))
    root = lanes._root
    lanes.seed(1)
    first = lanes.uniform(EPISODES[:3], 4)
    lanes.seed(2)
    assert lanes._root is root
    assert not torch.equal(lanes.uniform(EPISODES[:3], 4), first)
