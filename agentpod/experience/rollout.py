"""Defines the memory layout of rollouts, and the loop that collects one in place.

A rollout is a mapping from names to tensors. agentpod.experience.slots decides which process allocates the memory and
which may access it when. On-policy algorithms train on one rollout and discard it; for off-policy algorithms it is a
segment of the replay buffer.
"""

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from agentpod.experience.captured_steps import CapturedSteps
from agentpod.models.distributions import require_distribution
from agentpod.models.policy import Policy
from agentpod.returns import discounted_returns
from podrace.errors import Cancelled, DataLoss
from simulators.base import Simulator, Space

Rollout = Mapping[str, Tensor]


@dataclass(frozen=True)
class Field:
    """One tensor of a rollout.

    Attributes:
        name: Its key.
        shape: [T, N, ...], or [T + 1, N, ...] for observations: T steps of N environments.
        dtype: Of its elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def rollout_fields(
    observation_space: Space, action_space: Space, horizon: int, count: int, state_size: int = 0
) -> dict[str, Field]:
    """Returns the layout of one on-policy rollout.

    | field | shape | meaning |
    |---|---|---|
    | observation | [T + 1, N, *shape] | observation that was acted on; the last row follows the last step |
    | action | [T, N] or [T, N, A] | action as the distribution sampled it, before it is clamped to the bounds |
    | log_prob | [T, N] | log-probability of that action under the policy that sampled it |
    | reward | [T, N] | reward of the simulator |
    | terminated | [T, N] | the episode terminated with this step: nothing follows |
    | truncated | [T, N] | the episode was cut off after this step: bootstrap from final_observation |
    | final_observation | [T, N, *shape] | written only where truncated; the content of other rows is undefined |
    | state | [1, N, S] | recurrent state before the first step; only for recurrent policies |

    If an episode ended at step t, row t + 1 of `observation` is the first of the next episode, and the recurrent state
    before row t + 1 is zero. The state before the first step is the one after the previous rollout, zero where an
    episode ended there.

    Args:
        observation_space: Of the simulator.
        action_space: Of the simulator.
        horizon: T, steps of each environment.
        count: N, environments of all workers.
        state_size: S, size of the policy's recurrent state.
    """
    lanes = (horizon, count)
    element = () if action_space.kind == "discrete" else (math.prod(action_space.shape),)
    action_type = torch.float32 if action_space.kind == "continuous" else torch.int64
    fields = (
        Field("observation", (horizon + 1, count, *observation_space.shape), observation_space.dtype),
        Field("action", (*lanes, *element), action_type),
        Field("log_prob", lanes, torch.float32),
        Field("reward", lanes, torch.float32),
        Field("terminated", lanes, torch.bool),
        Field("truncated", lanes, torch.bool),
        Field("final_observation", (*lanes, *observation_space.shape), observation_space.dtype),
        *([Field("state", (1, count, state_size), torch.float32)] if state_size else []),
    )
    return {field.name: field for field in fields}


@dataclass(frozen=True)
class Lanes:
    """State of the lanes (environments of one simulator) between two rollouts.

    Attributes:
        observation: [N, *shape], observation to act on next.
        episode_return: [N / A] float64, undiscounted return of the unfinished episodes, over the A agents of an
            environment.
        episode_length: [N / A] float64, steps of the unfinished episodes.
        state: [N, S] float32, recurrent state of the policy.
    """

    observation: Tensor
    episode_return: Tensor
    episode_length: Tensor
    state: Tensor

    @classmethod
    def start(cls, observation: Tensor, state_size: int = 0, agents: int = 1) -> "Lanes":
        """Returns the state after the simulator was reset.

        Args:
            observation: [N, *shape], what `reset` returned.
            state_size: S, size of the policy's recurrent state.
            agents: A, lanes of each environment.
        """
        zeros = torch.zeros(len(observation) // agents, dtype=torch.float64, device=observation.device)
        state = torch.zeros(len(observation), state_size, device=observation.device)
        return cls(observation.clone(), zeros, zeros, state)


@dataclass(frozen=True)
class CollectResult:
    """What `collect` returns in addition to the tensors that it filled.

    Attributes:
        lanes: For the next call.
        steps: Environment steps taken, over all environments: T N / A, with A the lanes of an environment.
        episode_returns: [E] float64, undiscounted returns of the episodes that ended, by time, then by lane.
        episode_lengths: [E] int64, steps of these episodes.
    """

    lanes: Lanes
    steps: int
    episode_returns: Tensor
    episode_lengths: Tensor


def collect(
    simulator: Simulator,
    policy: Policy,
    rollout: Rollout,
    lanes: Lanes,
    generator: torch.Generator,
    cancelled: threading.Event | None = None,
    steps: CapturedSteps | None = None,
) -> CollectResult:
    """Steps every environment T times and writes the rollout in place.

        lanes = Lanes.start(simulator.reset(seed), policy.state_size)
        for k in itertools.count():
            generator.manual_seed(derive_seed(seed, "act", worker, k))
            result = collect(simulator, policy, rollout, lanes, generator)
            lanes = result.lanes

    Args:
        simulator: N environments.
        policy: Chooses the actions of the whole rollout.
        rollout: Tensors with the layout of `rollout_fields`, or T rows of
            `agentpod.experience.replay_layout.replay_fields`, which have no log_prob and no state, and hold the
            observation after the last step in the last row of final_observation. They are often views of N lanes of
            wider tensors in shared memory.
        lanes: What the previous call returned.
        generator: The noise of the whole rollout is drawn from it in one call.
        cancelled: Checked before each step.
        steps: The same simulator and policy, whose steps are replayed from a graph; None: they step eagerly.

    Returns:
        The new state of the lanes, and the episodes that ended.

    Raises:
        DataLoss: An observation, a final one included, or a reward is not finite; the rollout must not be trained on.
        Cancelled: `cancelled` was set.
    """
    horizon, count = rollout["reward"].shape
    noise = policy.noise((horizon, count), generator)
    outputs = torch.empty(horizon, count, policy.head.output_count, device=noise.device)
    rollout["observation"][0].copy_(lanes.observation)
    if "state" in rollout:
        rollout["state"][0].copy_(lanes.state)
    cancelled = cancelled or threading.Event()
    work = _Collection(rollout, lanes, noise, outputs, cancelled)
    lanes = _replay_through(steps, work) if steps else _step_through(simulator, policy, work)
    if "log_prob" in rollout:
        # One pass over the whole rollout takes less time than T small ones.
        rollout["log_prob"].copy_(require_distribution(policy.head).log_prob(outputs, rollout["action"]))
    _check_finite(rollout)
    return _count_episodes(rollout, lanes, simulator.observation_space.lanes)


class _Collection(NamedTuple):
    """A rollout to collect."""

    rollout: Rollout
    lanes: Lanes
    noise: Tensor
    outputs: Tensor
    """[T, N, outputs], to store the actor's outputs in."""
    cancelled: threading.Event


