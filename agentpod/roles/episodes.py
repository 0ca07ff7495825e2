"""Plays evaluation episodes, which are named by a seed and a number, and computes a score from their returns.

Episode i of a seed starts in the same way for every policy, however many episodes are played in one call, and however
long other episodes take. For that, the simulator is reset for each batch of episodes, with a seed derived from (seed,
batch), and each environment plays one episode of the batch: environment j of batch b plays episode b N + j, with N the
number of environments. N is therefore part of the definition of an episode; it is fixed by the session. Sampled actions
repeat as well. An environment is one lane, or one lane for each of its agents: then the return of an episode is the sum
over the agents, and the episode ends when all of its lanes have ended.

How much of an episode is common to all policies depends on the simulator: its first state always is, random events
during the episode only if the simulator draws them for each lane separately. Wrappers that keep statistics over all
lanes (`normalize_observations`, `normalize_rewards`) start again with each batch and depend on what was done in it.
"""

import math
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from agentpod.models.actors import Actor
from agentpod.seeding import derive_seed
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Trace
from podrace.errors import Cancelled, DataLoss
from simulators import Report, Simulator, Step
from simulators.base import SingleEpisodes

MAXIMUM_EPISODE_STEPS = 100_000
"""Limit on the length of an episode, without which an endless environment would occupy the evaluator forever."""

MOST_AGENTS_LISTED = 16
"""Most agents of an environment for which the return of each agent is reported as a measure."""

POLL_STEPS = 32
"""Steps on a GPU between two examinations of whether all episodes have ended."""


@dataclass(frozen=True)
class Episodes:
    """Finished evaluation episodes, in the order of their numbers.

    Attributes:
        returns: [E] float64, undiscounted.
        lengths: [E] int64, in steps.
        report: Measures of the simulator over these episodes; None: those since its last reset.
    """

    returns: Tensor
    lengths: Tensor
    report: Report | None = None

    @property
    def measures(self) -> Mapping[str, Sequence[float]]:
        """The measures of single episodes that the simulator reports, by name, with a number for each episode."""
        reported = self.report.episode_metrics if self.report else {}
        return {name: values for name, values in sorted(reported.items()) if len(values) == len(self.returns)}


Result = TypeVar("Result")
Slices = Generator[None, None, Result]
"""Work in slices: yields after each of them but the last, and returns the result."""


class Play(Protocol):
    """Plays whole episodes and returns their scores. `play` is the built-in function; a user may supply another."""

    def __call__(
        self,
        simulator: Simulator,
        actor: Actor,
        episodes: int,
        seed: int,
        *,
        first_episode: int = 0,
        cancelled: threading.Event | None = None,
    ) -> Episodes:
        """Plays as `play` does."""
        ...


def play(
    simulator: Simulator,
    actor: Actor,
    episodes: int,
    seed: int,
    *,
    first_episode: int = 0,
    cancelled: threading.Event | None = None,
) -> Episodes:
    """Plays whole episodes and returns their scores.

    Every episode that is requested counts, however long it takes: taking the first ones that end would favor short
    ones. What a lane does after its episode is ignored; it rests if the simulator allows it.

    Args:
        simulator: N environments.
        actor: Acts in all lanes.
        episodes: E, number of episodes to play.
        seed: Seed of the episodes.
        first_episode: Number of the first of them.
        cancelled: Checked before each step.

    Raises:
        DataLoss: A return is not finite, or an episode does not end.
        Cancelled: `cancelled` was set.
    """
    slices = play_in_slices(simulator, actor, episodes, seed, first_episode=first_episode, cancelled=cancelled)
    while (found := next_slice(slices)) is None:
        pass
    return found


def next_slice(slices: Slices[Result]) -> Result | None:
    """Runs the next slice; returns the result if it was the last one, otherwise None."""
    try:
        next(slices)
    except StopIteration as end:
        result: Result = end.value
        return result
    return None


