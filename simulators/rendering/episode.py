"""Plays one episode of a policy and draws it."""

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from podrace.errors import Unimplemented
from podrace.policy.runtime import Policy
from simulators.base import Simulator
from simulators.rendering.account import account_pictures
from simulators.rendering.animation import Animation
from simulators.rendering.cameras import Camera


@dataclass(frozen=True)
class PlayedEpisode:
    """What happened in an episode."""

    steps: int
    episode_return: float
    ended: bool
    """False: it was cut off after the most steps."""


def play(
    simulator: Simulator,
    policy: Policy,
    animation: Animation,
    camera: Camera | None,
    *,
    seed: int,
    sampled: bool,
    most_steps: int,
) -> PlayedEpisode:
    """Plays the first episode of the first lane after a reset, and adds its pictures to an animation.

    Args:
        simulator: A simulator with one lane.
        policy: What acts.
        animation: Receives the pictures.
        camera: Draws the simulator; None: the account is drawn at the end.
        seed: Seed of the episode, and of the actions if they are sampled.
        sampled: Whether actions are sampled.
        most_steps: Steps after which the episode is cut off.

    Raises:
        Unimplemented: There is nothing to draw.
    """
    observation, total, steps, ended = simulator.reset(seed), 0.0, 0, False
    random = np.random.default_rng(seed) if sampled else None
    policy.reset()
    while not ended and steps < most_steps:
        # Before the step: the lane is reset in the one that ends the episode, so its last state cannot be drawn.
        _add(animation, camera)
        actions = torch.as_tensor(np.asarray(policy.act(observation.numpy(), random)))
        step = simulator.step(actions)
        total, steps = total + float(step.reward[0]), steps + 1
        observation, ended = step.observation, bool(step.terminated[0] | step.truncated[0])
    if camera is None:
        _add_account(simulator, animation, ended)
    return PlayedEpisode(steps, total, ended)


def _add(animation: Animation, camera: Camera | None) -> None:
    if camera is None:
        return
    if animation.wants_next:
        animation.add(Image.fromarray(camera.picture()))
    else:
        animation.skip()


def _add_account(simulator: Simulator, animation: Animation, ended: bool) -> None:
    report = simulator.report() if ended else None
    if report is None or not report.traces.get("account_value"):
        raise Unimplemented(
            "stocks: the account can be drawn only of an episode over a whole split; name one with --option"
            " split=validation or split=backtest, and do not limit the steps"
        )
    for picture in account_pictures(report, animation.most):
        animation.add(picture)
