import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from policy_files import manifest_of, policy_file, steps_behind

from leaderboard import queries
from leaderboard.decision_replay import DecisionLog, differences
from leaderboard.evolution.agents import make, needs_history, trials_of
from leaderboard.evolution.history import NOTHING, History, history_of
from leaderboard.evolution.populations.seats import Seat, seats_of
from leaderboard.evolution.space import declared_values
from leaderboard.evolution.strategy import NoWork, Situation
from leaderboard.evolution.trials import ClockReading, Trials
from leaderboard.generator import Generator
from leaderboard.ranking.board import Board, Standing, answer_of, judge_arrival
from leaderboard.store import records
from leaderboard.store.records import Generation, Submission
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.trial_cache import fold
from leaderboard.updater import Updater, record
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, publish
from podrace.database import Database
from podrace.digests import digest
from podrace.leaderboard.v1.leaderboard_pb2 import (
    Agent,
    Candidate,
    GenerateAgentRequest,
    SubmitCandidateRequest,
    SubmitCandidateResponse,
)
from podrace.specification import evolution_settings
from podrace.specification import resolve as specification
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

TOURNAMENT = "cartpole-abc123"


@dataclass
class Clock:
    """A clock that the test advances."""

    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Mesh:
    """A leaderboard with a store, and what an orchestrator and learners do with them."""

    state: Database
    store: FolderStore
    updater: Updater
    generator: Generator
    clock: Clock
    database: Path

    async def generate(
        self,
        spec: TournamentSpec,
        number: int,
        unfinished: Sequence[str] = (),
        tournament_id: str = TOURNAMENT,
        failed: Sequence[str] = (),
    ) -> Agent:
        request = GenerateAgentRequest(
            request_id=f"{tournament_id}-a{number}",
            tournament_id=tournament_id,
            spec=spec,
            number=number,
            unfinished_agent_ids=unfinished,
            failed_agent_ids=failed,
        )
        made = await self.generator.generate(request)
        assert isinstance(made, Agent), made
        return made

    def publish(self, agent: Agent, score: float, *, lease_epoch: int = 1, **changes: Any) -> SubmitCandidateRequest:
        """Publishes a checkpoint of an agent and returns the request that submits it."""
        policy = policy_file(agent, f"policy of {agent.agent_id} worth {score} {sorted(changes.items())}")
        replay = changes.pop("replay", {})
        if "environment_steps" in changes or agent.HasField("starting_checkpoint"):
            changes.setdefault("environment_steps", 1000)
            changes.setdefault(
                "lineage_environment_steps", steps_behind(self.store, agent) + changes["environment_steps"]
            )
        manifest = manifest_of(agent, policy, score, **changes)
        own = self.store.within(agent.tournament_id)
        claim(own, agent.agent_id, lease_epoch)
        name = publish(own, agent.agent_id, lease_epoch, {"policy": policy, **replay}, manifest)
        checkpoint = Checkpoint(agent_id=agent.agent_id, manifest_digest=name)
        return SubmitCandidateRequest(request_id=name, checkpoint=checkpoint, lease_epoch=lease_epoch)

    async def submit(self, agent: Agent, score: float, **changes: Any) -> SubmitCandidateResponse:
        return await self.updater.submit(self.publish(agent, score, **changes))

    async def judge(
        self, agent: Agent, score: float, standard_error: float, steps: int = 1000
    ) -> SubmitCandidateResponse:
        """Judges a candidate that was not published."""
        candidate = Candidate(
            candidate_id=digest(f"{agent.agent_id} {score}".encode()),
            tournament_id=agent.tournament_id,
            agent_id=agent.agent_id,
            algorithm=agent.algorithm,
            score=score,
            standard_error=standard_error,
            environment_steps=steps,
            agent_environment_steps=steps,
            agent_number=agent.number,
            depth=(await self.state.transact(records.get_generation, agent.agent_id)).depth,
        )
        return await self.state.transact(record, candidate, SubmitCandidateRequest(), self.updater._histories)

    async def board(self, tournament_id: str = TOURNAMENT) -> list[Candidate]:
        return list(await self.state.transact(records.read_board, tournament_id))

    async def replay(self, tournament_id: str = TOURNAMENT) -> list[str]:
        return list(differences(await self.state.transact(queries.decision_log, tournament_id)))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def mesh(tmp_path: Path, clock: Clock) -> Iterator[Mesh]:
    database = tmp_path / "leaderboard.sqlite"
    state = Database.open(database, DATABASE_FORMAT, clock)
    store = FolderStore(tmp_path / "store", clock)
    yield Mesh(state, store, Updater(state, store, SubmissionWatch()), Generator(state), clock, database)
    state.close()