def play_in_slices(
    simulator: Simulator,
    actor: Actor,
    episodes: int,
    seed: int,
    *,
    first_episode: int = 0,
    cancelled: threading.Event | None = None,
    slice_seconds: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> Slices[Episodes]:
    """Plays as `play` does, and yields between slices so that other work can use the device; returns the episodes.

    Args:
        simulator: As of `play`, like the following ones.
        actor: Acts in all lanes.
        episodes: E, number of episodes to play.
        seed: Seed of the episodes.
        first_episode: Number of the first of them.
        cancelled: Checked before each step.
        slice_seconds: Duration of a slice; it ends with the first step after that.
        clock: Measures it.

    Raises:
        DataLoss, Cancelled: As `play`.
    """
    names, due = simulator.observation_space.agents, clock() + slice_seconds
    lanes, end = simulator.count // max(1, len(names)), first_episode + episodes
    begin = simulator.reset_for_single_episodes if isinstance(simulator, SingleEpisodes) else simulator.reset
    tallies, reports = [], []
    for batch in range(first_episode // lanes, -(-end // lanes)):
        numbers = torch.arange(batch * lanes, (batch + 1) * lanes)
        actor.begin(batch)
        observation = begin(derive_seed(seed, "reset", batch))
        tally = BatchTally((first_episode <= numbers) & (numbers < end), observation.device, agents=len(names) or 1)
        while not tally.complete:
            if cancelled is not None and cancelled.is_set():
                raise Cancelled("the evaluation was cancelled")
            step = simulator.step(actor.act(observation))
            observation = step.observation
            actor.reset(step.terminated | step.truncated)
            tally.add(step)
            if clock() >= due:
                yield
                due = clock() + slice_seconds
        tallies.append(tally)
        reports.append(simulator.report())
    returns, lengths = (torch.cat(parts) for parts in zip(*(tally.finished() for tally in tallies), strict=True))
    if not bool(returns.isfinite().all()):
        raise DataLoss(
            "an evaluation return is not finite: check the rewards of the simulator",
            reason="ERROR_REASON_NON_FINITE",
        )
    report = merged_report(reports, [tally.wanted.tolist() for tally in tallies])
    return Episodes(returns, lengths, with_agent_returns(report, names, [tally.agent_returns for tally in tallies]))


def with_agent_returns(report: Report, names: Sequence[str], returns: Sequence[Tensor]) -> Report:
    """Adds the return of each agent to the measures of single episodes, as `return.<agent>`.

    Args:
        report: Of the simulator.
        names: Of the agents of one environment; nothing is added if there are none, or more than MOST_AGENTS_LISTED.
        returns: For each batch, the returns of the agents in the episodes that were requested: [E, A].
    """
    if not 0 < len(names) <= MOST_AGENTS_LISTED:
        return report
    columns = torch.cat(list(returns)).unbind(1)
    own = {f"return.{name}": column.tolist() for name, column in zip(names, columns, strict=True)}
    return replace(report, episode_metrics={**report.episode_metrics, **own})


class BatchTally:
    """Counts the first episode of each environment of a batch, on the device of the simulator.

    All tensors have shape [N], with N environments of A lanes each.

    On a GPU, whether the batch is complete is examined every `poll_steps` steps only, because the host waits for the
    GPU then. The steps that follow the last episode change nothing.

    Attributes:
        wanted: bool on the CPU, which environments play an episode that was requested.
        lengths: int64, steps of the first episode so far.
    """

    def __init__(
        self,
        wanted: Tensor,
        device: torch.device | str = "cpu",
        poll_steps: int | None = None,
        agents: int = 1,
    ) -> None:
        """Starts with no steps.

        Args:
            wanted: [N], see the attributes.
            device: Of the simulator.
            poll_steps: Steps between two examinations; None: 1 on a processor and POLL_STEPS on a GPU.
            agents: A, lanes of each environment.
        """
        device = torch.device(device)
        self.wanted, self._wanted = wanted, wanted.to(device)
        self._returns = torch.zeros(len(wanted), agents, dtype=torch.float64, device=device)
        self.lengths = torch.zeros(len(wanted), dtype=torch.int64, device=device)
        self._running = torch.ones(len(wanted), dtype=torch.bool, device=device)
        self._poll_steps = poll_steps or (1 if device.type == "cpu" else POLL_STEPS)
        self._steps = 0

    @property
    def complete(self) -> bool:
        """Whether every episode that was requested has ended, as far as this is examined after the present step."""
        return not self._steps % self._poll_steps and self._ended()

    def _ended(self) -> bool:
        return not bool((self._running & self._wanted).any())

    @property
    def returns(self) -> Tensor:
        """Undiscounted return [N] of each first episode so far, summed over the agents, float64."""
        return self._returns.sum(1)

    @property
    def agent_returns(self) -> Tensor:
        """Undiscounted returns [E, A] of the agents in the episodes that were requested, on the CPU."""
        return self._returns.cpu()[self.wanted]

    def finished(self) -> tuple[Tensor, Tensor]:
        """Returns the returns and the lengths [E] of the episodes that were requested, on the CPU."""
        return self.returns.cpu()[self.wanted], self.lengths.cpu()[self.wanted]

    def add(self, step: Step) -> None:
        """Counts one step of every lane; raises DataLoss as `play` does."""
        self._steps += 1
        reward = step.reward.to(self._returns).view_as(self._returns)
        self._returns += torch.where(self._running.unsqueeze(1), reward, 0.0)
        self.lengths += self._running
        ended = (step.terminated | step.truncated).to(self._running.device).view_as(self._returns)
        self._running &= ~ended.all(1)
        if self._steps >= MAXIMUM_EPISODE_STEPS and not self._ended():
            raise DataLoss(
                f"an evaluation episode has not ended after {MAXIMUM_EPISODE_STEPS} steps: give the environment a time"
                " limit, for instance environment.options.max_episode_steps"
            )


def merged_report(reports: Sequence[Report], wanted: Sequence[Sequence[bool]]) -> Report:
    """Combines the reports of several batches.

    Metrics are means weighted by episodes, traces are those of the last batch that has some, and metrics of single
    episodes are in the order of the episodes.

    Args:
        reports: One for each batch.
        wanted: For each batch, which lanes played an episode that was requested.
    """
    totals: dict[str, list[float]] = {}
    single: dict[str, list[float]] = {}
    for report, lanes in zip(reports, wanted, strict=True):
        for name, value in report.metrics.items():
            total = totals.setdefault(name, [0.0, 0.0])
            total[0] += sum(lanes) * value
            total[1] += sum(lanes)
        for name, values in report.episode_metrics.items():
            single.setdefault(name, []).extend(compress(values, lanes))
    last = next((report for report in reversed(reports) if report.traces), Report())
    metrics = {name: total / weight for name, (total, weight) in totals.items()}
    return Report(metrics, last.traces, last.labels, single)


def score(episodes: Episodes) -> Evaluation:
    """Returns the mean and the unbiased variance of the returns, and the mean length; the variance of one is 0."""
    count = len(episodes.returns)
    return Evaluation(
        mean_return=float(episodes.returns.mean()),
        variance=float(episodes.returns.var()) if count > 1 else 0.0,
        episodes=count,
        mean_length_steps=float(episodes.lengths.double().mean()),
    )


def add_report(evaluation: Evaluation, report: Report) -> None:
    """Adds the metrics and traces that the simulator reports.

    A trace takes the labels of the same name, or those of the only set of labels, if their numbers agree.
    """
    evaluation.metrics.update(report.metrics)
    only = next(iter(report.labels.values())) if len(report.labels) == 1 else []
    for name, values in report.traces.items():
        labels = report.labels.get(name, only)
        evaluation.traces[name].CopyFrom(Trace(values=values, labels=labels if len(labels) == len(values) else ()))
