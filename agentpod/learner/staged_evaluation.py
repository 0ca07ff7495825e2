"""Evaluates a policy in stages.

The evaluation stops as soon as it is decided whether the policy enters the board and that it cannot lead, or when the
next stage would exceed the share of the pod's time that evaluations may take. The first stage is always played.
podrace.comparison.racing decides; this module asks for the episodes of the next stage and joins the results.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from agentpod.roles.objectives import penalize_folds
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.comparison import racing
from podrace.errors import DataLoss
from podrace.leaderboard.v1.leaderboard_pb2 import Bar, PlanEvaluationResponse

PlayEpisodes = Callable[[int, int], Awaitable[Evaluation]]
"""Plays episodes: (number of the first one, how many)."""
Affords = Callable[[float, float], bool]
"""Whether there is time for more episodes: (seconds that the evaluation has taken, seconds that they will take)."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Bars:
    """What a policy has to beat."""

    entry: racing.Bar
    """In order to enter the board; the same as `lead` while the board has room."""
    lead: racing.Bar
    """In order to lead it."""


def bars_of(plan: PlanEvaluationResponse | None) -> Bars | None:
    """Returns the bars of a plan; None if there are none, or if one is not usable."""
    if plan is None or not plan.HasField("bar"):
        return None
    entry = _usable(plan.bar)
    lead = _usable(plan.lead) if plan.HasField("lead") else entry
    return Bars(entry, lead) if entry and lead else None


def _usable(bar: Bar) -> racing.Bar | None:
    numbers = (bar.score, bar.standard_error, *bar.episode_returns)
    if not all(map(math.isfinite, numbers)) or bar.standard_error < 0:
        return None
    return racing.Bar(bar.score, bar.standard_error, tuple(bar.episode_returns))


async def evaluate_in_stages(
    play: PlayEpisodes,
    episodes: int,
    lanes: int,
    bars: Bars | None,
    *,
    affords: Affords | None = None,
    fold_deviations: float = 0.0,
) -> Evaluation:
    """Evaluates a policy until more episodes would change neither whether it enters the board nor whether it leads.

    Args:
        play: Plays the episodes of a stage.
        episodes: Largest number of episodes.
        lanes: Episodes that are played at the same time.
        bars: What the policy has to beat; None: nothing is decided early.
        affords: Whether there is time for a further stage; None: always. Without it and without bars, all episodes
            are played at once.
        fold_deviations: Standard deviations between folds to subtract from the score.

    Raises:
        InvalidArgument: There are deviations to subtract, but no folds.
    """
    planned = racing.stages(episodes, lanes) if bars or affords else (episodes,)
    parts: list[Evaluation] = []
    for stage in planned:
        played = sum(part.episodes for part in parts)
        parts.append(await play(played, stage - played))
        whole = penalize_folds(joined(parts), fold_deviations, required=True)
        # In a thread, because the bounds for a new number of episodes take a fraction of a second to compute.
        if bars and stage < episodes and await asyncio.to_thread(is_decided, sample_of(whole), bars, planned):
            _log.info("evaluation stopped early", episodes=stage, maximum=episodes, score=whole.mean_return)
            break
        if affords and stage < episodes and not affords(whole.wall_seconds, _next_seconds(whole, planned)):
            _log.info("evaluation has used its share of time", episodes=stage, maximum=episodes)
            break
    return whole


def _next_seconds(played: Evaluation, planned: Sequence[int]) -> float:
    """Returns the expected wall-clock time of the stage after those that were played."""
    following = min(stage for stage in planned if stage > played.episodes)
    return played.wall_seconds * (following - played.episodes) / played.episodes


def is_decided(sample: racing.Sample, bars: Bars, planned: Sequence[int]) -> bool:
    """Whether a policy cannot lead, and it is decided whether it enters the board."""
    entry = racing.decide(sample, bars.entry, planned)
    if entry == "behind":
        return True
    return entry == "ahead" and racing.decide(sample, bars.lead, planned) == "behind"


def sample_of(evaluation: Evaluation) -> racing.Sample:
    """Returns what a decision needs of an evaluation."""
    return racing.Sample(
        evaluation.mean_return, evaluation.variance, evaluation.episodes, tuple(evaluation.episode_returns)
    )


def joined(parts: Sequence[Evaluation]) -> Evaluation:
    """Joins consecutive parts of an evaluation into one.

    Means are weighted by episodes. The variance is the unbiased one of all returns (Chan, Golub and LeVeque 1979,
    equation 2.1). Metrics are averaged like the returns, and traces are those of the last part that has some.

    Raises:
        DataLoss: The parts scored different policies.
    """
    if len(parts) == 1:
        return parts[0]
    whole = Evaluation()
    whole.CopyFrom(parts[-1])
    for name in ("episode_returns", "episode_folds", "metrics", "episode_metrics"):
        whole.ClearField(name)
    count = sum(part.episodes for part in parts)
    whole.episodes = count
    whole.mean_return = math.fsum(part.episodes * part.mean_return for part in parts) / count
    within = math.fsum((part.episodes - 1) * part.variance for part in parts)
    between = math.fsum(part.episodes * (part.mean_return - whole.mean_return) ** 2 for part in parts)
    whole.variance = (within + between) / (count - 1)
    whole.mean_length_steps = math.fsum(part.episodes * part.mean_length_steps for part in parts) / count
    whole.wall_seconds = math.fsum(part.wall_seconds for part in parts)
    for name in parts[-1].metrics:
        whole.metrics[name] = math.fsum(part.episodes * part.metrics[name] for part in parts) / count
    for name in parts[-1].episode_metrics:
        whole.episode_metrics[name] = math.fsum(part.episodes * part.episode_metrics[name] for part in parts) / count
    if whole.HasField("undiscounted_return"):
        whole.undiscounted_return = math.fsum(part.episodes * part.undiscounted_return for part in parts) / count
    if all(part.episode_returns for part in parts):
        whole.episode_returns.extend(value for part in parts for value in part.episode_returns)
        whole.episode_folds.extend(fold for part in parts for fold in part.episode_folds)
    for part in parts:
        if (part.policy_digest, part.member_policy_digests) != (whole.policy_digest, whole.member_policy_digests):
            raise DataLoss("the policy was changed while it was scored: the stages scored different parameters")
        if part.traces and not whole.traces:
            whole.MergeFrom(Evaluation(traces=part.traces))
    return whole