def _step_through(simulator: Simulator, policy: Policy, work: _Collection) -> Lanes:
    """Runs the hot loop: fills everything except log_prob and the first row, and stores the actor's outputs.

    Returns:
        The state of the lanes after the last step, without updated episode counters.
    """
    rollout, lanes, noise, outputs, cancelled = work
    # Unbinding all rows beforehand costs a third of indexing them one by one.
    names = ("action", "reward", "terminated", "truncated", "final_observation")
    rows = zip(*(rollout[name].unbind() for name in names), noise.unbind(), outputs.unbind(), strict=True)
    observations = rollout["observation"].unbind()
    sample, to_environment, step_simulator = policy.head.sample, policy.to_environment, simulator.step
    state = lanes.state
    for t, (action, reward, terminated, truncated, final_observation, noise_row, outputs_row) in enumerate(rows):
        if cancelled.is_set():
            raise Cancelled(f"the rollout was cancelled at step {t}")
        step_outputs, state = policy.advance(observations[t], state)
        outputs_row.copy_(step_outputs)
        action.copy_(sample(outputs_row, noise_row))
        step = step_simulator(to_environment(action))
        reward.copy_(step.reward)
        terminated.copy_(step.terminated)
        truncated.copy_(step.truncated)
        if policy.state_size:
            policy.reset_state(state, terminated | truncated)
        if t + 1 < len(observations):
            observations[t + 1].copy_(step.observation)
        else:
            # In a replay segment, final_observation of the last row holds the observation that follows.
            final_observation.copy_(step.observation)
        _keep_final(final_observation, truncated, step.final_observation)
    return replace(lanes, observation=step.observation.clone(), state=state)


