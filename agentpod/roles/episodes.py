"""Plays evaluation episodes, which are named by a seed and a number, and computes a score from their returns.

Episode i of a seed starts in the same way for every policy, however many episodes are played in one call, and however
long other episodes take. For that, the simulator is reset for each batch of episodes, with a seed derived from (seed,
batch), and each lane plays one episode of the batch: lane j of batch b plays episode b N + j, with N the number of
lanes. The number of lanes is therefore part of the definition of an episode; it is fixed by the session. Sampled
actions repeat as well.

How much of an episode is common to all policies depends on the simulator: its first state always is, random events
during the episode only if the simulator draws them for each lane separately. Wrappers that keep statistics over all
lanes (`normalize_observations`, `normalize_rewards`) start again with each batch and depend on what was done in it.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Protocol

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
        simulator: N environments, one in each lane.
        actor: Acts in all lanes.
        episodes: E, number of episodes to play.
        seed: Seed of the episodes.
        first_episode: Number of the first of them.
        cancelled: Checked before each step.

    Raises:
        DataLoss: A return is not finite, or an episode does not end.
        Cancelled: `cancelled` was set.
    """
    lanes, end = simulator.count, first_episode + episodes
    begin = simulator.reset_for_single_episodes if isinstance(simulator, SingleEpisodes) else simulator.reset
    tallies, reports = [], []
    for batch in range(first_episode // lanes, -(-end // lanes)):
        numbers = torch.arange(batch * lanes, (batch + 1) * lanes)
        actor.begin(batch)
        observation = begin(derive_seed(seed, "reset", batch))
        tally = BatchTally((first_episode <= numbers) & (numbers < end), observation.device)
        while not tally.complete:
            if cancelled is not None and cancelled.is_set():
                raise Cancelled("the evaluation was cancelled")
            step = simulator.step(actor.act(observation))
            observation = step.observation
            actor.reset(step.terminated | step.truncated)
            tally.add(step)
        tallies.append(tally)
        reports.append(simulator.report())
    returns, lengths = (torch.cat(parts) for parts in zip(*(tally.finished() for tally in tallies), strict=True))
    if not bool(returns.isfinite().all()):
        raise DataLoss(
            "an evaluation return is not finite: check the rewards of the simulator",
            reason="ERROR_REASON_NON_FINITE",
        )
    return Episodes(returns, lengths, merged_report(reports, [tally.wanted.tolist() for tally in tallies]))


class BatchTally:
    """Counts the first episode of each lane of a batch, on the device of the simulator. All tensors have shape [N].

    On a GPU, whether the batch is complete is examined every `poll_steps` steps only, because the host waits for the
    GPU then. The steps that follow the last episode change nothing.

    Attributes:
        wanted: bool on the CPU, which lanes play an episode that was requested.
        returns: float64, undiscounted return of the lane's first episode, so far.
        lengths: int64, its steps so far.
    """

    def __init__(self, wanted: Tensor, device: torch.device | str = "cpu", poll_steps: int | None = None) -> None:
        """Starts with no steps; `poll_steps` is 1 on a processor and POLL_STEPS on a GPU, unless it is given."""
        device = torch.device(device)
        self.wanted, self._wanted = wanted, wanted.to(device)
        self.returns = torch.zeros(len(wanted), dtype=torch.float64, device=device)
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

    def finished(self) -> tuple[Tensor, Tensor]:
        """Returns the returns and the lengths [E] of the episodes that were requested, on the CPU."""
        return self.returns.cpu()[self.wanted], self.lengths.cpu()[self.wanted]

    def add(self, step: Step) -> None:
        """Counts one step of every lane; raises DataLoss as `play` does."""
        self._steps += 1
        self.returns += torch.where(self._running, step.reward.to(self.returns), 0.0)
        self.lengths += self._running
        self._running &= ~(step.terminated | step.truncated).to(self._running.device)
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
