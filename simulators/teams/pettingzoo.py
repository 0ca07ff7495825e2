"""Steps parallel environments of PettingZoo as a batch of teams: N environments stepped in one loop.

`pettingzoo:mpe2.simple_spread_v3` calls `parallel_env(**options)` of that module, and `pettingzoo:module:factory`
another function. Agents whose spaces differ are made alike: observations are padded with zeros and say which agent it
is, choices that an agent does not have are masked, and elements of a continuous action that it does not have are
ignored. Continuous actions of agents that differ are in [-1, 1], and are scaled to the bounds of each agent.

A faulty environment ends the step with one line that names the id, the environment, the agent and the step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from podrace.errors import DataLoss, Internal, InvalidArgument, Unimplemented
from podrace.limits.config import EVERYTHING, Allowed
from podrace.plugins.loader import import_user_module
from podrace.plugins.user_calls import line_of
from podrace.spaces.entries import MASK, MASK_KEY, VECTOR, Entry
from simulators.base import Report, Space, Step
from simulators.gym.lanes import one_line
from simulators.gym.simulator import MOST_LANES, lane_seeds

PREFIX, FACTORY = "pettingzoo:", "parallel_env"
RANDOM_AGENTS, AGENT_ID = "random_agents", "agent_id"
"""Options of this module; all others are those of the environment."""
OBSERVATION = "observation"
Array = NDArray[Any]


def make(
    id: str, count: int, options: Mapping[str, object], device: str, allowed: Allowed = EVERYTHING
) -> "PettingZooSimulator":
    """Makes `count` parallel environments.

    Args:
        id: `pettingzoo:module`, or `pettingzoo:module:factory`.
        count: Number of environments.
        options: Keyword arguments of the factory. Also `random_agents`, names of agents that act at random instead of
            learning, and `agent_id`, whether an observation says which agent it is; always if spaces differ.
        device: Where observations are returned.
        allowed: Not used: which module may be imported was checked before.

    Raises:
        InvalidArgument: There is no such factory, it refuses an option, or the spaces are not supported.
        Unimplemented: A package is not installed.
    """
    if count > MOST_LANES:
        raise InvalidArgument(f"{id}: {count} environments that are separate objects; at most {MOST_LANES}")
    own = dict(options)
    silent, agent_id = own.pop(RANDOM_AGENTS, []), own.pop(AGENT_ID, False)
    if not isinstance(silent, list | tuple) or not all(isinstance(name, str) for name in silent):
        raise InvalidArgument(f"{id}: option {RANDOM_AGENTS!r} must be a list of texts, not {silent!r}")
    if type(agent_id) is not bool:
        raise InvalidArgument(f"{id}: option {AGENT_ID!r} must be true or false, not {agent_id!r}")
    factory = _factory(id)
    try:
        environments = [factory(**own) for _ in range(count)]
    except ImportError as error:
        raise Unimplemented(f"{id}: {one_line(error)}") from error
    except Exception as error:
        raise InvalidArgument(f"{id}: cannot be made with these options: {one_line(error)}") from error
    return PettingZooSimulator(id, environments, device, silent=tuple(silent), agent_id=agent_id)


def _factory(id: str) -> Callable[..., Any]:
    module, _, name = id.removeprefix(PREFIX).partition(":")
    try:
        imported = import_user_module(module)
    except InvalidArgument as error:
        raise Unimplemented(f"{id}: {error.message}; pip install 'podrace[pettingzoo]' has the usual ones") from error
    factory: Callable[..., Any] | None = getattr(imported, name or FACTORY, None)
    if factory is None or not callable(factory):
        raise InvalidArgument(f"{id}: module {module!r} has no function {name or FACTORY!r}")
    return factory


class AgentLayout:
    """How the spaces of one agent become a row, and an action of the team becomes one of the agent.

    Attributes:
        width: Elements of its observation, without the action mask.
        choices: Number of its discrete actions; 0 if they are continuous.
        box: Its action space if it is continuous.
    """

    def __init__(self, where: str, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        """Raises InvalidArgument if a space is not supported; `where` names the environment and the agent."""
        self.masked = isinstance(observation, spaces.Dict) and set(observation.spaces) == {OBSERVATION, MASK_KEY}
        seen = observation[OBSERVATION] if self.masked and isinstance(observation, spaces.Dict) else observation
        self._one_hot = isinstance(seen, spaces.Discrete)
        if not isinstance(seen, spaces.Box | spaces.Discrete):
            raise InvalidArgument(
                f"{where} observes a {type(seen).__name__}: expected Box, Discrete or a Dict of"
                f" {OBSERVATION!r} and {MASK_KEY!r}"
            )
        if not isinstance(action, spaces.Discrete | spaces.Box):
            raise InvalidArgument(f"{where} acts in a {type(action).__name__}: expected Discrete or Box")
        self._space, self.action = seen, action
        self.width = int(seen.n) if isinstance(seen, spaces.Discrete) else prod(seen.shape)
        self.choices = int(action.n) if isinstance(action, spaces.Discrete) else 0

    def write(self, observation: Any, row: Array, mask: Array | None) -> str:
        """Writes an observation into a row of zeros, and its action mask; returns what is wrong, or an empty text."""
        allowed = None
        if self.masked:
            if not isinstance(observation, Mapping) or not {OBSERVATION, MASK_KEY} <= observation.keys():
                return f"an observation without {OBSERVATION!r} and {MASK_KEY!r}"
            observation, allowed = observation[OBSERVATION], np.ravel(observation[MASK_KEY])
            if len(allowed) != self.choices:
                return f"a mask of {len(allowed)} actions, its space has {self.choices}"
        if mask is not None:
            mask[: self.choices] = 1 if allowed is None else allowed
        if isinstance(self._space, spaces.Discrete):
            row[int(observation) - int(self._space.start)] = 1
            return ""
        found = np.asarray(observation)
        if found.shape != self._space.shape:
            return f"an observation of the shape {list(found.shape)}, its space has {list(self._space.shape)}"
        row[: self.width] = found.ravel()
        return "" if np.isfinite(row[: self.width]).all() else "an observation that is not finite"

    def act(self, action: Array, *, scaled: bool = False) -> Any:
        """Returns the action of the team's space as one of the agent.

        Args:
            action: An element of the team's space.
            scaled: Whether it is in [-1, 1], with at least as many elements as the agent has, instead of in the agent's
                own units.
        """
        if isinstance(self.action, spaces.Discrete):
            return int(action) + int(self.action.start)
        own = action
        if scaled:
            low, high = self.action.low.ravel(), self.action.high.ravel()
            own = low + (action.ravel()[: len(low)].clip(-1.0, 1.0) + 1.0) / 2.0 * (high - low)
        return own.reshape(self.action.shape).astype(self.action.dtype)


class PettingZooSimulator:
    """N parallel environments of A learning agents, N A lanes. See simulators.base.Simulator for the methods.

    Attributes:
        observation_space: See simulators.base.Space; composite if actions are masked.
        action_space: See simulators.base.Space.
        count: Number of lanes, N A.
    """

    def __init__(
        self, id: str, environments: Sequence[Any], device: str, *, silent: tuple[str, ...] = (), agent_id: bool = False
    ) -> None:
        """Reads the spaces of the first environment; all must have the same.

        Args:
            id: For messages.
            environments: Parallel environments of PettingZoo.
            device: Where observations are returned.
            silent: Names of agents that act at random.
            agent_id: Whether observations say which agent it is.

        Raises:
            InvalidArgument: A name is unknown, no agent learns, or the spaces are not supported.
        """
        self._id, self._environments, self._device = id, environments, torch.device(device)
        present = list(environments[0].possible_agents)
        for name in silent:
            if name not in present:
                raise InvalidArgument(
                    f"{id}: option {RANDOM_AGENTS!r} names {name!r}, but the agents are {', '.join(present)}"
                )
        self._silent = silent
        self._names = tuple(name for name in present if name not in silent)
        if not self._names:
            raise InvalidArgument(f"{id}: all agents act at random ({', '.join(present)}): leave one to learn")
        first = environments[0]
        self._layouts = [
            AgentLayout(f"{id}: agent {name!r}", first.observation_space(name), first.action_space(name))
            for name in self._names
        ]
        self._build_spaces(agent_id=agent_id)
        self.count = len(environments) * len(self._names)
        shape = len(environments), len(self._names)
        self._absent, self._steps = np.zeros(shape, bool), np.zeros(len(environments), np.int64)
        self._generator = np.random.default_rng(0)

    def _build_spaces(self, *, agent_id: bool) -> None:
        layouts, agents = self._layouts, len(self._names)
        widths, choices = {one.width for one in layouts}, {one.choices for one in layouts}
        boxes = [one.action for one in layouts if isinstance(one.action, spaces.Box)]
        self._scaled = any(box != boxes[0] for box in boxes)
        alike = len(widths) == 1 and len(choices) == 1 and not self._scaled
        self._shows_id = agents > 1 and (agent_id or not alike)
        self._width, most = max(widths), max(choices)
        own = self._width + agents * self._shows_id
        masked = len(choices) > 1 or any(one.masked for one in layouts)
        self._choices = most if masked else 0
        self._check_boxes(boxes, masked=masked)
        self.observation_space = Space("continuous", (own,), torch.float32, agents=self._names)
        if masked:
            entries = Entry(OBSERVATION, VECTOR, (own,)), Entry(MASK_KEY, MASK, (most,))
            self.observation_space = replace(
                self.observation_space, kind="composite", shape=(own + most,), entries=entries
            )
        self.action_space = Space("discrete", (), torch.int64, n=most)
        if self._scaled:
            most = max(prod(box.shape) for box in boxes)
            self.action_space = Space("continuous", (most,), torch.float32, (-1.0,) * most, (1.0,) * most)
        elif boxes:
            low, high = (tuple(map(float, bound.ravel())) for bound in (boxes[0].low, boxes[0].high))
            self.action_space = Space("continuous", boxes[0].shape, torch.float32, low, high)

    def _check_boxes(self, boxes: Sequence[spaces.Box], *, masked: bool) -> None:
        """Raises InvalidArgument unless all agents have continuous actions, or none; those that differ have bounds."""
        if boxes and (masked or len(boxes) < len(self._names)):
            raise InvalidArgument(
                f"{self._id}: some agents have continuous actions, and others discrete ones or a mask"
            )
        if self._scaled and not all(box.is_bounded() for box in boxes):
            raise InvalidArgument(
                f"{self._id}: agents have different continuous actions, which need finite bounds to be made alike"
            )

    def _rows(self) -> Array:
        """Returns empty observations [N, A, D], in which only the agents are marked."""
        rows = np.zeros((*self._absent.shape, self.observation_space.shape[0]), np.float32)
        if self._shows_id:
            rows[:, :, self._width : self._width + len(self._names)] = np.eye(len(self._names))
        return rows

    def _problem(self, number: int, name: str, problem: str) -> str:
        return f"{self._id}: environment {number}, agent {name!r}, step {self._steps[number]} of its episode: {problem}"

    def _call(self, number: int, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self._environments[number], method)(*arguments, **options)
        except Exception as error:
            where = f"{self._id}: environment {number}, step {self._steps[number]} of its episode"
            place = line_of(error, type(self._environments[number]))
            raised = f"{method} raised {type(error).__name__}: {one_line(error)}"
            raise Internal(f"{where}: {raised}{f' ({place})' if place else ''}") from error

    def _write(self, number: int, observed: Mapping[str, Any], rows: Array) -> None:
        """Writes observations and masks of the agents that are present into `rows` [A, D]; those of others become 0."""
        for index, (name, layout) in enumerate(zip(self._names, self._layouts, strict=True)):
            if self._absent[number, index]:
                rows[index] = 0
                continue
            if name not in observed:
                raise InvalidArgument(self._problem(number, name, "no observation; the agents of an episode are fixed"))
            mask = rows[index, -self._choices :] if self._choices else None
            if problem := layout.write(observed[name], rows[index], mask):
                kind = DataLoss if "not finite" in problem else InvalidArgument
                raise kind(self._problem(number, name, problem))

    def _begin(self, number: int, rows: Array, seed: int | None = None) -> None:
        self._absent[number], self._steps[number] = False, 0
        observed, _ = self._call(number, "reset", seed=seed)
        self._write(number, observed, rows)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        rows = self._rows()
        self._generator = np.random.default_rng(seed)
        for number, own in enumerate(lane_seeds(seed, len(self._environments))):
            self._begin(number, rows[number], own)
            # Not the environment's own seed: the first actions would be the numbers that drew its initial state.
            streams = np.random.SeedSequence(own).spawn(len(self._silent))
            for stream, name in zip(streams, self._silent, strict=True):
                self._environments[number].action_space(name).seed(int(stream.generate_state(1)[0]))
        return self._tensor(rows).flatten(0, 1)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator.

        Raises:
            InvalidArgument: An agent is missing, or an observation does not fit its space.
            DataLoss: An observation or a reward is not finite.
            Internal: An environment raised.
        """
        actions = action.cpu().numpy().reshape(*self._absent.shape, *self.action_space.shape)
        rows, finals = self._rows(), self._rows()
        reward = np.zeros(self._absent.shape, np.float32)
        flags = np.zeros((2, *self._absent.shape), bool)
        for number in range(len(self._environments)):
            self._step(number, actions[number], finals[number], reward[number], flags[:, number])
            rows[number] = finals[number]
            if flags[:, number].any(0).all():
                rows[number] = self._rows()[number]
                self._begin(number, rows[number])
            else:
                gone = flags[:, number].any(0)
                # Only an environment is cut off: an agent that leaves it earlier has ended its episode.
                flags[:, number] = gone, np.zeros_like(gone)
                self._absent[number] |= gone
                rows[number][gone] = 0
        terminated, truncated = (self._tensor(flag).flatten() for flag in flags)
        tensors = (self._tensor(one).flatten(0, 1) for one in (rows, finals))
        observation, final = tensors
        return Step(observation, self._tensor(reward).flatten(), terminated, truncated, final)

    def _step(self, number: int, actions: Array, finals: Array, reward: Array, flags: Array) -> None:
        """Steps one environment, and writes last observations [A, D], rewards [A] and both flags [2, A]."""
        environment, absent = self._environments[number], self._absent[number]
        asked = {name: environment.action_space(name).sample() for name in self._silent if name in environment.agents}
        for index, name in enumerate(self._names):
            if not absent[index]:
                asked[name] = self._layouts[index].act(actions[index], scaled=self._scaled)
        observed, rewards, terminations, truncations, _ = self._call(number, "step", asked)
        self._steps[number] += 1
        flags[0][absent] = True
        for index, name in enumerate(self._names):
            if absent[index]:
                continue
            missing = [each for each in (rewards, terminations, truncations) if name not in each]
            if missing:
                raise InvalidArgument(self._problem(number, name, "no reward, or no end; the agents are fixed"))
            reward[index] = rewards[name]
            flags[0][index] = terminations[name]
            flags[1][index] = truncations[name] and not terminations[name]
            if not np.isfinite(reward[index]):
                raise DataLoss(self._problem(number, name, "a reward that is not finite"))
        self._write(number, observed, finals)

    def report(self) -> Report:
        """Returns an empty report: these environments have no measure except the returns."""
        return Report()

    def close(self) -> None:
        """Closes all environments."""
        for environment in self._environments:
            environment.close()