def _replay_through(steps: CapturedSteps, work: _Collection) -> Lanes:
    """Does what `_step_through` does, by steps that are replayed from a graph."""
    rollout, lanes, noise, outputs, cancelled = work
    steps.begin(lanes.observation, lanes.state)
    fields = {name: rollout[name].unbind() for name in ("action", "reward", "terminated", "truncated")}
    fields |= {"outputs": outputs.unbind(), "final_observation": rollout["final_observation"].unbind()}
    observations = rollout["observation"].unbind()
    for t, noise_row in enumerate(noise.unbind()):
        if cancelled.is_set():
            raise Cancelled(f"the rollout was cancelled at step {t}")
        rows = {name: tensors[t] for name, tensors in fields.items()}
        if t + 1 < len(observations):
            steps.play(noise_row, rows | {"observation": observations[t + 1]})
            continue
        # In a replay segment, final_observation of the last row holds the observation that follows.
        last = rows.pop("final_observation")
        step = steps.play(noise_row, rows)
        mask = step.truncated.view(-1, *(1,) * (last.dim() - 1))
        last.copy_(torch.where(mask, step.final_observation, step.observation))
    return replace(lanes, observation=steps.step.observation.clone(), state=steps.state.clone())


def _keep_final(final_observation: Tensor, truncated: Tensor, found: Tensor) -> None:
    """Writes the final observations of truncated lanes."""
    if truncated.is_cuda:
        # Testing whether there are any would synchronize with the device at every step.
        mask = truncated.view(-1, *(1,) * (found.dim() - 1))
        final_observation.copy_(torch.where(mask, found, final_observation))
    elif truncated.any():
        # Only these rows are written: memory without truncations is never backed by pages.
        final_observation[truncated] = found[truncated]


def used_finals(rollout: Rollout) -> Tensor:
    """Returns of which steps of a rollout, or of one replay segment, the final observation is read: [T, N] bool."""
    truncated = rollout["truncated"]
    if "log_prob" in rollout:
        return truncated
    # A segment of a replay memory has no log_prob.
    used = truncated.clone()
    used[-1] = True
    return used


def _check_finite(rollout: Rollout) -> None:
    names = [name for name in ("observation", "reward", "final_observation") if rollout[name].is_floating_point()]
    # All bounds at once, because each test waits for the device.
    if torch.stack([bound for name in names for bound in _bounds(rollout, name)]).isfinite().all():
        return
    for name in names:
        bad = ~rollout[name].isfinite()
        if name == "final_observation":
            bad &= _per_element(used_finals(rollout), bad)
        if bad.any():
            t, lane, *_ = bad.nonzero()[0].tolist()
            raise DataLoss(
                f"environment {lane} returned a {name} that is not finite at row {t} of the rollout: "
                "check the simulator for a division by zero or an unbounded action",
                reason="ERROR_REASON_NON_FINITE",
            )


def _bounds(rollout: Rollout, name: str) -> tuple[Tensor, ...]:
    """Returns the minimum and the maximum of what is read of a field, through both of which NaN propagates."""
    tensor = rollout[name]
    if name == "final_observation":
        used = used_finals(rollout)
        # On a GPU, selecting steps would wait for it. On a CPU, memory that was never written has no pages.
        tensor = torch.where(_per_element(used, tensor), tensor, 0.0) if tensor.is_cuda else tensor[used]
    return tensor.aminmax() if tensor.numel() else ()


def _per_element(used: Tensor, tensor: Tensor) -> Tensor:
    """Returns a mask [T, N] that broadcasts to a tensor [T, N, ...]."""
    return used.view(*used.shape, *(1,) * (tensor.dim() - used.dim()))


def _count_episodes(rollout: Rollout, lanes: Lanes, agents: int) -> CollectResult:
    reward, done = rollout["reward"], rollout["terminated"] | rollout["truncated"]
    if agents > 1:
        # The return of a team is the sum over its agents; an environment has ended when all its lanes have.
        shape = len(reward), -1, agents
        reward, done = reward.reshape(shape).sum(-1), done.reshape(shape).all(-1)
    # Both at once: an operation takes as long for twice the lanes.
    rewards, carries = torch.cat((reward, torch.ones_like(reward)), 1), (lanes.episode_return, lanes.episode_length)
    running, carry = discounted_returns(rewards, torch.cat((done, done), 1), 1.0, torch.cat(carries))
    returns, lengths = running.chunk(2, dim=1)
    episode_return, episode_length = carry.chunk(2)
    lanes = replace(lanes, episode_return=episode_return, episode_length=episode_length)
    return CollectResult(lanes, math.prod(reward.shape), returns[done], lengths[done].long())
