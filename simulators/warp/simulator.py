"""Steps the ant and the humanoid on MuJoCo Warp: thousands of lanes on a GPU, without waiting for it or copying data.

A step replays two or three recorded programs: the physics, the observations and rewards computed by torch, and for
Gymnasium's humanoid the kinematics of first states. Actions and observations stay on the device.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators.base import Report, Space, Step
from simulators.options import closest
from simulators.warp.engine import Program, WarpPhysics, as_cuda_graph
from simulators.warp.isaac import TASKS as ISAAC_TASKS
from simulators.warp.models import Body, load_body
from simulators.warp.noise import LaneNoise
from simulators.warp.options import STYLES, WarpAntOptions, WarpHumanoidOptions, parse_warp_options
from simulators.warp.tasks import GymnasiumAnt, GymnasiumHumanoid, WarpTask

PREFIX = "warp:"
TASKS: dict[type[Any], type[WarpTask[Any]]] = {
    WarpAntOptions: GymnasiumAnt,
    WarpHumanoidOptions: GymnasiumHumanoid,
    **ISAAC_TASKS,
}
"""Tasks by the class of their options."""
_GREATEST = 1e10
"""Limit of the numbers of a state: MuJoCo itself treats larger ones as diverged (mjMAXVAL)."""


def make(id: str, count: int, options: Mapping[str, object], device: str) -> "WarpSimulator":
    """Makes `count` lanes of a body.

    Args:
        id: "warp:" and a key of `simulators.warp.options.STYLES`.
        count: Number of lanes.
        options: Fields of the body's class in `simulators.warp.options`.
        device: Where the lanes are computed.

    Raises:
        InvalidArgument: The body or an option is unknown, or a value cannot be used.
        ModuleNotFoundError: MuJoCo Warp, or Gymnasium, which has the models, is not installed.
    """
    name = id.removeprefix(PREFIX)
    if name not in STYLES:
        raise InvalidArgument(f"{PREFIX} has no body {name!r}{closest(name, STYLES)} (bodies: {', '.join(STYLES)})")
    parsed = parse_warp_options(options, name)
    return WarpSimulator(load_body(name, parsed.style), parsed, count, torch.device(device))


class WarpSimulator:
    """N lanes of a body behind the Simulator interface.

    An action [N, n] float32 sets the motors. MuJoCo clips it to the bounds of the space; its cost is computed from the
    unclipped action. A lane whose state is no longer finite has terminated, with a reward and a final observation of 0:
    this happens now and then in single precision, and one such lane would ruin the whole training.

    The capacity for contacts and constraints is fixed. An overflow is detected without waiting for the device: `step`
    raises ResourceExhausted at most 128 steps later, `reset` and `report` at once.

    First states are a function of (seed, lane, episode). On a GPU the steps that follow are the same in every run only
    with the option `deterministic`.

    Attributes:
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of lanes, N.
        physics: The lanes' live states; change them with `set_state`.
    """

    def __init__(self, body: Body, options: Any, count: int, device: torch.device) -> None:
        """Starts episodes with seed 0; `reset` chooses another seed."""
        self.count = count
        self._maximum_steps = int(options.max_episode_steps)
        task_class = TASKS[type(options)]
        self.physics = WarpPhysics(
            body,
            count,
            device,
            substeps=options.frame_skip,
            contact_forces=task_class.needs_contact_forces(options),
            kinematics=task_class.needs_kinematics,
            nconmax=options.nconmax,
            njmax=options.njmax,
            deterministic=options.deterministic,
        )
        self._task = task_class(options, body, self.physics.fields)
        low, high = body.model.actuator_ctrlrange.astype(np.float32).T.tolist()
        self.action_space = Space("continuous", (len(low),), torch.float32, tuple(low), tuple(high))
        self.observation_space = Space("continuous", (self._task.observe().shape[1],), torch.float32)
        self._allocate(device)
        self._programs = [self.physics.step, *self._after_physics(device)]
        self.reset(0)

    def _allocate(self, device: torch.device) -> None:
        shape = (self.count, *self.observation_space.shape)
        self._live = Step(
            observation=torch.zeros(shape, device=device),
            reward=torch.zeros(self.count, device=device),
            terminated=torch.zeros(self.count, dtype=torch.bool, device=device),
            truncated=torch.zeros(self.count, dtype=torch.bool, device=device),
            final_observation=torch.zeros(shape, device=device),
        )
        self._position = torch.zeros_like(self._task.position())
        self._ended = torch.zeros_like(self._live.terminated)
        self._steps = torch.zeros(self.count, dtype=torch.int32, device=device)
        self._episode = torch.zeros(self.count, dtype=torch.int64, device=device)
        self._diverged = torch.zeros((), dtype=torch.int64, device=device)
        self._noise = LaneNoise(self.count, device)

    def _after_physics(self, device: torch.device) -> list[Program]:
        if self._task.needs_kinematics:
            return [
                as_cuda_graph(self._conclude, device),
                self.physics.compute_kinematics,
                as_cuda_graph(self._show, device),
            ]

        def conclude_and_show() -> None:
            self._conclude()
            self._show()

        return [as_cuda_graph(conclude_and_show, device)]

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator; the seed determines the states in which episodes start.

        Raises:
            ResourceExhausted: Contacts or constraints exceeded their capacity since the simulator was made.
        """
        self.physics.overflow.check()
        self._noise.seed(seed)
        for tensor in (self._episode, self._diverged):
            tensor.zero_()
        self._ended.fill_(True)
        self._begin_episodes()
        return self._shown()

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator.

        Raises:
            ResourceExhausted: Contacts or constraints exceeded their capacity some steps ago.
        """
        self.physics.fields.ctrl.copy_(self._task.control(action))
        for program in self._programs:
            program()
        self.physics.overflow.poll()
        return self._live

    def _conclude(self) -> None:
        """Computes the results of a step, and the first states of lanes whose episode ended."""
        live, task, fields = self._live, self._task, self.physics.fields
        position = task.position()
        outcome = task.judge(self._position, position)
        state = torch.cat([fields.qpos, fields.qvel], 1)
        sound = (state.abs() < _GREATEST).all(1)
        live.reward.copy_(outcome.reward.masked_fill(~sound, 0.0))
        torch.logical_or(outcome.terminated, ~sound, out=live.terminated)
        live.final_observation.copy_(task.observe().masked_fill(~sound[:, None], 0.0))
        live.observation.copy_(live.final_observation)
        self._position.copy_(position)
        self._steps += 1
        torch.gt(self._steps >= self._maximum_steps, live.terminated, out=live.truncated)
        torch.logical_or(live.terminated, live.truncated, out=self._ended)
        self._diverged += (~sound).sum()
        self._episode += self._ended
        self._begin_episodes()

    def _begin_episodes(self) -> None:
        """Writes the first states of the lanes marked in `_ended`, for the episodes numbered by `_episode`."""
        fields = self.physics.fields
        qpos, qvel = self._task.first_state(self._noise.uniform(self._episode, self._task.noise_size))
        ended = self._ended[:, None]
        fields.qpos.copy_(torch.where(ended, qpos, fields.qpos))
        fields.qvel.copy_(torch.where(ended, qvel, fields.qvel))
        self._clear_computed()

    def _clear_computed(self) -> None:
        """Sets fields computed from old states to 0, as MuJoCo's own reset does; the next step computes them again."""
        fields = self.physics.fields
        for name in ("qacc_warmstart", "ctrl", "qfrc_actuator", "cfrc_ext", "xpos", "xmat", "subtree_com"):
            values = getattr(fields, name)
            values.masked_fill_(self._ended.view(-1, *[1] * (values.dim() - 1)), 0.0)
        self._steps.masked_fill_(self._ended, 0)

    def _show(self) -> None:
        """Replaces the observations of lanes that ended by the first ones of their next episodes."""
        live, task = self._live, self._task
        live.observation.copy_(torch.where(self._ended[:, None], task.observe(), live.observation))
        first = task.first_position()
        ended = self._ended.view(-1, *[1] * (first.dim() - 1))
        self._position.copy_(torch.where(ended, first, self._position))

    def _shown(self) -> Tensor:
        self.physics.compute_kinematics()
        self._show()
        return self._live.observation

    def set_state(self, lanes: Tensor, qpos: Tensor, qvel: Tensor) -> Tensor:
        """Starts episodes in given states.

        Args:
            lanes: [K] int64, each at most once.
            qpos: [K, nq] positions, in MuJoCo's order.
            qvel: [K, nv] velocities.

        Returns:
            The observations of all lanes, [N, *shape]; those of other lanes do not change.
        """
        fields = self.physics.fields
        self._ended.fill_(False)
        self._ended[lanes] = True
        fields.qpos[lanes], fields.qvel[lanes] = qpos.to(fields.qpos), qvel.to(fields.qvel)
        self._clear_computed()
        return self._shown()

    @property
    def capturable(self) -> "LaunchedSteps":
        """See simulators.cuda_graph.Capturable: a graph cannot contain those that `step` replays."""
        return LaunchedSteps(self)

    @property
    def graph_generators(self) -> Sequence[torch.Generator]:
        """See simulators.cuda_graph.Capturable: noise is computed from the seed and the number of the episode."""
        return ()

    def launch(self, action: Tensor) -> Step:
        """Makes a step without a graph, so that another graph can contain it; `poll` reports overflows."""
        self.physics.fields.ctrl.copy_(self._task.control(action))
        with self.physics.launching():
            self.physics.launch_step()
        self._conclude()
        if self._task.needs_kinematics:
            with self.physics.launching():
                self.physics.launch_kinematics()
        self._show()
        return self._live

    def report(self) -> Report:
        """Returns `diverged_episodes`: the number of episodes that ended because the state was no longer finite.

        Raises:
            ResourceExhausted: Contacts or constraints exceeded their capacity since the simulator was made.
        """
        self.physics.overflow.check()
        return Report({"diverged_episodes": float(self._diverged)})

    def close(self) -> None:
        """Has no resources to free: they are freed with the simulator."""


class LaunchedSteps:
    """The lanes of a WarpSimulator, with steps that launch each kernel. See simulators.base.Simulator.

    Attributes:
        observation_space: That of the simulator.
        action_space: That of the simulator.
        count: Number of lanes, N.
    """

    def __init__(self, simulator: WarpSimulator) -> None:
        self._simulator = simulator
        self.observation_space, self.action_space = simulator.observation_space, simulator.action_space
        self.count = simulator.count
        self.reset, self.step = simulator.reset, simulator.launch
        self.report, self.close = simulator.report, simulator.close

    def poll(self) -> None:
        """See simulators.cuda_graph.Polled."""
        self._simulator.physics.overflow.poll()
