"""Steps games of the Arcade Learning Environment on its C++ threads, with the usual preprocessing: `atari:Breakout`.

An observation is the last 4 frames, [N, 4, 84, 84] uint8. Frames are 4 emulator frames apart; each is the maximum of
two emulator frames, in gray, resized to 84 x 84 by area (Mnih et al. 2015; Machado et al. 2018 for the sticky actions).
They equal those of gymnasium.wrappers.AtariPreprocessing bit for bit. In a new episode, the frames before the first
one are black, as in FrameStackObservation with padding_type "zero".

| Option | Default | Meaning |
|---|---|---|
| `frame_skip` | 4 | emulator frames per step; the action is repeated, rewards are summed |
| `frame_stack` | 4 | frames per observation |
| `frame_size` | 84 | height and width of a frame, in pixels |
| `maximum_noops` | 30 | an episode starts after a random number of no-op steps below this one |
| `fire_on_reset` | false | starts an episode with FIRE if the game has that action |
| `repeat_action_probability` | 0.25 | probability of repeating the last action in a frame; ALE's `-v5` 0.25, `-v4` 0 |
| `clip_rewards` | false | replaces a reward by its sign |
| `terminal_on_life_loss` | false | the loss of a life ends the episode; the next one continues from the same position |
| `full_action_space` | false | all 18 actions, including those without an effect in the game |
| `max_episode_steps` | 27000 | steps after which an episode is truncated: half an hour at 60 frames per second |
| `threads` | 0 | 0 = one per core that this process may use, but no more than lanes |
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from numpy.typing import NDArray
from torch import Tensor

from podrace.errors import InvalidArgument, Unimplemented
from simulators.base import Report, Space, Step
from simulators.gym.simulator import lane_seeds
from simulators.options import closest, parse_options

PREFIX = "atari:"
Information = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class AtariOptions:
    """Options of a specification; see the table above."""

    frame_skip: int = 4
    frame_stack: int = 4
    frame_size: int = 84
    maximum_noops: int = 30
    fire_on_reset: bool = False
    repeat_action_probability: float = 0.25
    clip_rewards: bool = False
    terminal_on_life_loss: bool = False
    full_action_space: bool = False
    max_episode_steps: int = 27_000
    threads: int = 0


def make(id: str, count: int, options: Mapping[str, object], device: str) -> "AtariSimulator":
    """Makes `count` lanes of a game.

    Args:
        id: "atari:" and the name of a game, as `MsPacman` or `ms_pacman`.
        count: Number of lanes.
        options: Fields of AtariOptions.
        device: Where observations are returned.

    Raises:
        InvalidArgument: The game or an option is unknown, or a value cannot be used.
        Unimplemented: The game's ROM file is not installed.
        ModuleNotFoundError: ALE is not installed.
    """
    name = id.removeprefix(PREFIX)
    games = {game.replace("_", ""): game for game in roms.get_all_rom_ids()}
    game = games.get(name.replace("_", "").lower())
    if game is None:
        hint = closest(name.lower(), games.values()) or f" (games: {', '.join(games.values())})"
        raise InvalidArgument(f"{id}: ALE has no game {name!r}{hint}")
    settings = parse_options(id, options, AtariOptions)
    _check(id, settings)
    try:
        return AtariSimulator(game, count, settings, device)
    except OSError as error:
        raise Unimplemented(f"{id}: the ROM file of the game is missing: {error}") from error


def _check(id: str, options: AtariOptions) -> None:
    minima = {
        "frame_skip": 1,
        "frame_stack": 1,
        "frame_size": 1,
        "maximum_noops": 0,
        "max_episode_steps": 1,
        "threads": 0,
    }
    for name, minimum in minima.items():
        if getattr(options, name) < minimum:
            raise InvalidArgument(f"{id}: option {name!r} must be at least {minimum}, not {getattr(options, name)}")
    if not 0 <= options.repeat_action_probability < 1:
        raise InvalidArgument(
            f"{id}: option 'repeat_action_probability' must be in [0, 1), not {options.repeat_action_probability}"
        )


class AtariSimulator:
    """N lanes of one game. See simulators.base.Simulator for the methods.

    Attributes:
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of lanes, N.
        action_meanings: ALE's name of each action.
    """

    def __init__(self, game: str, count: int, options: AtariOptions, device: str = "cpu") -> None:
        """Loads the game for every lane; `reset` starts the episodes.

        Args:
            game: ALE's name of the game.
            count: Number of lanes.
            options: Options of the game and its preprocessing.
            device: Where observations are returned.

        Raises:
            OSError: The ROM file of the game is missing.
        """
        self.count = count
        self._terminal_on_life_loss = options.terminal_on_life_loss
        self._device = torch.device(device)
        self._environments = AtariVectorEnv(
            game,
            count,
            num_threads=options.threads or min(len(os.sched_getaffinity(0)), count),
            max_num_frames_per_episode=options.max_episode_steps * options.frame_skip,
            repeat_action_probability=options.repeat_action_probability,
            full_action_space=options.full_action_space,
            autoreset_mode="SameStep",
            img_height=options.frame_size,
            img_width=options.frame_size,
            stack_num=options.frame_stack,
            frameskip=options.frame_skip,
            maxpool=options.frame_skip > 1,
            noop_max=options.maximum_noops,
            life_loss_info=options.terminal_on_life_loss,
            reward_clipping=options.clip_rewards,
            use_fire_reset=options.fire_on_reset,
        )
        self.action_meanings = [action.name for action in self._environments.ale.get_action_set()]
        shape = (options.frame_stack, options.frame_size, options.frame_size)
        elements = int(np.prod(shape))
        self.observation_space = Space("continuous", shape, torch.uint8, (0.0,) * elements, (255.0,) * elements)
        self.action_space = Space("discrete", (), torch.int64, n=len(self.action_meanings))
        self._final_observation = torch.zeros((count, *shape), dtype=torch.uint8)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator; ALE loads the game again with its seed, which takes 0.1 s per lane."""
        seeds = np.array([lane_seed % 2**31 for lane_seed in lane_seeds(seed, self.count)])
        observation, information = self._environments.reset(seed=seeds)
        self._remember(information)
        return torch.from_numpy(observation).to(self._device)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        observation, reward, terminated, truncated, information = self._environments.step(action.cpu().numpy())
        truncated &= ~terminated
        ended = terminated | truncated
        if ended.any():
            continues = terminated & self._continues(information)
            final = self._final_observation.numpy()
            final[ended] = information["final_obs"][ended]
            # Where a game continues after the loss of a life, ALE keeps no final observation: it is the next one.
            final[continues] = observation[continues]
        self._remember(information)
        return Step(
            observation=torch.from_numpy(observation).to(self._device),
            reward=torch.from_numpy(reward.astype(np.float32)).to(self._device),
            terminated=torch.from_numpy(terminated).to(self._device),
            truncated=torch.from_numpy(truncated).to(self._device),
            final_observation=self._final_observation.to(self._device),
        )

    def _remember(self, information: Information) -> None:
        self._lives, self._frames = information["lives"].copy(), information["episode_frame_number"].copy()

    def _continues(self, information: Information) -> NDArray[np.bool_]:
        """Which games were not restarted: those with fewer lives and more frames than before."""
        has_less: NDArray[np.bool_] = information["lives"] < self._lives
        return has_less & (information["episode_frame_number"] > self._frames) & self._terminal_on_life_loss

    def report(self) -> Report:
        """Returns an empty report: these games have no measure except the return."""
        return Report()

    def close(self) -> None:
        """Frees the emulators and their threads."""
        self._environments.close()