@pytest.fixture
def make_spec() -> Callable[..., TournamentSpec]:
    """Resolved specifications; keyword arguments are sections that override those of a small one."""

    def make(**sections: Any) -> TournamentSpec:
        values = {
            "environment": {"id": "CartPole-v1"},
            "algorithms": {"ppo": {}},
            "objective": {"environment_steps": 1_000_000},
            "evaluation": {"episodes": 16},
            "evolution": {"initial_agents": 2, "fresh_probability": 0.0},
        }
        values |= sections
        values["evolution"] = {"strategy": "tournament"} | values["evolution"]
        return specification.resolve(specification.parse(values, source="test"))

    return make


@pytest.fixture
def make_candidate() -> Callable[..., Candidate]:
    """Candidates of agents by number; the id is made of what is given."""

    def make(agent_number: int, score: float, standard_error: float = 0.0, **others: Any) -> Candidate:
        assert math.isfinite(score)
        values: dict[str, Any] = {
            "candidate_id": f"a{agent_number} {score} {standard_error} {sorted(others.items())}",
            "tournament_id": TOURNAMENT,
            "agent_id": f"{TOURNAMENT}-a{agent_number}",
            "algorithm": "ppo",
            "environment_steps": 1000,
        }
        return Candidate(agent_number=agent_number, score=score, standard_error=standard_error, **values | others)

    return make


