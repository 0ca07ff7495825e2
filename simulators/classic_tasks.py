"""Defines the equations of Gymnasium's classic control tasks, written once for both numpy and torch.

An *array* is of either library: [N] float32, one number per lane. A state is a tuple of arrays.
"""

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import torch

from simulators.base import Space

Array = Any
State = tuple[Array, ...]

_TURN = 2.0 * math.pi


@dataclass(frozen=True)
class ClassicOutcome:
    """The results of one step for every lane."""

    state: State
    reward: Array | float
    terminated: Array | bool


class ClassicTask(Protocol):
    """A task: pure equations without memory.

    Attributes:
        observation_space: What each lane observes.
        action_space: What each lane accepts.
        state_size: Number of arrays in a state.
        maximum_steps: Steps after which an episode is truncated.
    """

    observation_space: Space
    action_space: Space
    state_size: int
    maximum_steps: int

    def begin(self, noise: State) -> State:
        """Computes first states from `state_size` arrays of numbers uniform in [0, 1)."""
        ...

    def advance(self, library: ModuleType, state: State, action: Array) -> ClassicOutcome:
        """Computes one step; `action` is [N] float32, the index of the choice for discrete actions."""
        ...

    def observe(self, library: ModuleType, state: State) -> State:
        """Computes the observation of a state: one array per element of the observation."""
        ...


def _bounded(*limits: float) -> Space:
    return Space("continuous", (len(limits),), torch.float32, tuple(-limit for limit in limits), limits)


def _choices(n: int) -> Space:
    return Space("discrete", (), torch.int64, n=n)


def _wrapped(angle: Array) -> Array:
    """Returns the same angle in [-pi, pi)."""
    return (angle + math.pi) % _TURN - math.pi


class CartPole:
    """CartPole-v1 (Barto, Sutton and Anderson 1983; equations: Florian 2007): two pushes keep a pole upright."""

    _gravity, _half_length, _seconds = 9.8, 0.5, 0.02
    # A force of 10 on a cart of mass 1 with a pole of mass 0.1; both as shares of the total mass.
    _push, _pole_share = 10.0 / 1.1, 0.1 / 1.1
    _moment = _pole_share * _half_length
    _angle_limit, _position_limit = 12 * _TURN / 360, 2.4

    observation_space = _bounded(2 * _position_limit, math.inf, 2 * _angle_limit, math.inf)
    action_space = _choices(2)
    state_size, maximum_steps = 4, 500

    def begin(self, noise: State) -> State:
        """See ClassicTask."""
        return tuple(number * 0.1 - 0.05 for number in noise)

    def advance(self, library: ModuleType, state: State, action: Array) -> ClassicOutcome:
        """See ClassicTask."""
        position, velocity, angle, turn = state
        sine, cosine = library.sin(angle), library.cos(angle)
        push = action * (2.0 * self._push) - self._push + self._moment * turn * turn * sine
        weight = self._half_length * 4.0 / 3.0 - self._moment * cosine * cosine
        turn_rate = (self._gravity * sine - cosine * push) / weight
        rate = push - self._moment * turn_rate * cosine
        # Euler: positions use the velocities before the step.
        position, angle = position + self._seconds * velocity, angle + self._seconds * turn
        velocity, turn = velocity + self._seconds * rate, turn + self._seconds * turn_rate
        fallen = (abs(position) > self._position_limit) | (abs(angle) > self._angle_limit)
        return ClassicOutcome((position, velocity, angle, turn), 1.0, fallen)

    def observe(self, library: ModuleType, state: State) -> State:
        """See ClassicTask."""
        return state


class Pendulum:
    """Pendulum-v1: a torque swings a rod up and holds it there; the cost is Gymnasium's."""

    _gravity, _seconds, _torque_limit, _speed_limit = 10.0, 0.05, 2.0, 8.0

    observation_space = _bounded(1.0, 1.0, _speed_limit)
    action_space = _bounded(_torque_limit)
    state_size, maximum_steps = 2, 200

    def begin(self, noise: State) -> State:
        """See ClassicTask."""
        angle, speed = noise
        return angle * _TURN - math.pi, speed * 2.0 - 1.0

    def advance(self, library: ModuleType, state: State, action: Array) -> ClassicOutcome:
        """See ClassicTask."""
        angle, speed = state
        torque = library.clip(action, -self._torque_limit, self._torque_limit)
        off = _wrapped(angle)
        cost = off * off + 0.1 * speed * speed + 0.001 * torque * torque
        speed = speed + (1.5 * self._gravity * library.sin(angle) + 3.0 * torque) * self._seconds
        speed = library.clip(speed, -self._speed_limit, self._speed_limit)
        return ClassicOutcome((angle + speed * self._seconds, speed), -cost, False)

    def observe(self, library: ModuleType, state: State) -> State:
        """See ClassicTask."""
        angle, speed = state
        return library.cos(angle), library.sin(angle), speed


