"""Defines two cheap tasks on which the hyperparameters that learn fastest at first do not end best.

    [environment]
    id = "python:benchmarks.tournament_tasks:docking"

Both control one continuous number, and are stepped like the classic tasks. The docstring of each says why it is
deceptive, as observed with single agents of fixed hyperparameters; neither is tailored to populations.
"""

import math
from types import ModuleType

import torch

from simulators.base import Space
from simulators.classic import ClassicOnCpu
from simulators.classic_tasks import Array, ClassicOutcome, State


def docking(count: int) -> ClassicOnCpu:
    """Makes `count` lanes of Docking."""
    return ClassicOnCpu(Docking(), count, Docking.maximum_steps)


def swing(count: int) -> ClassicOnCpu:
    """Makes `count` lanes of Swing."""
    return ClassicOnCpu(Swing(), count, Swing.maximum_steps)


class Docking:
    """A mass on a line must come to rest at a goal; every digit of precision has the same reward.

    The reward of a step is -log10(distance + 1e-5): 0 at a distance of 1, 5 at the goal.

    Why it is deceptive: the larger the learning rate, the faster coarse control is learned, but the last digits need a
    small one. A constant rate is either slow or never precise, and the fastest rates lose precision again. (With
    minibatches of 512 the algorithm's default rate is close to the best constant one. tournament.py uses 2,048, a
    quarter of the gradient steps, for which the default rate is far too small.)
    """

    _thrust, _seconds, _finest = 4.0, 0.05, 1e-5

    observation_space = Space("continuous", (3,), torch.float32)
    action_space = Space("continuous", (1,), torch.float32, (-1.0,), (1.0,))
    state_size, maximum_steps = 3, 100

    def begin(self, noise: State) -> State:
        """See simulators.classic_tasks.ClassicTask."""
        return tuple(number * 2.0 - 1.0 for number in noise)

    def advance(self, library: ModuleType, state: State, action: Array) -> ClassicOutcome:
        """See simulators.classic_tasks.ClassicTask."""
        place, speed, goal = state
        speed = speed + self._thrust * self._seconds * library.clip(action, -1.0, 1.0)
        place = place + speed * self._seconds
        return ClassicOutcome((place, speed, goal), -library.log10(abs(place - goal) + self._finest), False)

    def observe(self, library: ModuleType, state: State) -> State:
        """See simulators.classic_tasks.ClassicTask: distance, speed and goal."""
        place, speed, goal = state
        return place - goal, speed, goal


class Swing:
    """Pendulum-v1 with a quarter of its torque, for 300 steps: it must swing several times to reach the top.

    Why it is deceptive: damping a pendulum that starts near the top pays off within a few steps. It is learned fastest
    with a small discount and a large learning rate, which then do not get beyond it. Gathering momentum costs at first,
    and is learned later, with a larger discount. The algorithm's defaults are slow at both.
    """

    _gravity, _seconds, _torque_limit, _speed_limit = 10.0, 0.05, 0.5, 8.0

    observation_space = Space("continuous", (3,), torch.float32)
    action_space = Space("continuous", (1,), torch.float32, (-_torque_limit,), (_torque_limit,))
    state_size, maximum_steps = 2, 300

    def begin(self, noise: State) -> State:
        """See simulators.classic_tasks.ClassicTask."""
        angle, speed = noise
        return angle * math.tau - math.pi, speed * 2.0 - 1.0

    def advance(self, library: ModuleType, state: State, action: Array) -> ClassicOutcome:
        """See simulators.classic_tasks.ClassicTask; the cost is Gymnasium's."""
        angle, speed = state
        torque = library.clip(action, -self._torque_limit, self._torque_limit)
        off = (angle + math.pi) % math.tau - math.pi
        cost = off * off + 0.1 * speed * speed + 0.001 * torque * torque
        speed = speed + (1.5 * self._gravity * library.sin(angle) + 3.0 * torque) * self._seconds
        speed = library.clip(speed, -self._speed_limit, self._speed_limit)
        return ClassicOutcome((angle + speed * self._seconds, speed), -cost, False)

    def observe(self, library: ModuleType, state: State) -> State:
        """See simulators.classic_tasks.ClassicTask."""
        angle, speed = state
        return library.cos(angle), library.sin(angle), speed