@dataclass
class Race:
    """A tournament in memory: pods take agents, train them for some ticks, and submit what a made-up task says.

    A policy has a skill, which training raises by up to 1 a tick: the more, the nearer its learning rate is to
    `best_rate`, on a logarithmic scale. A child begins with the skill of the files it starts from.
    """

    spec: TournamentSpec
    pods: int = 3
    best_rate: float = 1e-3
    noise: float = 0.5
    failing: Sequence[str] = ()
    """Algorithms whose agents end without a score."""
    slow: Mapping[str, int] = field(default_factory=dict)
    """Ticks an agent of an algorithm takes; 2 if it is not named."""
    board: Board = ()
    generations: list[Generation] = field(default_factory=list)
    submissions: list[Submission] = field(default_factory=list)
    skills: dict[str, float] = field(default_factory=dict)
    seconds_per_tick: float = 1.0
    ticks: int = 0
    training: dict[str, int] = field(default_factory=dict)
    """Ticks left, by agent id."""

    @property
    def agents(self) -> dict[str, Agent]:
        return {generation.agent.agent_id: generation.agent for generation in self.generations}

    @property
    def candidates(self) -> list[Candidate]:
        return [submission.answer.candidate for submission in self.submissions]

    def history(self, number: int) -> History:
        return history_of(self.spec, number, self.agents.values(), self.candidates, list(self.training), [])

    def next(self) -> tuple[Agent, int]:
        """The agent that would be made now, and its depth."""
        number = len(self.generations)
        history = self.history(number) if needs_history(self.spec) else NOTHING
        made = make(
            TOURNAMENT,
            self.spec,
            number,
            self.board,
            self.agents,
            self.unfinished_children,
            history,
            trials=self.trials(),
            clock=self.clock,
        )
        assert not isinstance(made, NoWork), made.reason
        return made

    @property
    def clock(self) -> ClockReading:
        steps = 1000 * len(self.submissions)
        return ClockReading.at(self.spec.objective, self.ticks * self.seconds_per_tick, steps)

    def trials(self) -> Trials | None:
        """The log so far, folded from its first event."""
        trials = trials_of(self.spec)
        if trials is not None:
            fold(trials, self.generations, self.candidates, len(self.generations))
        return trials

    @property
    def unfinished_children(self) -> Counter[str]:
        agents = self.agents
        return Counter(parent for agent_id in self.training for parent in agents[agent_id].parent_agent_ids)

    def run(self, agents: int) -> "Race":
        """Continues until this many agents were generated."""
        while len(self.generations) < agents:
            while len(self.training) < self.pods and len(self.generations) < agents:
                agent, depth = self.next()
                self.generations.append(Generation(agent, depth, len(self.submissions), len(self.generations)))
                ticks = agent.assignment_environment_steps // 1000 or self.slow.get(agent.algorithm, 2)
                self.training[agent.agent_id] = ticks
            self.ticks += 1
            for agent_id in sorted(self.training):
                self._tick(self.agents[agent_id])
        return self

    def log(self) -> DecisionLog:
        return DecisionLog(TOURNAMENT, self.spec, self.generations, self.submissions)

    def _tick(self, agent: Agent) -> None:
        self.training[agent.agent_id] -= 1
        if agent.algorithm not in self.failing:
            self._submit(agent)
        if not self.training[agent.agent_id]:
            del self.training[agent.agent_id]
            ended = replace(self.generations[agent.number], ended=len(self.generations))
            self.generations[agent.number] = ended

    def _submit(self, agent: Agent) -> None:
        own = [one for one in self.candidates if one.agent_id == agent.agent_id]
        start = agent.starting_checkpoint.manifest_digest
        begin = own[-1].candidate_id if own else start
        distance = math.log(agent.hyperparameters["learning_rate"] / self.best_rate)
        sequence = len(self.submissions) + 1
        name = f"candidate {sequence}"
        self.skills[name] = self.skills.get(begin, 0.0) + math.exp(-(distance**2))
        behind = next((one.environment_steps for one in self.candidates if one.candidate_id == begin), 0)
        depth = next(one.depth for one in self.generations if one.agent is agent or one.agent == agent)
        candidate = Candidate(
            candidate_id=name,
            tournament_id=TOURNAMENT,
            agent_id=agent.agent_id,
            algorithm=agent.algorithm,
            score=self.skills[name] + self.noise * (Random(f"{agent.number} {len(own)}").random() - 0.5),
            standard_error=0.1 * self.noise,
            environment_steps=behind + 1000,
            agent_environment_steps=1000 * (len(own) + 1),
            core_seconds=self.seconds_per_tick * (len(own) + 1),
            agent_number=agent.number,
            sequence=sequence,
            depth=depth,
        )
        judgement = judge_arrival(self.board, candidate, self.spec.evolution.board_capacity, synchronous=False)
        self.board = judgement.board
        answer = answer_of(judgement, candidate)
        self.submissions.append(Submission(answer, judgement.standings[name], lease_epoch=1, request_id=name))
        self.submissions = [self._with_standing(one, judgement.standings) for one in self.submissions]

    def _with_standing(self, submission: Submission, standings: Mapping[str, Standing]) -> Submission:
        changed = standings.get(submission.answer.candidate.candidate_id)
        return replace(submission, standing=changed) if changed else submission


