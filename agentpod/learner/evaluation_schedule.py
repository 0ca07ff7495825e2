"""Schedules the evaluations of an agent, and runs one at a time while training continues."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentpod.experience.slots import PolicySlot
from agentpod.learner.checkpoint_files import FrozenState
from agentpod.learner.interfaces import CheckpointAccess, LeaseStatus
from agentpod.learner.opponents.candidates import opponents_of
from agentpod.learner.progress_reporter import ProgressReporter
from agentpod.learner.staged_evaluation import PlayEpisodes, bars_of, evaluate_in_stages
from agentpod.roles.objectives import penalize_folds
from agentpod.session.session import Roles
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, EpochScore, Evaluation
from podrace.errors import DataLoss
from podrace.specification.evaluation_episodes import evaluation_lanes, evaluation_seed
from podrace.tournament.v1.tournament_pb2 import EvaluationSpec, TournamentSpec

MOST_OTHER_EPOCHS = 1
"""Largest number of further evaluation epochs in which one policy is scored."""
SCORE_AFTER_STOP_SECONDS = 10.0
"""Time that the evaluation of an agent's last policy may take after a stop. Many tournaments end while it is under way,
because the last steps of the agent use up their budget. A launcher ends a pod 20 s after it was asked to stop."""


@dataclass
class EvaluationSchedule:
    """Decides when an agent is evaluated, counted in its own environment steps."""

    every_steps: int
    """Environment steps between two evaluations."""
    due_steps: int
    """Environment steps at which the next evaluation is due."""

    @classmethod
    def starting_at(cls, steps: int, spec: EvaluationSpec) -> "EvaluationSchedule":
        """Returns the schedule of an agent that has taken `steps` environment steps."""
        every = spec.every_environment_steps
        return cls(every, due_steps=(steps // every + 1) * every)

    def take(self, steps: int) -> bool:
        """Returns whether a multiple of `every_steps` was passed since the last call that returned True."""
        if steps < self.due_steps:
            return False
        self.due_steps = (steps // self.every_steps + 1) * self.every_steps
        return True


@dataclass
class EvaluationTime:
    """Counts how much of a pod's work was spent on evaluations, over all its assignments."""

    earlier_seconds: float = 0.0
    """Wall-clock time of the assignments before the current one."""
    spent_seconds: float = 0.0
    """Wall-clock time that evaluations have taken."""
    last_seconds: float = 0.0
    """Wall-clock time that the last completed evaluation took; 0 before the first."""

    def add(self, seconds: float) -> None:
        """Counts a completed evaluation that took this long."""
        self.last_seconds = seconds
        self.spent_seconds += seconds

    def affords(
        self, share: float, assignment_seconds: float, further_seconds: float, ongoing_seconds: float = 0.0
    ) -> bool:
        """Returns whether evaluations stay within their share of the pod's work if they take some seconds more.

        Args:
            share: Largest share of the time that evaluations may take, between 0 and 1.
            assignment_seconds: Wall-clock time since the work on the current assignment started.
            further_seconds: Expected time of what is considered.
            ongoing_seconds: Time that the evaluation under way has taken.
        """
        work_seconds = self.earlier_seconds + assignment_seconds + further_seconds
        return self.spent_seconds + ongoing_seconds + further_seconds <= share * work_seconds


