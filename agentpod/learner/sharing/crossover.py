"""Lets a child start from the average of its parent and the parent's siblings, if the average scores no lower.

Both are scored on the same episodes, by the evaluator of the pod, before anything is trained. Everything that prevents
it (a mate that cannot be read, another layout, a number that is not finite, too little memory, a stop) leaves the child
at its parent.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import prometheus_client
import structlog

from agentpod.algorithms.base import Algorithm
from agentpod.compute_thread import ComputeThread
from agentpod.fusion.crossover import average_into
from agentpod.learner.checkpoint_files import StartingState, restore
from agentpod.learner.evaluation_schedule import EvaluationTime
from agentpod.learner.interfaces import LeaseStatus
from agentpod.roles.objectives import penalize_folds
from agentpod.session.session import Roles
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import DataLoss, InvalidArgument, ResourceExhausted
from podrace.specification.evaluation_episodes import evaluation_seed
from podrace.tasks import finish_unless_stopped
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

_log = structlog.get_logger(__name__)
CROSSOVERS = prometheus_client.Counter(
    "podrace_learner_crossovers",
    "Children that were offered the average of two agents, by what they start from",
    ["start"],
)


def prefers_average(average: Evaluation, parent: Evaluation) -> tuple[bool, str]:
    """Decides whether a child starts from the average, given the scores on the same episodes; returns the reason."""
    if bool(average.evaluator_fault) != bool(parent.evaluator_fault):
        return False, "different evaluators scored the average and the parent"
    scores = f"{average.mean_return:.4g} against {parent.mean_return:.4g} of the parent on {parent.episodes} episodes"
    if average.mean_return >= parent.mean_return:
        return True, f"the average scores {scores}"
    return False, f"the average scores lower: {scores}"


class Crossover:
    """Scores the average and the parent, and leaves the better one in the algorithm.

    used = await Crossover(roles, compute, lease, spec, evaluation_time).choose(algorithm, make, start)
    """

    def __init__(
        self, roles: Roles, compute: ComputeThread, lease: LeaseStatus, spec: TournamentSpec, spent: EvaluationTime
    ) -> None:
        """Scores nothing yet.

        Args:
            roles: The open roles, whose evaluator is used.
            compute: Thread of the algorithm.
            lease: Says which episodes to play, and when to stop.
            spec: Resolved specification of the tournament.
            spent: Counts the time of the pod's evaluations.
        """
        self._roles, self._compute, self._lease, self._spec, self._spent = roles, compute, lease, spec, spent

    async def choose(self, algorithm: Algorithm, make: Callable[[], Algorithm], start: StartingState) -> bool:
        """Averages an algorithm with the mates of its starting state, if that scores no lower.

        Args:
            algorithm: The algorithm, restored from its parent.
            make: Makes another algorithm with the same hyperparameters.
            start: Starting state of the agent.

        Returns:
            Whether the algorithm is the average now; if not, it is what it was.

        Raises:
            RoleLost: The evaluator does not answer.
        """
        version, parent, average = start.counters.policy_version, None, None
        # Once for both scores: a renewal of the lease may change the epoch between them.
        seed = evaluation_seed(self._spec, self._lease.evaluation_epoch)
        try:
            parent = await self._score(algorithm, version, seed)
            if parent:
                await self._compute.run(_average, algorithm, make, [mate.parts for mate in start.mates])
                average = await self._score(algorithm, version, seed)
        except (InvalidArgument, DataLoss, ResourceExhausted) as error:
            return await self._keep_parent(algorithm, start, error.message)
        if not (parent and average):
            return await self._keep_parent(algorithm, start, "the work must end")
        better, reason = prefers_average(average, parent)
        if not better:
            return await self._keep_parent(algorithm, start, reason)
        CROSSOVERS.labels("average").inc()
        _log.info("starts from the average", mates=[mate.note for mate in start.mates], reason=reason)
        return True

    async def _keep_parent(self, algorithm: Algorithm, start: StartingState, reason: str) -> bool:
        await self._compute.run(restore, algorithm, start.parts)
        CROSSOVERS.labels("parent").inc()
        _log.info("starts from its parent and not from the average", reason=reason)
        return False

    async def _score(self, algorithm: Algorithm, version: int, seed: int) -> Evaluation | None:
        """Scores the policy of an algorithm on the episodes of a seed; None if the work must end first."""
        wanted = self._spec.evaluation
        self._roles.ring.publish(algorithm.policy.flat, version)
        held = self._roles.ring.hold()
        playing = asyncio.create_task(
            self._roles.evaluate(held, episodes=wanted.episodes, seed=seed, greedy=wanted.greedy)
        )
        try:
            if not await finish_unless_stopped(playing, self._lease.stop):
                return None
            evaluation = playing.result()
        finally:
            held.release()
        self._spent.add(evaluation.wall_seconds)
        return penalize_folds(evaluation, wanted.fold_deviations, required=True)


def _average(algorithm: Algorithm, make: Callable[[], Algorithm], mates: Sequence[Mapping[str, bytes]]) -> None:
    """Averages an algorithm with restored mates, in place; raises InvalidArgument or DataLoss if that is impossible."""
    others = []
    for parts in mates:
        others.append(make())
        restore(others[-1], parts)
    averaged = algorithm.fusible()
    average_into(averaged, [other.fusible() for other in others])
    algorithm.refresh()
    state = (*averaged.parameters.values(), *averaged.targets.values(), *averaged.moments.values())
    if not all(tensor.isfinite().all() for tensor in (*state, algorithm.policy.flat)):
        raise DataLoss("the average has numbers that are not finite")