@pytest.fixture
def make_race(make_spec: Callable[..., TournamentSpec]) -> Callable[..., Race]:
    """Races over a range of learning rates; sections of the specification, then what the race itself is like."""

    def make_one(evolution: Mapping[str, Any], *, algorithms: Any = None, seed: int = 0, **race: Any) -> Race:
        searched = {"learning_rate": {"low": 1e-5, "high": 1e-1, "value": 1e-5}}
        given = algorithms or {"ppo": {"hyperparameters": searched}}
        # A race is shorter than the budget, which a population would otherwise be derived from.
        sized = "population_size" in evolution_settings.SETTINGS[evolution.get("strategy", "tournament")]
        settings = ({"population_size": 8} if sized else {}) | dict(evolution)
        spec = make_spec(algorithms=given, evolution=settings, seed=seed, assignment={"environment_steps": 2000})
        return Race(spec, **race)

    return make_one


@dataclass
class Row:
    """An agent of a population; agents have their places in a list as numbers."""

    seat: int
    score: float | None = None
    """Of its last submission; None: it has none."""
    error: float = 0.0
    steps: int = 1000
    """Along the lineage."""
    busy: bool = False
    failed: bool = False
    algorithm: str = "ppo"
    values: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters in addition to those of the specification."""
    left: Mapping[str, str] = field(default_factory=dict)
    parent: int | None = None
    """Number of the agent that it starts from."""
    earlier: Sequence[float] = ()
    """Scores of its submissions before the last."""


@dataclass
class Population:
    """What a strategy with a population receives when the next agent is generated."""

    spec: TournamentSpec
    rows: Sequence[Row]

    @property
    def history(self) -> History:
        agents, candidates = self._agents(), self._candidates()
        ids = [agent.agent_id for agent in agents]
        unfinished = [name for name, row in zip(ids, self.rows, strict=True) if row.busy]
        failed = [name for name, row in zip(ids, self.rows, strict=True) if row.failed]
        return history_of(self.spec, len(agents), agents, candidates, unfinished, failed)

    def situation(self, left: Mapping[str, str] | None = None) -> Situation:
        history = self.history
        trials = trials_of(self.spec)
        if trials is not None:
            for agent in history.agents:
                trials.handed_out(agent)
            for candidate in history.submissions:
                trials.scored(candidate)
            for agent in filter(history.has_ended, history.agents):
                trials.ended(agent.agent_id, failed=history.has_failed(agent))
        return Situation(self.spec, len(self.rows), (), history.by_id, {}, history, left or {}, trials)

    def seats(self) -> list[Seat]:
        return seats_of(self.history)

    def newest(self, seat: int) -> Candidate:
        found = self.seats()[seat].newest
        assert found is not None
        return found

    def _agents(self) -> list[Agent]:
        made = []
        for number, row in enumerate(self.rows):
            agent = Agent(
                agent_id=f"{TOURNAMENT}-a{number}",
                number=number,
                algorithm=row.algorithm,
                seat=row.seat,
                rung=0,
                left_algorithms=row.left,
                parent_agent_ids=[] if row.parent is None else [f"{TOURNAMENT}-a{row.parent}"],
            )
            agent.hyperparameters.update(declared_values(self.spec.algorithms[row.algorithm]) | dict(row.values))
            made.append(agent)
        return made

    def _candidates(self) -> list[Candidate]:
        return [
            Candidate(
                candidate_id=f"c{number}" if place == len(row.earlier) else f"c{number}-{place}",
                agent_id=f"{TOURNAMENT}-a{number}",
                agent_number=number,
                algorithm=row.algorithm,
                score=score,
                standard_error=row.error,
                environment_steps=row.steps,
                sequence=100 * number + place + 1,
            )
            for number, row in enumerate(self.rows)
            for place, score in enumerate([*row.earlier, row.score])
            if score is not None
        ]


@pytest.fixture
def make_population(make_spec: Callable[..., TournamentSpec]) -> Callable[..., Population]:
    """Populations of rows; keyword arguments are sections of the specification."""

    def make_one(rows: Sequence[Row], **sections: Any) -> Population:
        return Population(make_spec(**sections), rows)

    return make_one


@pytest.fixture
def row() -> type[Row]:
    return Row