class Acrobot:
    """Acrobot-v1 (Sutton 1996; dynamics: Sutton and Barto 1998): two links swing up by the joint between them."""

    _gravity, _seconds = 9.8, 0.2
    _first_limit, _second_limit = 2 * _TURN, 4.5 * _TURN

    observation_space = _bounded(1.0, 1.0, 1.0, 1.0, _first_limit, _second_limit)
    action_space = _choices(3)
    state_size, maximum_steps = 4, 500

    def begin(self, noise: State) -> State:
        """See ClassicTask."""
        return tuple(number * 0.2 - 0.1 for number in noise)

    def advance(self, library: ModuleType, state: State, action: Array) -> ClassicOutcome:
        """See ClassicTask."""
        first, second, first_speed, second_speed = self._integrate(library, state, action - 1.0)
        first_speed = library.clip(first_speed, -self._first_limit, self._first_limit)
        second_speed = library.clip(second_speed, -self._second_limit, self._second_limit)
        first, second = _wrapped(first), _wrapped(second)
        above = -library.cos(first) - library.cos(first + second) > 1.0
        return ClassicOutcome((first, second, first_speed, second_speed), library.where(above, 0.0, -1.0), above)

    def _integrate(self, library: ModuleType, state: State, torque: Array) -> State:
        """Integrates one step by the fourth-order Runge-Kutta method."""

        def moved(rates: State, seconds: float) -> State:
            return tuple(number + seconds * rate for number, rate in zip(state, rates, strict=True))

        one = self._rates(library, state, torque)
        two = self._rates(library, moved(one, self._seconds / 2), torque)
        three = self._rates(library, moved(two, self._seconds / 2), torque)
        four = self._rates(library, moved(three, self._seconds), torque)
        mean = tuple((a + 2.0 * (b + c) + d) / 6.0 for a, b, c, d in zip(one, two, three, four, strict=True))
        return moved(mean, self._seconds)

    def _rates(self, library: ModuleType, state: State, torque: Array) -> State:
        """Computes the rates of a state; links have length, mass and inertia 1, and centers of mass in the middle."""
        first, second, first_speed, second_speed = state
        sine, cosine = library.sin(second), library.cos(second)
        inertia, coupling = 3.5 + cosine, 1.25 + 0.5 * cosine
        # cos(x - pi / 2) = sin x
        pull = 0.5 * self._gravity * library.sin(first + second)
        swing = 1.5 * self._gravity * library.sin(first) + pull
        swing = swing - 0.5 * sine * second_speed * (second_speed + 2.0 * first_speed)
        share = coupling / inertia
        driven = torque + share * swing - 0.5 * sine * first_speed * first_speed - pull
        second_rate = driven / (1.25 - coupling * share)
        return first_speed, second_speed, -(coupling * second_rate + swing) / inertia, second_rate

    def observe(self, library: ModuleType, state: State) -> State:
        """See ClassicTask."""
        first, second, *speeds = state
        return library.cos(first), library.sin(first), library.cos(second), library.sin(second), *speeds


class MountainCar:
    """MountainCar-v0 (Moore 1990): a car too weak for the slope gathers momentum in the valley."""

    _lowest, _highest, _goal, _speed_limit = -1.2, 0.6, 0.5, 0.07

    observation_space = Space("continuous", (2,), torch.float32, (_lowest, -_speed_limit), (_highest, _speed_limit))
    action_space = _choices(3)
    state_size, maximum_steps = 2, 200

    def begin(self, noise: State) -> State:
        """See ClassicTask."""
        place, _ = noise
        return place * 0.2 - 0.6, place * 0.0

    def advance(self, library: ModuleType, state: State, action: Array) -> ClassicOutcome:
        """See ClassicTask."""
        position, speed = state
        speed = speed + (action - 1.0) * 0.001 - 0.0025 * library.cos(3.0 * position)
        speed = library.clip(speed, -self._speed_limit, self._speed_limit)
        position = library.clip(position + speed, self._lowest, self._highest)
        # The wall on the left stops the car.
        speed = library.where((position <= self._lowest) & (speed < 0.0), 0.0 * speed, speed)
        return ClassicOutcome((position, speed), -1.0, position >= self._goal)

    def observe(self, library: ModuleType, state: State) -> State:
        """See ClassicTask."""
        return state


TASKS: dict[str, type[ClassicTask]] = {
    "cartpole": CartPole,
    "pendulum": Pendulum,
    "acrobot": Acrobot,
    "mountaincar": MountainCar,
}
"""Tasks by the id of their simulator."""
