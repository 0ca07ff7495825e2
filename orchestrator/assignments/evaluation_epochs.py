"""Finds the evaluation epoch of each agent in training; the rules are in `decisions.evaluation_epoch`."""

from orchestrator.decisions.evaluation_epoch import evaluation_epoch
from orchestrator.state import records
from orchestrator.state.clock import Clock
from orchestrator.state.database import StateDatabase
from orchestrator.state.records import AgentRecord
from orchestrator.state.runtime import RuntimeState


class EvaluationEpochs:
    """The evaluation epochs that agents are in now.

    epoch = await epochs.of(tournament_id, work_id)  # with each assignment and each renewal
    """

    def __init__(self, state: StateDatabase, runtime: RuntimeState, clock: Clock) -> None:
        self._state, self._runtime, self._clock = state, runtime, clock
        self._earlier_steps: dict[tuple[str, int], int] = {}
        """Environment steps of the rounds before one that is under way, by its tournament and its first number."""

    async def of(self, tournament_id: str, work_id: str) -> int:
        """Returns the epoch in which an agent is scored now; 0 for work that trains no agent.

        In a synchronous tournament it depends only on the round of the agent, because progress is not reproducible: the
        steps of the earlier rounds count, which have ended, and the clock does not count.

        The epoch of a tournament never falls: after its objective was extended, it stays in the epoch that it has
        reached until its progress leads to a higher one.
        """
        tournament = self._runtime.cache.tournaments.get(tournament_id)
        work = self._runtime.cache.works.get(work_id)
        if tournament is None or not isinstance(work, AgentRecord):
            return 0
        if tournament.spec.synchronous:
            begin = work.number - work.number % tournament.round_size
            seconds, steps = 0.0, await self._steps_before(tournament_id, begin)
        else:
            seconds = self._runtime.running_time.seconds(tournament_id, self._clock.monotonic())
            steps = self._runtime.counters.environment_steps(tournament_id)
        epoch = evaluation_epoch(tournament.spec.objective, seconds, steps)
        return self._runtime.counters.reach_epoch(tournament_id, epoch)

    async def _steps_before(self, tournament_id: str, begin: int) -> int:
        known = self._earlier_steps.get((tournament_id, begin))
        if known is not None:
            return known
        steps = await self._state.transact(records.steps_below, tournament_id, begin)
        tournaments = self._runtime.cache.tournaments.keys() - {tournament_id}
        self._earlier_steps = {key: kept for key, kept in self._earlier_steps.items() if key[0] in tournaments}
        self._earlier_steps[tournament_id, begin] = steps
        return steps
