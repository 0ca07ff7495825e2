from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest
import torch
from ale_py import roms
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from numpy.typing import NDArray

from podrace.errors import InvalidArgument
from simulators import make
from simulators.gym.simulator import lane_seeds


class Noops:
    """A random generator that returns a known number of no-ops."""

    def __init__(self, noops: int) -> None:
        self.noops = noops

    def integers(self, low: int, high: int) -> int:
        return self.noops


def reference(seed: int, noops: int, sticky: float) -> tuple[gymnasium.Env[Any, Any], NDArray[np.uint8]]:
    """Makes Gymnasium's preprocessing of the game, started like one of the lanes, and its first observation."""
    gymnasium.register_envs(ale_py)
    game = gymnasium.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=sticky)
    ale = game.unwrapped.ale  # type: ignore[attr-defined]
    ale.setInt("random_seed", seed)
    ale.loadROM(roms.get_rom_path("breakout"))
    game.unwrapped._np_random = Noops(noops)  # type: ignore[assignment]
    preprocessed = AtariPreprocessing(game, noop_max=max(noops, 0))
    environment = FrameStackObservation(preprocessed, 4, padding_type="zero")
    return environment, environment.reset()[0]


@pytest.mark.parametrize(("sticky", "maximum_noops"), [(0.0, 0), (0.0, 30), (0.25, 30)])
def test_every_frame_equals_gymnasiums_preprocessing(sticky: float, maximum_noops: int) -> None:
    options = {"repeat_action_probability": sticky, "maximum_noops": maximum_noops}
    simulator = make("atari:Breakout", 2, options)
    first = simulator.reset(4).clone()
    noops = simulator._environments.reset(seed=np.array(seeds := [seed % 2**31 for seed in lane_seeds(4, 2)]))[1]  # type: ignore[attr-defined]
    begun = noops["frame_number"].tolist()
    assert begun == [0, 0] if maximum_noops == 0 else begun[0] != begun[1]
    lanes = [reference(seed, noops, sticky) for seed, noops in zip(seeds, begun, strict=True)]
    for lane, (_, observation) in enumerate(lanes):
        np.testing.assert_array_equal(first[lane], observation)
    actions = np.random.default_rng(0).integers(0, 4, (200, 2))
    running = [True, True]
    for action in actions:
        step = simulator.step(torch.from_numpy(action))
        for lane, (environment, _) in enumerate(lanes):
            if not running[lane]:
                continue
            observation, reward, terminated, _, _ = environment.step(int(action[lane]))
            assert (step.reward[lane].item(), bool(step.terminated[lane])) == (reward, terminated)
            shown = step.final_observation if terminated else step.observation
            np.testing.assert_array_equal(shown[lane], observation)
            running[lane] = not terminated


def test_a_finished_game_restarts_in_the_same_step_after_black_frames() -> None:
    simulator = make("atari:Breakout", 2, {"repeat_action_probability": 0.0}, seed=1)
    fire = torch.ones(2, dtype=torch.int64)
    for _ in range(400):
        step = simulator.step(fire)
        if step.terminated.any():
            break
    lane = int(step.terminated.nonzero()[0])
    assert step.observation[lane, :3].max() == 0
    assert step.observation[lane, 3].max() > 0
    assert step.final_observation[lane, 0].max() > 0


def test_a_lost_life_can_end_the_episode_while_the_game_continues() -> None:
    whole, parts = (
        make("atari:Breakout", 1, {"repeat_action_probability": 0.0, "terminal_on_life_loss": ends}, seed=1)
        for ends in (False, True)
    )
    fire, lives = torch.ones(1, dtype=torch.int64), 0
    for _ in range(400):
        one, other = whole.step(fire), parts.step(fire)
        assert torch.equal(one.observation, other.observation)
        lives += int(other.terminated)
        if one.terminated:
            assert other.terminated
            assert torch.equal(one.final_observation, other.final_observation)
            break
        if other.terminated:
            assert torch.equal(other.final_observation, other.observation)
    assert lives == 5


def test_the_limit_counts_steps_and_truncates() -> None:
    simulator = make("atari:Pong", 2, {"max_episode_steps": 6}, seed=0)
    steps = [simulator.step(torch.zeros(2, dtype=torch.int64)) for _ in range(12)]
    assert [step.truncated.tolist() for step in steps] == ([[False] * 2] * 5 + [[True] * 2]) * 2
    assert not any(step.terminated.any() for step in steps)


def test_rewards_can_be_clipped() -> None:
    rewards = []
    for is_clipped in (False, True):
        simulator = make("atari:SpaceInvaders", 2, {"clip_rewards": is_clipped}, seed=0)
        fire = torch.ones(2, dtype=torch.int64)
        rewards.append(torch.stack([simulator.step(fire).reward for _ in range(120)]))
    assert rewards[0].max() > 1
    assert torch.equal(rewards[1], rewards[0].sign())


def test_actions_are_those_of_the_game_or_all_eighteen() -> None:
    assert make("atari:breakout", 1).action_space.n == 4
    assert make("atari:breakout", 1, {"full_action_space": True}).action_space.n == 18


def test_options_change_the_observations() -> None:
    simulator = make("atari:ms_pacman", 2, {"frame_stack": 2, "frame_size": 42, "threads": 1})
    assert simulator.observation_space.shape == (2, 42, 42)
    assert simulator.reset(0).shape == (2, 2, 42, 42)


def test_lanes_do_not_depend_on_their_number() -> None:
    few, many = make("atari:MsPacman", 2), make("atari:ms_pacman", 4)
    assert torch.equal(few.reset(3), many.reset(3)[:2])
    for _ in range(20):
        action = torch.tensor([1, 2, 3, 4])
        assert torch.equal(few.step(action[:2]).observation, many.step(action).observation[:2])


@pytest.mark.parametrize(
    ("id", "options", "line"),
    [
        ("atari:Brekout", {}, "ALE has no game 'Brekout'; did you mean 'breakout'"),
        ("atari:qqq", {}, r"ALE has no game 'qqq' \(games: adventure, .*\)"),
        ("atari:Pong", {"frame_skips": 2}, "unknown option 'frame_skips'; did you mean 'frame_skip'"),
        ("atari:Pong", {"frame_skip": 0}, "option 'frame_skip' must be at least 1, not 0"),
        ("atari:Pong", {"repeat_action_probability": 1.5}, r"'repeat_action_probability' must be in \[0, 1\), not 1.5"),
        ("atari:Pong", {"clip_rewards": 1}, "option 'clip_rewards' must be bool, not 1"),
    ],
)
def test_an_impossible_game_or_option_is_refused_in_one_line(id: str, options: dict[str, object], line: str) -> None:
    with pytest.raises(InvalidArgument, match=line):
        make(id, 1, options)
