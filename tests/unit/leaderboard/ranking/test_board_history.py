"""A leaderboard under random requests and crashes, compared with a model that remembers only the answers.

The model follows the contract, not the code: an answer stays true, every record belongs to a request, and a board is in
order. A crash is a copy of the files as a kill leaves them, taken before or after a request that got no answer.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule
from policy_files import manifest_of, policy_file, steps_behind

from leaderboard import queries
from leaderboard.garbage import collect_once
from leaderboard.generator import Generator
from leaderboard.ranking.retention import Retention
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, fetch, publish
from podrace.database import Database
from podrace.errors import AlreadyExists, DataLoss, FailedPrecondition, NotFound
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.specification import resolve as specification
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

TOURNAMENT = "cartpole-abc123"
CAPACITY, FRESH, NUMBERS = 2, 3, 8
GRACE_SECONDS = 100.0
# Few values, so that equals meet.
SCORES = st.sampled_from([-1.0, 0.0, 1.0, 1.5, 2.0, 100.0])
VARIANCES = st.sampled_from([0.0, 1.0, 16.0])
STEPS = st.sampled_from([1000, 2000])


def make_spec(*, synchronous: bool) -> TournamentSpec:
    values = {
        "environment": {"id": "CartPole-v1"},
        "synchronous": synchronous,
        "pool": {"maximum_pods": NUMBERS},
        "algorithms": {"ppo": {}, "a2c": {}},
        "objective": {"environment_steps": 1_000_000},
        "evaluation": {"episodes": 16},
        "evolution": {"initial_agents": FRESH, "fresh_probability": 0.1, "board_capacity": CAPACITY},
    }
    return specification.resolve(specification.parse(values, source="test"))


ALL_AGENTS = pb.GetLineageRequest(tournament_id=TOURNAMENT, page_size=1000)


def order(candidate: pb.Candidate) -> tuple[float, ...]:
    """The order of a board as its documentation states it; the smaller is the better."""
    simpler = candidate.estimate_error, candidate.environment_steps, candidate.agent_number
    return (-candidate.estimate, *simpler, candidate.sequence)


@dataclass
class Published:
    """A checkpoint that may be submitted."""

    request: pb.SubmitCandidateRequest
    agent: pb.Agent


class BoardHistory(RuleBasedStateMachine):
    """What may happen, and what must hold after each of it."""

    agents = Bundle("agents")
    published = Bundle("published")
    synchronous = False

    def __init__(self) -> None:
        super().__init__()
        self.spec = make_spec(synchronous=self.synchronous)
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="history-"))
        self.lives, self.count, self.now = 0, 0, 1_700_000_000.0
        self.store = FolderStore(self.folder / "store", lambda: self.now)
        self.state = self._open(self.folder / "life-0")
        self.generated: dict[int, pb.Agent] = {}
        """By number: what was answered."""
        self.unanswered_numbers: set[int] = set()
        """They may have been generated."""
        self.unfinished: set[int] = set()
        """As the orchestrator knows it, which commits a number before it asks."""
        self.answered: dict[str, pb.SubmitCandidateResponse] = {}
        """By candidate id."""
        self.unanswered: set[str] = set()
        """Candidates that may have been judged."""
        self.epochs: dict[str, int] = {}
        self.board: list[pb.Candidate] = []
        """As last seen."""

    def teardown(self) -> None:
        self.state.close()
        self.loop.close()
        shutil.rmtree(self.folder)

    # --- machinery ---

    def _open(self, folder: Path) -> Database:
        self.life = folder
        state = Database.open(folder / "board.sqlite", DATABASE_FORMAT, lambda: self.now)
        self.updater, self.generator = Updater(state, self.store, SubmissionWatch()), Generator(state)
        return state

    def _ask(self, awaitable: Any) -> Any:
        self.now += 1.0
        return self.loop.run_until_complete(awaitable)

    def _query(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.state.submit(lambda transaction: function(transaction, *args)).result()

    def _generate(self, number: int, request_id: str = "") -> pb.Agent:
        asked = range(number + 1) if self.synchronous else [number]
        new = set(asked) - self.generated.keys() - self.unanswered_numbers
        self.unfinished |= new
        self.unanswered_numbers |= new
        request = pb.GenerateAgentRequest(
            request_id=request_id or f"{TOURNAMENT}-a{number}",
            tournament_id=TOURNAMENT,
            spec=self.spec,
            number=number,
            unfinished_agent_ids=[f"{TOURNAMENT}-a{other}" for other in sorted(self.unfinished - {number})],
        )
        agent: pb.Agent = self._ask(self.generator.generate(request))
        return agent

    def _publish(self, agent: pb.Agent, score: float, variance: float, steps: int) -> Published:
        self.count += 1
        policy = policy_file(agent, f"policy {self.count}")
        manifest = manifest_of(
            agent,
            policy,
            score,
            variance=variance,
            environment_steps=steps,
            lineage_environment_steps=steps_behind(self.store, agent) + steps,
        )
        epoch = self.epochs.setdefault(agent.agent_id, 1)
        claim(self.store, agent.agent_id, epoch)
        name = publish(self.store, agent.agent_id, epoch, {"policy": policy}, manifest)
        checkpoint = Checkpoint(agent_id=agent.agent_id, manifest_digest=name)
        request = pb.SubmitCandidateRequest(request_id=name, checkpoint=checkpoint, lease_epoch=epoch)
        return Published(request, agent)

    def _list(self, *, all_submissions: bool, page_size: int = 1000) -> list[pb.Candidate]:
        request = pb.ListCandidatesRequest(
            tournament_id=TOURNAMENT, all_submissions=all_submissions, page_size=page_size
        )
        found: list[pb.Candidate] = []
        while True:
            page = self._query(queries.page_of_candidates, request)
            found += page.candidates
            request.page_token = page.next_page_token
            if not request.page_token:
                return found

    @contextlib.contextmanager
    def _nothing_changes(self) -> Any:
        before = self._list(all_submissions=True)
        yield
        assert self._list(all_submissions=True) == before

    # --- what may happen ---

    @initialize(target=agents)
    def begin(self) -> Any:
        """So that a board is full soon."""
        return multiple(*map(self.generate, range(CAPACITY + 1)))

    @rule(target=agents, number=st.integers(0, NUMBERS - 1))
    def generate(self, number: int) -> pb.Agent:
        """For the first time or again; what is unfinished meanwhile is no part of the request's identity."""
        agent = self._generate(number)
        assert agent == self.generated.setdefault(number, agent)
        self.unanswered_numbers.discard(number)
        return agent

    @rule(agent=agents)
    def finish(self, agent: pb.Agent) -> None:
        self.unfinished.discard(agent.number)

    @rule(target=published, agent=agents, score=SCORES, variance=VARIANCES, steps=STEPS)
    def submit(self, agent: pb.Agent, score: float, variance: float, steps: int) -> Published:
        new = self._publish(agent, score, variance, steps)
        before = list(self.board)
        answer = self._ask(self.updater.submit(new.request))
        self.answered[answer.candidate.candidate_id] = answer
        assert (answer.candidate.score, answer.candidate.agent_id) == (score, agent.agent_id)
        if not self.synchronous:
            self._check_judgement(before, answer)
        return new

    def _check_judgement(self, before: list[pb.Candidate], answer: pb.SubmitCandidateResponse) -> None:
        """One came, and one at most went: its own earlier, or the last of a full board."""
        after = {candidate.candidate_id: candidate for candidate in self._list(all_submissions=False)}
        new, gone = answer.candidate, [other for other in before if other.candidate_id not in after]
        if new.verdict == pb.VERDICT_REFUSED:
            assert (new.rank, gone, len(after)) == (0, [], len(before))
            return
        assert new.verdict == pb.VERDICT_ACCEPTED
        assert after[new.candidate_id].rank == new.rank
        own = [other for other in before if other.agent_id == new.agent_id]
        last = before[-1:] if len(before) == CAPACITY else []
        assert gone == (own or last)
        assert all(order(new) < order(other) for other in gone)

    @rule(target=published, agent=agents, scores=st.lists(SCORES, min_size=2, max_size=4))
    def submit_together(self, agent: pb.Agent, scores: list[float]) -> Any:
        """They share a commit, in whatever order; and each is asked twice."""
        new = [self._publish(agent, score, 1.0, 1000) for score in scores]
        # The pointer names the last; a pod that may publish may submit the others as well.
        requests = [one.request for one in (*new, *new)]

        async def together() -> list[pb.SubmitCandidateResponse]:
            return list(await asyncio.gather(*map(self.updater.submit, requests)))

        answers = self._ask(together())
        assert answers[: len(new)] == answers[len(new) :]
        self.answered |= {answer.candidate.candidate_id: answer for answer in answers}
        return multiple(*new)

    @rule(one=published, epoch=st.integers(0, 9), request_id=st.sampled_from(["", "another"]))
    def repeat(self, one: Published, epoch: int, request_id: str) -> None:
        """Under any epoch and any request id, a candidate has the outcome of the first answer."""
        digest_ = one.request.checkpoint.manifest_digest
        again = pb.SubmitCandidateRequest()
        again.CopyFrom(one.request)
        if digest_ in self.answered:
            again.lease_epoch = epoch
            again.request_id = f"{request_id}-{digest_}" if request_id else again.request_id
            with self._nothing_changes():
                assert self._ask(self.updater.submit(again)) == self.answered[digest_]
            return
        try:
            self.answered[digest_] = self._ask(self.updater.submit(again))
        except FailedPrecondition:
            assert self.epochs[one.agent.agent_id] > again.lease_epoch
        except NotFound:
            assert digest_ not in self.unanswered or digest_ not in self._recorded(), "judged, and denied now"

    def _recorded(self) -> set[str]:
        return {candidate.candidate_id for candidate in self._list(all_submissions=True)}

    @rule(one=published, other=published)
    def use_a_request_id_for_another_candidate(self, one: Published, other: Published) -> None:
        first, second = one.request.checkpoint.manifest_digest, other.request.checkpoint.manifest_digest
        if first == second or first not in self.answered:
            return
        mixed = pb.SubmitCandidateRequest()
        mixed.CopyFrom(other.request)
        mixed.request_id = one.request.request_id
        # What never was judged may be stale, or collected, before that is noticed.
        refusals = AlreadyExists if second in self.answered else (AlreadyExists, FailedPrecondition, NotFound)
        with self._nothing_changes(), pytest.raises(refusals):
            self._ask(self.updater.submit(mixed))

    @rule(agent=agents, number=st.integers(0, NUMBERS - 1))
    def use_a_request_id_for_another_agent(self, agent: pb.Agent, number: int) -> None:
        if number not in self.generated or number == agent.number:
            return
        for request_id, led_to in ((f"first-{agent.number}", agent.number), (agent.agent_id, agent.number)):
            assert self._generate(led_to, request_id) == agent
            with pytest.raises(AlreadyExists, match="was used for another request"):
                self._generate(number, request_id)

    @rule(target=published, agent=agents, score=SCORES)
    def hand_over_before_the_submission(self, agent: pb.Agent, score: float) -> Published:
        """The first pod publishes, is considered dead, and submits too late."""
        new = self._publish(agent, score, 1.0, 1000)
        self.epochs[agent.agent_id] += 1
        claim(self.store, agent.agent_id, self.epochs[agent.agent_id])
        with self._nothing_changes(), pytest.raises(FailedPrecondition, match="was assigned again"):
            self._ask(self.updater.submit(new.request))
        # Its successor submits what it finds.
        new.request.lease_epoch = self.epochs[agent.agent_id]
        answer = self._ask(self.updater.submit(new.request))
        self.answered[answer.candidate.candidate_id] = answer
        return new

    @rule(agent=agents, score=st.sampled_from([float("nan"), float("inf")]))
    def submit_what_is_no_number(self, agent: pb.Agent, score: float) -> None:
        new = self._publish(agent, score, 1.0, 1000)
        with self._nothing_changes(), pytest.raises(DataLoss, match="is not finite"):
            self._ask(self.updater.submit(new.request))

    @rule(number=st.integers(50, 60))
    def submit_without_an_answer(self, number: int) -> None:
        agent = pb.Agent(agent_id=f"{TOURNAMENT}-a{number}", algorithm="ppo")
        new = self._publish(agent, 1e6, 1.0, 1000)
        with self._nothing_changes(), pytest.raises(NotFound, match="was never generated here"):
            self._ask(self.updater.submit(new.request))

    @rule(target=published, agent=agents, score=SCORES, done=st.booleans(), number=st.integers(0, NUMBERS - 1))
    def crash_before_the_answer(self, agent: pb.Agent, score: float, done: bool, number: int) -> Published:
        """A submission and a generation were under way: they are done or not, and no answer was sent."""
        new = self._publish(agent, score, 1.0, 1000)
        before = self._copy()
        self._ask(self.updater.submit(new.request))
        self._generate(number)
        after = self._copy()
        self.state.close()
        self.state = self._open(after if done else before)
        if new.request.checkpoint.manifest_digest not in self.answered:
            self.unanswered.add(new.request.checkpoint.manifest_digest)
        return new

    def _copy(self) -> Path:
        self.lives += 1
        folder = self.folder / f"life-{self.lives}"
        shutil.copytree(self.life, folder)
        return folder

    @rule()
    def close_and_open(self) -> None:
        self.state.close()
        self.state = self._open(self.life)

    @precondition(lambda self: self.generated)
    @rule()
    def collect_garbage(self) -> None:
        """What the board and the next generator need stays; what was answered stays true without its files."""
        self.now += 2 * GRACE_SECONDS
        with self._nothing_changes():
            self._ask(collect_once(self.state, self.store, grace_seconds=GRACE_SECONDS, retention=Retention()))
        for candidate in self._list(all_submissions=False):
            fetch(self.store, candidate.candidate_id)
        last = {candidate.agent_id: candidate for candidate in self._list(all_submissions=True)}
        for candidate in last.values():
            fetch(self.store, candidate.candidate_id)
        for agent in self._ask(queries.lineage(self.state, ALL_AGENTS)).agents:
            if agent.number in self.unfinished and agent.HasField("starting_checkpoint"):
                fetch(self.store, agent.starting_checkpoint.manifest_digest)

    # --- what must hold ---

    @invariant()
    def every_answer_is_on_record_and_nothing_else(self) -> None:
        recorded = self._list(all_submissions=True)
        assert [candidate.sequence for candidate in recorded] == list(range(1, len(recorded) + 1))
        names = [candidate.candidate_id for candidate in recorded]
        assert len(set(names)) == len(names)
        assert self.answered.keys() <= set(names) <= self.answered.keys() | self.unanswered
        for candidate in recorded:
            if candidate.candidate_id in self.answered:
                answered = self.answered[candidate.candidate_id].candidate
                assert (candidate.score, candidate.sequence) == (answered.score, answered.sequence)

    @invariant()
    def ranks_are_a_total_order(self) -> None:
        board = self._list(all_submissions=False)
        assert [candidate.rank for candidate in board] == list(range(1, len(board) + 1))
        keys = [order(candidate) for candidate in board]
        assert keys == sorted(set(keys))
        assert len(board) <= CAPACITY
        assert len({candidate.agent_id for candidate in board}) == len(board)
        recorded = self._list(all_submissions=True)
        if recorded:
            assert board[0].candidate_id == min(recorded, key=order).candidate_id
        on_board = {candidate.candidate_id: candidate.rank for candidate in board}
        for candidate in recorded:
            assert candidate.rank == on_board.get(candidate.candidate_id, 0)
            assert (candidate.verdict == pb.VERDICT_ACCEPTED) == (candidate.candidate_id in on_board)

    @invariant()
    def an_accepted_candidate_is_on_the_board_or_evicted_forever(self) -> None:
        if self.synchronous:
            # All are judged again in the canonical order whenever one comes.
            self.board = self._list(all_submissions=False)
            return
        for candidate in self._list(all_submissions=True):
            if candidate.candidate_id not in self.answered:
                continue
            answered = self.answered[candidate.candidate_id].candidate.verdict
            allowed = (
                {pb.VERDICT_REFUSED} if answered == pb.VERDICT_REFUSED else {pb.VERDICT_ACCEPTED, pb.VERDICT_EVICTED}
            )
            assert candidate.verdict in allowed
        board = self._list(all_submissions=False)
        known = {candidate.candidate_id for candidate in self.board}
        latest = max((candidate.sequence for candidate in self.board), default=0)
        assert all(candidate.candidate_id in known or candidate.sequence > latest for candidate in board)
        self.board = board

    @invariant()
    def every_agent_is_as_it_was_answered(self) -> None:
        found = self._ask(queries.lineage(self.state, ALL_AGENTS)).agents
        numbers = {agent.number: agent for agent in found}
        assert len(numbers) == len(found)
        assert self.generated.keys() <= numbers.keys() <= self.generated.keys() | self.unanswered_numbers
        for number, agent in self.generated.items():
            assert numbers[number] == agent

    @invariant()
    def pages_and_statistics_count_the_same(self) -> None:
        recorded = self._list(all_submissions=True)
        assert self._list(all_submissions=True, page_size=2) == recorded
        statistics = self._ask(queries.statistics(self.state, pb.GetStatisticsRequest(tournament_id=TOURNAMENT)))
        assert sum(entry.submissions for entry in statistics.algorithms) == len(recorded)
        for entry in statistics.algorithms:
            # Of the candidates that rank best of their agents, which need not have the agents' highest scores.
            scores = [candidate.score for candidate in recorded if candidate.algorithm == entry.algorithm]
            assert entry.best_score in (scores or [0.0])


class SynchronousHistory(BoardHistory):
    """The same where agents come in rounds."""

    synchronous = True


def profile(examples: int, steps: int, *, shrinks: bool) -> settings:
    """The same sequences each time, so that what fails here fails everywhere; making them short takes minutes."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink] if shrinks else [Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


MACHINES = pytest.mark.parametrize("machine", [BoardHistory, SynchronousHistory])


@pytest.mark.long
@MACHINES
def test_no_history_contradicts_what_was_answered(machine: type[BoardHistory]) -> None:
    stateful.run_state_machine_as_test(machine, settings=profile(examples=6, steps=20, shrinks=False))


@pytest.mark.slow
@pytest.mark.timeout(900)
@MACHINES
def test_no_long_history_contradicts_what_was_answered(machine: type[BoardHistory]) -> None:
    stateful.run_state_machine_as_test(machine, settings=profile(examples=100, steps=50, shrinks=True))
