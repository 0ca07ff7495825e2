"""Checks when tournaments end and when the next round of a synchronous tournament may start.

The rule itself is in `decisions.objective`.
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import structlog

from orchestrator.decisions import objective
from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.state import records
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.observation import observe
from orchestrator.state.records import COMPLETED, ENDING, RUNNING, TournamentRecord
from orchestrator.state.runtime import RuntimeState, save_changes
from orchestrator.state.transitions import withdraw_target_checks
from orchestrator.tournaments.champion import ChampionSelection
from orchestrator.tournaments.quota_reports import QuotaReports
from orchestrator.tournaments.refused_submissions import RefusedSubmissions
from orchestrator.tournaments.target_checks import TargetChecks, TargetVerdict
from orchestrator.tournaments.verifications import END_SECONDS, Verifications
from podrace.errors import PodraceError
from podrace.specification import evolution_settings

LEADERBOARD_TIMEOUT_SECONDS = 10.0
"""Time that the end of a tournament waits for a leaderboard that does not respond."""
_log = structlog.get_logger(__name__)


class CompletionCheck:
    """Checks all tournaments against their objectives.

    await completion_check.check_all(clock.monotonic())
    """

    def __init__(self, state: StateDatabase, runtime: RuntimeState, leaderboard: LeaderboardClient) -> None:
        self._state, self._runtime, self._leaderboard = state, runtime, leaderboard
        self._champion_selection = ChampionSelection(state, runtime, leaderboard)
        self._target_checks = TargetChecks(state, runtime, leaderboard)
        self._refused, self._quotas = RefusedSubmissions(state), QuotaReports(state)
        self._verifications = Verifications(state, runtime, leaderboard)
        # By tournament, whether a candidate waits to be verified, as of the last answer of the leaderboard.
        self._held: dict[str, bool] = {}
        self._no_training_since: dict[str, float] = {}
        self._had_pods: set[str] = set()

    async def check_all(self, now: float) -> None:
        """Refreshes the best candidates, ends tournaments that met their objective, and lets rounds start.

        A paused tournament is checked after it was resumed.
        """
        observed = observe(self._runtime.cache)
        active = {found.tournament_id for found in observed.tournaments if found.state in (RUNNING, ENDING)}
        with_pods = {pod.tournament_id for pod in observed.pods}
        # Refreshed once more after the last pod has stopped, which may have submitted just before.
        fresh = await self._leaderboard.refresh(active | with_pods | self._had_pods)
        self._had_pods = with_pods
        await self._review(now, [found for found in observed.tournaments if found.state in (RUNNING, ENDING)])
        for tournament in observed.tournaments:
            name = tournament.tournament_id
            with _contained(name):
                if name in observed.training:
                    await self._check_running(now, tournament, observed.agents[name], fresh=name in fresh)
                elif tournament.state == ENDING:
                    await self._complete_ending(now, tournament, fresh=name in fresh)

    async def _review(self, now: float, active: Sequence[TournamentRecord]) -> None:
        """Asks which agents the strategies stop early; their pods receive that with their next renewals.

        The answer also lists the submissions that were refused, the candidate to verify, and what a quota deleted.
        """
        running = [one for one in active if one.state == RUNNING]
        names = [one.tournament_id for one in active if one.state == RUNNING or one.spec.evaluation.verify]
        answers = await self._leaderboard.review({name: await self._refused.last_number(name) for name in names})
        for name, answer in answers.items():
            with _contained(name):
                await self._refused.record(name, answer.refusals)
                await self._quotas.record(name, answer.quota_report)
        for tournament in active:
            name = tournament.tournament_id
            if tournament.spec.evaluation.verify and name in answers:
                with _contained(name):
                    self._held[name] = await self._verifications.advance(now, tournament, answers[name])
        self._runtime.incumbents |= {name: one.incumbent for name, one in answers.items() if one.HasField("incumbent")}
        stopping = [one.tournament_id for one in running if evolution_settings.may_stop(one.spec.evolution)]
        reviewed = {name: {stop.agent_id: stop.reason for stop in answer.stops} for name, answer in answers.items()}
        self._runtime.stops = {name: reviewed.get(name, self._runtime.stops.get(name, {})) for name in stopping}

    async def _check_running(
        self, now: float, tournament: TournamentRecord, unfinished: Collection[str], *, fresh: bool
    ) -> None:
        name, synchronous = tournament.tournament_id, tournament.spec.synchronous
        rounds_done = _rounds_done(tournament, unfinished)
        # All scores of a round are known only if the board was read after the last agent of the round had finished.
        between_rounds = not synchronous or (rounds_done > 0 and fresh)
        target = await self._target(now, tournament, rounds_done, between_rounds=between_rounds)
        # A synchronous tournament waits for the check, so that its next round depends on the seed only.
        between_rounds = between_rounds and not (synchronous and target.open)
        progress = objective.TournamentProgress(
            target_check=target.confirmed,
            running_seconds=self._runtime.running_time.seconds(name),
            environment_steps=self._runtime.counters.environment_steps(name),
            between_rounds=between_rounds,
        )
        reason = objective.met(tournament.spec.objective, progress)
        if reason:
            await self._state.transact(end_tournament, name, ENDING, reason)
            self._runtime.changes.notify_all()
            # If nothing is being trained any more, the champion can be selected at once.
            self._runtime.reconcile_requested.set()
        elif between_rounds and rounds_done > self._runtime.judged_rounds.get(name, 0):
            self._runtime.judged_rounds[name] = rounds_done
            self._runtime.changes.notify_all()

    async def _target(
        self, now: float, tournament: TournamentRecord, rounds_done: int, *, between_rounds: bool
    ) -> TargetVerdict:
        """Returns the result of the checks of the target return; no check is made during a round."""
        if not between_rounds:
            return TargetVerdict()
        return await self._target_checks.advance(now, tournament, rounds_done)

    async def _complete_ending(self, now: float, tournament: TournamentRecord, *, fresh: bool) -> None:
        name = tournament.tournament_id
        waited = now - self._no_training_since.setdefault(name, now)
        if self._runtime.leases.is_training(name, now):
            # The leaderboard's time to respond is counted from here on.
            self._no_training_since[name] = now
        elif self._held.get(name) and waited < END_SECONDS:
            return
        elif (fresh or waited >= LEADERBOARD_TIMEOUT_SECONDS) and await self._champion_selection.select_when_ready(
            now, tournament
        ):
            await save_changes(self._state, self._runtime)
            await self._state.transact(end_tournament, name, COMPLETED, tournament.reason)
            await self._verifications.give_up(name)
            self._held.pop(name, None)
            del self._no_training_since[name]
            self._runtime.changes.notify_all()


@contextlib.contextmanager
def _contained(tournament_id: str) -> Iterator[None]:
    """Logs what fails for one tournament, which the next reconcile cycle repeats: others and all pods must not wait."""
    try:
        yield
    except PodraceError as error:
        _log.error("a tournament could not be checked; retrying", tournament_id=tournament_id, error=error.message)
    except Exception:
        _log.exception("a tournament could not be checked; retrying", tournament_id=tournament_id)


def _rounds_done(tournament: TournamentRecord, unfinished: Collection[str]) -> int:
    """Number of complete rounds of a synchronous tournament; 0 while a round is in progress."""
    if not tournament.spec.synchronous or unfinished:
        return 0
    return tournament.next_agent // tournament.round_size


def end_tournament(transaction: Transaction, tournament_id: str, state: int, reason: str) -> None:
    """Changes the state of a tournament from RUNNING to ENDING, or from ENDING to COMPLETED."""
    tournament = records.find_tournament(transaction, tournament_id)
    if tournament.state != (RUNNING if state == ENDING else ENDING):
        return
    end_time = transaction.now if state == COMPLETED else None
    records.save(transaction, replace(tournament, state=state, reason=reason, end_time=end_time))
    kind = "tournament_ending" if state == ENDING else "tournament_completed"
    transaction.record_event(kind, reason, tournament_id=tournament_id)
    withdraw_target_checks(transaction, tournament_id)
