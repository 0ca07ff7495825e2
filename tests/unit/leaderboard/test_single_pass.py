"""Statistics and summaries that read submissions one after another are those of all submissions at once."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from statistics import fmean, variance
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaderboard import queries
from leaderboard.evolution.space import declared_values
from leaderboard.plugins.requests import read_statistics
from leaderboard.ranking.board import rank_key
from leaderboard.ranking.champion_selection import name_champion
from leaderboard.ranking.compute import compute_of
from leaderboard.ranking.contenders import newest_by_trial
from leaderboard.ranking.learning_speed import Gain, gains_of
from leaderboard.ranking.lineage_summary import Summaries
from leaderboard.ranking.score_history import ScoreHistory
from leaderboard.score_statistics import statistics_of
from leaderboard.store import records
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.database import Transaction
from podrace.leaderboard.v1.leaderboard_pb2 import (
    Agent,
    AgentSummary,
    Candidate,
    GetLineageRequest,
    GetStatisticsRequest,
    NameChampionRequest,
)
from podrace.specification import resolve as specification
from podrace.tournament.v1.tournament_pb2 import PodSpec

NUMBERS = range(4)
SPEC = specification.resolve(
    specification.parse(
        {
            "environment": {"id": "CartPole-v1"},
            "algorithms": {"ppo": {"hyperparameters": {"learning_rate": {"low": 1e-4, "high": 1e-2}}}, "a2c": {}},
            "objective": {"environment_steps": 1_000_000},
        },
        source="test",
    )
)


def candidate_of(position: int, number: int, score: float, steps: int, seconds: float | None, own: bool) -> Candidate:
    return Candidate(
        candidate_id=f"c{position}",
        agent_id=f"t-a{number}",
        agent_number=number,
        algorithm="ppo" if own else "a2c",
        score=score,
        environment_steps=100 + steps,
        agent_environment_steps=steps,
        core_seconds=steps / 7,
        evaluation_seconds=seconds,
        episode_returns=[score] * 3,
        sequence=position + 1,
    )


@st.composite
def tournaments(draw: Any) -> tuple[list[Agent], list[Candidate]]:
    """Agents with their submissions, and submissions of agents that are not asked for; many numbers are equal."""
    row = st.tuples(
        st.sampled_from(NUMBERS),
        st.sampled_from([-1.5, 0.0, 0.1, 2.0]),
        st.integers(0, 4),
        st.one_of(st.none(), st.sampled_from([0.1, 0.2, 1e16])) if draw(st.booleans()) else st.just(0.3),
        st.booleans(),
    )
    rows = draw(st.lists(row, max_size=14))
    candidates = [candidate_of(position, *values) for position, values in enumerate(rows)]
    starts = st.one_of(st.none(), st.sampled_from([*(one.candidate_id for one in candidates), "unknown"]))
    agents = []
    for number in draw(st.lists(st.sampled_from(NUMBERS), unique=True)):
        made = Agent(agent_id=f"t-a{number}", tournament_id="t", number=number)
        made.algorithm = draw(st.sampled_from(["ppo", "a2c"]))
        values = declared_values(SPEC.algorithms[made.algorithm])
        made.hyperparameters.update(values | {"learning_rate": draw(st.sampled_from([1e-4, 1e-3]))})
        if start := draw(starts):
            made.starting_checkpoint.CopyFrom(Checkpoint(agent_id="t-a9", manifest_digest=start))
        agents.append(made)
    return agents, candidates


def gain_by_all(agent: Agent, candidates: Sequence[Candidate]) -> Gain | None:
    own = [one for one in candidates if one.agent_id == agent.agent_id]
    digest = agent.starting_checkpoint.manifest_digest
    starts = [one for one in candidates if one.candidate_id == digest] if digest else own[:1]
    if not own or not starts or own[-1].environment_steps <= starts[0].environment_steps:
        return None
    begin, end = starts[0], own[-1]
    return Gain(begin.environment_steps, end.environment_steps - begin.environment_steps, end.score - begin.score)


@given(tournaments())
def test_gains_are_those_of_the_lists_of_submissions(made: tuple[list[Agent], list[Candidate]]) -> None:
    agents, candidates = made
    expected = {agent.agent_id: gain_by_all(agent, candidates) for agent in agents}
    assert gains_of(agents, iter(candidates)) == {name: gain for name, gain in expected.items() if gain}


def summaries_of(
    agents: Sequence[Agent], depths: Mapping[str, int], candidates: Iterable[Candidate]
) -> list[AgentSummary]:
    summaries = Summaries(agents, depths)
    for candidate in candidates:
        summaries.add(candidate)
    return summaries.found()


@given(tournaments())
def test_summaries_are_those_of_the_lists_of_submissions(made: tuple[list[Agent], list[Candidate]]) -> None:
    agents, candidates = made
    steps = {one.candidate_id: one.environment_steps for one in candidates}
    for agent, summary in zip(agents, summaries_of(agents, dict.fromkeys(names(agents), 3), candidates), strict=True):
        own = [one for one in candidates if one.agent_id == agent.agent_id]
        expected = AgentSummary(agent_id=agent.agent_id, depth=3, submissions=len(own))
        expected.lineage_environment_steps = steps.get(agent.starting_checkpoint.manifest_digest, 0)
        if own:
            expected.environment_steps = own[-1].agent_environment_steps
            expected.lineage_environment_steps = own[-1].environment_steps
            expected.core_seconds = own[-1].core_seconds
            expected.best.CopyFrom(min(own, key=rank_key))
            expected.last.CopyFrom(own[-1])
            del expected.best.episode_returns[:], expected.last.episode_returns[:]
        if gain := gain_by_all(agent, candidates):
            expected.learning_speed = gain.speed
        assert summary == expected


def names(agents: Sequence[Agent]) -> list[str]:
    return [agent.agent_id for agent in agents]


@given(tournaments())
def test_statistics_are_those_of_the_lists_of_submissions(made: tuple[list[Agent], list[Candidate]]) -> None:
    agents, candidates = made
    for found in statistics_of(SPEC, agents, iter(candidates)):
        of_algorithm = [one for one in candidates if one.algorithm == found.algorithm]
        own: dict[str, list[Candidate]] = {}
        for one in of_algorithm:
            own.setdefault(one.agent_id, []).append(one)
        scores = [min(each, key=rank_key).score for each in own.values()]
        longest = [max(each, key=lambda one: one.agent_environment_steps) for each in own.values()]
        assert (found.submissions, found.best_score) == (len(of_algorithm), max(scores, default=0.0))
        assert found.mean_best_score == (fmean(scores) if scores else 0.0)
        assert found.best_score_variance == (variance(scores) if len(scores) > 1 else 0.0)
        assert found.environment_steps == sum(one.agent_environment_steps for one in longest)
        assert found.core_seconds == sum(one.core_seconds for one in longest)


@given(tournaments(), st.lists(st.integers(0, 14), max_size=3))
def test_compute_is_that_of_the_lists_of_submissions(
    made: tuple[list[Agent], list[Candidate]], champion: list[int]
) -> None:
    agents, candidates = made
    found = compute_of(agents, iter(candidates), [f"c{position}" for position in champion], PodSpec(cores=2.0))
    by_id = {one.candidate_id: one for one in candidates}
    starts = {agent.agent_id: agent.starting_checkpoint.manifest_digest for agent in agents}

    def behind(name: str, seen: frozenset[str]) -> dict[str, int]:
        """The most steps of each agent along all ways back from a candidate."""
        if name not in by_id or name in seen:
            return {}
        one = by_id[name]
        earlier = behind(starts.get(one.agent_id, ""), seen | {name})
        return earlier | {one.agent_id: max(one.agent_environment_steps, earlier.get(one.agent_id, 0))}

    used: dict[str, int] = {}
    for position in champion:
        for agent_id, steps in behind(f"c{position}", frozenset()).items():
            used[agent_id] = max(steps, used.get(agent_id, 0))
    assert found.champion_environment_steps == sum(used.values())
    last = {one.agent_id: one for one in candidates}
    assert found.pod_seconds == math.fsum(one.core_seconds for one in last.values()) / 2.0
    known = all(one.HasField("evaluation_seconds") for one in candidates)
    assert found.HasField("evaluation_seconds") == known
    assert not known or found.evaluation_seconds == math.fsum(one.evaluation_seconds for one in candidates)


@pytest.fixture
def recorded(make_race: Callable[..., Any]) -> Any:
    """A tournament with more submissions than two pages, in the database."""
    race = make_race({"initial_agents": 4}, pods=8).run(110)
    random = Random(1)
    for submission in race.submissions:
        returns = [random.gauss(submission.answer.candidate.score, 1.0) for _ in range(4)]
        submission.answer.candidate.episode_returns.extend(returns)
    assert len(race.submissions) > 2 * records.PAGE_SIZE
    return race


def write(transaction: Transaction, race: Any) -> None:
    records.add_spec(transaction, race.board[0].tournament_id, race.spec)
    for generation in race.generations:
        records.add_generation(transaction, generation)
    for submission in race.submissions:
        records.add_submission(transaction, submission)


async def test_queries_answer_from_all_pages_and_read_one_at_a_time(
    recorded: Any, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mesh.state.transact(write, recorded)
    limits, agents = list[int](), list(recorded.agents.values())
    tournament_id = recorded.board[0].tournament_id
    read = records.list_submissions

    def limited(*arguments: Any, limit: int = 1 << 60, **others: Any) -> Any:
        limits.append(limit)
        return read(*arguments, limit=limit, **others)

    monkeypatch.setattr(records, "list_submissions", limited)
    champion = [recorded.board[0].candidate_id]
    request = GetStatisticsRequest(tournament_id=tournament_id, champion_candidate_ids=champion)
    found = await queries.statistics(mesh.state, request)
    expected = statistics_of(recorded.spec, agents, recorded.candidates)
    assert list(found.algorithms) == expected
    assert found.compute == compute_of(agents, recorded.candidates, champion, recorded.spec.pod)
    assert found.episode_correlation.correlation == ScoreHistory(recorded.candidates).episodes.value != 0.0
    plugins = await mesh.state.transact(read_statistics, tournament_id, recorded.spec, None)
    assert plugins.statistics() == expected
    lineage = await queries.lineage(mesh.state, GetLineageRequest(tournament_id=tournament_id, page_size=200))
    depths = {one.agent.agent_id: one.depth for one in recorded.generations}
    assert list(lineage.summaries) == summaries_of(lineage.agents, depths, recorded.candidates)
    assert len(lineage.summaries) > 20
    named = await queries.champion(mesh.state, NameChampionRequest(tournament_id=tournament_id))
    expected_names = name_champion(recorded.spec, recorded.board, newest_by_trial(recorded.candidates), []).contenders
    assert [one.candidate.candidate_id for one in named.contenders] == [
        one.candidate.candidate_id for one in expected_names
    ]
    assert len(named.contenders) > 1
    assert set(limits) == {records.PAGE_SIZE}
