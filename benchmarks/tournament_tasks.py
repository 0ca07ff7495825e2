"""Owns two cheap tasks on which the hyperparameters that learn fastest at first are not those that end best.

    [environment]
    id = "python:benchmarks.tournament_tasks:docking"

Both are continuous control of one number, stepped as the classic tasks are. Each says what deceives, which was seen
with single agents of fixed hyperparameters; neither knows of populations.
"""

import math
from types import ModuleType

import torch

from simulators.base import Space
from simulators.classic import ClassicOnProcessors
from simulators.classic_tasks import Array, Outcome, State


def docking(count: int) -> ClassicOnProcessors:
    """`count` lanes of Docking."""
    return ClassicOnProcessors(Docking(), count, Docking.maximum_steps)


def swing(count: int) -> ClassicOnProcessors:
    """`count` lanes of Swing."""
    return ClassicOnProcessors(Swing(), count, Swing.maximum_steps)


class Docking:
    """A mass on a line is to be brought to rest at a place, and every digit of precision is worth the same.

    The reward of a step is -log10(distance + 1e-5): 0 at a distance of 1, 5 at the place itself.

    What deceives: coarse control is learned the faster, the larger the learning rate, and the last digits only with a
    small one; a rate that stays is either late or never fine, and the fastest rates fall back again. (With minibatches
    of 512 the algorithm's default rate is near the best that stays; tournament.py takes 2,048, a quarter of the
    gradient steps, for which it is far too small.)
    """

    _thrust, _seconds, _finest = 4.0, 0.05, 1e-5

    observation_space = Space("continuous", (3,), torch.float32)
    action_space = Space("continuous", (1,), torch.float32, (-1.0,), (1.0,))
    state_size, maximum_steps = 3, 100

    def begin(self, noise: State) -> State:
        """See simulators.classic_tasks.Task."""
        return tuple(number * 2.0 - 1.0 for number in noise)

    def advance(self, library: ModuleType, state: State, action: Array) -> Outcome:
        """See simulators.classic_tasks.Task."""
        place, speed, goal = state
        speed = speed + self._thrust * self._seconds * library.clip(action, -1.0, 1.0)
        place = place + speed * self._seconds
        return Outcome((place, speed, goal), -library.log10(abs(place - goal) + self._finest), False)

    def observe(self, library: ModuleType, state: State) -> State:
        """See simulators.classic_tasks.Task: how far off, how fast."""
        place, speed, goal = state
        return place - goal, speed, goal


class Swing:
    """Pendulum-v1 with a quarter of its torque, for 300 steps: it must swing several times before it stands.

    What deceives: damping a pendulum that begins near the top pays within a few steps and is learned fastest with a
    small discount and a large learning rate, which then stay at it; to gather momentum costs at first, and is found
    with a larger discount, later. The algorithm's own defaults are slow at either.
    """

    _gravity, _seconds, _torque_limit, _speed_limit = 10.0, 0.05, 0.5, 8.0

    observation_space = Space("continuous", (3,), torch.float32)
    action_space = Space("continuous", (1,), torch.float32, (-_torque_limit,), (_torque_limit,))
    state_size, maximum_steps = 2, 300

    def begin(self, noise: State) -> State:
        """See simulators.classic_tasks.Task."""
        angle, speed = noise
        return angle * math.tau - math.pi, speed * 2.0 - 1.0

    def advance(self, library: ModuleType, state: State, action: Array) -> Outcome:
        """See simulators.classic_tasks.Task; the cost is Gymnasium's."""
        angle, speed = state
        torque = library.clip(action, -self._torque_limit, self._torque_limit)
        off = (angle + math.pi) % math.tau - math.pi
        cost = off * off + 0.1 * speed * speed + 0.001 * torque * torque
        speed = speed + (1.5 * self._gravity * library.sin(angle) + 3.0 * torque) * self._seconds
        speed = library.clip(speed, -self._speed_limit, self._speed_limit)
        return Outcome((angle + speed * self._seconds, speed), -cost, False)

    def observe(self, library: ModuleType, state: State) -> State:
        """See simulators.classic_tasks.Task."""
        angle, speed = state
        return library.cos(angle), library.sin(angle), speed