class Scorer:
    """Evaluates policies and publishes them with their scores, at most one at a time.

    A stop cancels the evaluation, that of an agent's last policy after SCORE_AFTER_STOP_SECONDS.

        scorer.start(frozen, roles.ring.hold())
        ...                                  # the training continues
        await scorer.settle()                # published, cancelled, or raises the error of the evaluation

    Attributes:
        scored_version: Newest policy version that was published with its score; -1 before the first.
    """

    def __init__(
        self,
        roles: Roles,
        checkpoints: CheckpointAccess,
        progress: ProgressReporter,
        lease: LeaseStatus,
        spec: TournamentSpec,
        spent: EvaluationTime,
        *,
        started: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts without an evaluation under way.

        Args:
            roles: The open roles, whose evaluator is used.
            checkpoints: Where scored policies are published.
            progress: Where scores are reported.
            lease: States which episodes to play; once its `stop` is done, the evaluation in progress is cancelled.
            spec: Resolved specification of the tournament.
            spent: Counts the time of the pod's evaluations.
            started: Time at which the work on the assignment started, by the clock.
            clock: Monotonic clock in seconds.
        """
        self._roles, self._checkpoints, self._progress = roles, checkpoints, progress
        self._lease, self._spec, self._clock = lease, spec, clock
        self._spent, self._started = spent, started
        self._task: asyncio.Task[None] | None = None
        self._publishing = False
        self.scored_version = -1
        self._ends_training = False
        # The training itself cannot cancel it: it may be waiting for the compute thread that this evaluation occupies.
        lease.stop.add_done_callback(lambda _: self._stop())

    @property
    def busy(self) -> bool:
        """Whether an evaluation is under way."""
        return self._task is not None and not self._task.done()

    def start(self, frozen: FrozenState, held: PolicySlot) -> None:
        """Starts to evaluate a policy in a held slot; the previous evaluation must have been settled."""
        self._task = asyncio.create_task(self._score(frozen, held))

    def end_training(self) -> None:
        """States that the policies from now on are the last ones: a stop lets their evaluation end if it is short."""
        self._ends_training = True

    async def settle(self) -> None:
        """Waits for the evaluation under way, if any, and raises its error; cancellation is not an error."""
        if task := self._task:
            # It stays the evaluation under way while this waits: a stop has to find it.
            await asyncio.wait([task])
            self._forget(task)
            if not task.cancelled():
                task.result()

    async def cancel(self) -> None:
        """Cancels the evaluation under way and ignores its result; one that is being published is finished first."""
        self._request_cancel()
        if task := self._task:
            await asyncio.gather(task, return_exceptions=True)
            self._forget(task)

    async def interrupt(self) -> None:
        """Cancels the evaluation under way, because a role was lost; a policy that is being published is left alone.

        Publishing needs no role, and takes minutes while the store accepts nothing.
        """
        if not self._publishing:
            await self.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        # Two callers may have waited for the task, and the first of them may have started the next evaluation.
        if self._task is task:
            self._task = None

    def _stop(self) -> None:
        if self._ends_training and self._lease.held and not self._lease.stopped_early:
            asyncio.get_running_loop().call_later(SCORE_AFTER_STOP_SECONDS, self._request_cancel)
        else:
            self._request_cancel()

    def _request_cancel(self) -> None:
        if self._task and not self._publishing:
            self._task.cancel()

    async def _score(self, frozen: FrozenState, held: PolicySlot) -> None:
        started = self._clock()
        version = frozen.counters.policy_version
        try:
            evaluation = await self._evaluate(held)
        except BaseException:
            # It was not completed, so its duration is not what the last evaluation will take.
            self._spent.spent_seconds += self._clock() - started
            raise
        finally:
            held.release()
        # The time spent waiting for a failing evaluator plugin used no compute, so only the built-in evaluation counts.
        self._spent.add(evaluation.wall_seconds if evaluation.evaluator_fault else self._clock() - started)
        self._progress.report_score(evaluation)
        self._publishing = True
        try:
            await self._checkpoints.publish(frozen, evaluation)
        finally:
            self._publishing = False
        self.scored_version = version

    async def _evaluate(self, held: PolicySlot) -> Evaluation:
        """Scores a policy in the current evaluation epoch, and in those that the leaderboard wants besides."""
        epoch, wanted = self._lease.evaluation_epoch, self._spec.evaluation
        # Which candidates the leaderboard knows by now depends on the speed of the pods.
        plan = None if self._spec.synchronous else await self._checkpoints.plan_evaluation(epoch)
        others = [one for one in plan.other_epochs if one != epoch][:MOST_OTHER_EPOCHS] if plan else []
        # A policy that is scored in two epochs plays all episodes: if only those that do well in an epoch were scored
        # in the other too, a hard epoch would never be found to be hard.
        bars = bars_of(plan) if wanted.racing and not others else None
        limited = wanted.racing and not self._spec.synchronous
        evaluation = await evaluate_in_stages(
            self._player(held, epoch),
            wanted.episodes,
            evaluation_lanes(self._spec),
            bars,
            affords=self._affords if limited else None,
            fold_deviations=wanted.fold_deviations,
        )
        evaluation.epoch = epoch
        if not evaluation.evaluator_fault:
            for other in others:
                played = await self._player(held, other)(0, evaluation.episodes)
                scored = penalize_folds(played, wanted.fold_deviations, required=True)
                if scored.evaluator_fault:
                    break
                evaluation.other_epochs.append(epoch_score(other, scored))
                evaluation.wall_seconds += scored.wall_seconds
        if plan and plan.opponents and self._spec.opponents.rated:
            await self._play_matches(held, epoch, plan.opponents, evaluation)
        return evaluation

    async def _play_matches(
        self, held: PolicySlot, epoch: int, candidates: Sequence[Checkpoint], evaluation: Evaluation
    ) -> None:
        """Adds the results of games against other candidates to an evaluation."""
        # An opponent beyond the number of games that are played at once would have no lane.
        published = await self._checkpoints.read_opponents(candidates[: evaluation_lanes(self._spec)])
        opponents = opponents_of(published, self._roles.spaces, self._spec)
        if not opponents:
            return
        played = await self._roles.evaluate(
            held,
            episodes=len(opponents) * self._spec.opponents.games,
            seed=evaluation_seed(self._spec, epoch),
            greedy=self._spec.evaluation.greedy,
            opponents=opponents,
        )
        if played.policy_digest != evaluation.policy_digest:
            raise DataLoss("the policy was changed while it was scored: its games were played with other parameters")
        evaluation.matches.extend(played.matches)
        evaluation.wall_seconds += played.wall_seconds

    def affords_another(self) -> bool:
        """Whether evaluations stay within their share of the pod's work with another one like the last."""
        return self._affords(0.0, self._spent.last_seconds)

    def _affords(self, ongoing_seconds: float, further_seconds: float) -> bool:
        elapsed = self._clock() - self._started
        return self._spent.affords(self._spec.evaluation.share, elapsed, further_seconds, ongoing_seconds)

    def _player(self, held: PolicySlot, epoch: int) -> PlayEpisodes:
        """Returns a function that plays episodes of an epoch with the policy in a slot."""
        seed, greedy = evaluation_seed(self._spec, epoch), self._spec.evaluation.greedy

        async def play(first_episode: int, episodes: int) -> Evaluation:
            return await self._roles.evaluate(
                held, episodes=episodes, seed=seed, greedy=greedy, first_episode=first_episode
            )

        return play


def epoch_score(epoch: int, evaluation: Evaluation) -> EpochScore:
    """Returns the score of an evaluation in an epoch."""
    return EpochScore(
        epoch=epoch,
        mean_return=evaluation.mean_return,
        standard_error=math.sqrt(evaluation.variance / evaluation.episodes),
        episodes=evaluation.episodes,
    )
