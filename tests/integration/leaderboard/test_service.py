"""The leaderboard through its contract, served on a Unix socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from leaderboard.evolution import STRATEGIES
from leaderboard.store import records
from leaderboard.submission_watch import SubmissionWatch
from podrace import rpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.specification import resolve as specification

TOURNAMENT = "cartpole-abc123"
BAD_SPEC = "ERROR_REASON_BAD_SPEC"


@contextlib.asynccontextmanager
async def watching(client: Any, resume_token: int = 0) -> AsyncIterator[Any]:
    request = pb.WatchCandidatesRequest(tournament_id=TOURNAMENT, resume_token=resume_token)
    responses: Any = rpc.stream(client.reading.WatchCandidates, request, deadline_seconds=20.0)
    async with contextlib.aclosing(responses):
        yield responses


async def test_the_board_is_listed_by_rank_and_all_submissions_by_arrival(client: Any) -> None:
    agents = [await client.generate(number) for number in range(3)]
    for agent, score in [(0, 5.0), (1, 7.0), (0, 4.0), (2, 6.0), (1, 9.0)]:
        await client.submit(agents[agent], score)
    board = await client.candidates()
    assert [(candidate.rank, candidate.score) for candidate in board] == [(1, 9.0), (2, 6.0), (3, 5.0)]
    everything = await client.candidates(all_submissions=True)
    assert [candidate.score for candidate in everything] == [5.0, 7.0, 4.0, 6.0, 9.0]
    assert [candidate.rank for candidate in everything] == [3, 0, 0, 2, 1]
    assert [pb.Verdict.Name(candidate.verdict) for candidate in everything] == [
        "VERDICT_ACCEPTED",
        "VERDICT_EVICTED",
        "VERDICT_REFUSED",
        "VERDICT_ACCEPTED",
        "VERDICT_ACCEPTED",
    ]


@pytest.mark.parametrize("all_submissions", [False, True])
async def test_pages_together_are_the_whole_list(client: Any, all_submissions: bool) -> None:
    agents = [await client.generate(number) for number in range(4)]
    for number, agent in enumerate(agents):
        await client.submit(agent, float(number))
    whole = await client.candidates(all_submissions=all_submissions)
    assert len(whole) == 4
    for size in (1, 2, 3, 4):
        assert await client.candidates(all_submissions=all_submissions, page_size=size) == whole


async def test_candidates_are_selected_and_ordered_over_all_pages(client: Any) -> None:
    agents = [await client.generate(number) for number in range(3)]
    for agent, score in [(0, 5.0), (1, 7.0), (0, 4.0), (2, 6.0), (1, 9.0)]:
        await client.submit(agents[agent], score)

    async def scores(**request: Any) -> list[float]:
        return [one.score for one in await client.candidates(page_size=2, **request)]

    assert await scores(filter="score < 9") == [6.0, 5.0]
    assert await scores(order_by="score") == [5.0, 6.0, 9.0]
    assert await scores(all_submissions=True, filter="agent_number != 2") == [5.0, 7.0, 4.0, 9.0]
    assert await scores(all_submissions=True, filter="verdict = ACCEPTED", order_by="rank desc") == [5.0, 6.0, 9.0]
    with pytest.raises(InvalidArgument, match="order_by: unknown field 'scores'"):
        await scores(order_by="scores")


async def test_the_last_page_has_no_token_even_when_it_is_full(client: Any) -> None:
    for number in range(2):
        await client.submit(await client.generate(number), 1.0)
    request = pb.ListCandidatesRequest(tournament_id=TOURNAMENT, page_size=2)
    page = await client.call(client.reading.ListCandidates, request)
    assert (len(page.candidates), page.next_page_token) == (2, "")


async def test_nonsense_for_a_page_token_is_an_invalid_argument(client: Any) -> None:
    await client.register(TOURNAMENT)
    with pytest.raises(InvalidArgument, match="page_token 'nonsense' does not belong to this list"):
        await client.candidates(page_token="nonsense")


async def test_a_tournament_without_agents_has_empty_lists_and_an_empty_replay(client: Any) -> None:
    await client.register(TOURNAMENT)
    assert await client.candidates() == []
    assert await client.candidates(all_submissions=True) == []
    statistics = await client.call(client.reading.GetStatistics, pb.GetStatisticsRequest(tournament_id=TOURNAMENT))
    assert list(statistics.algorithms) == []
    replayed = await client.call(client.reading.ReplayTournament, pb.ReplayTournamentRequest(tournament_id=TOURNAMENT))
    assert replayed == pb.ReplayTournamentResponse()


async def test_an_agent_is_found_by_its_id_and_an_unknown_one_is_not(client: Any) -> None:
    agent = await client.generate(0)
    found = await client.call(client.reading.GetAgent, pb.GetAgentRequest(agent_id=agent.agent_id))
    assert found.agent == agent
    for method, request in [
        (client.reading.GetAgent, pb.GetAgentRequest(agent_id="x")),
        (client.reading.GetLineage, pb.GetLineageRequest(agent_id="x")),
    ]:
        with pytest.raises(NotFound, match="agent 'x' was never generated here"):
            await client.call(method, request)


async def test_a_lineage_is_the_agent_then_its_ancestors_nearest_first(client: Any) -> None:
    client.spec.evolution.board_capacity = 1
    client.spec.evolution.initial_agents = 1
    for number in range(5):
        await client.submit(await client.generate(number), 10.0 * number)
    request = pb.GetLineageRequest(agent_id=f"{TOURNAMENT}-a4")
    family = (await client.call(client.reading.GetLineage, request)).agents
    assert [agent.number for agent in family] == [4, 3, 2, 1, 0]


async def test_a_lineage_has_a_summary_of_each_ancestor(client: Any) -> None:
    client.spec.evolution.board_capacity = 1
    client.spec.evolution.initial_agents = 1
    for number in range(3):
        await client.submit(await client.generate(number), 10.0 * number)
    request = pb.GetLineageRequest(agent_id=f"{TOURNAMENT}-a2")
    response = await client.call(client.reading.GetLineage, request)
    assert [summary.agent_id for summary in response.summaries] == [agent.agent_id for agent in response.agents]
    assert [(one.depth, one.submissions, one.best.score) for one in response.summaries] == [
        (2, 1, 20.0),
        (1, 1, 10.0),
        (0, 1, 0.0),
    ]
    assert response.summaries[0].environment_steps == 1000
    assert not response.next_page_token


async def test_all_agents_of_a_tournament_are_listed_page_by_page(client: Any) -> None:
    for number in range(5):
        await client.submit(await client.generate(number), 1.0)
    await client.generate(0, tournament_id="other")
    numbers, sizes, token = [], [], ""
    while True:
        request = pb.GetLineageRequest(tournament_id=TOURNAMENT, page_size=2, page_token=token)
        page = await client.call(client.reading.GetLineage, request)
        numbers += [agent.number for agent in page.agents]
        sizes.append(len(page.summaries))
        token = page.next_page_token
        if not token:
            break
    assert (numbers, sizes) == ([0, 1, 2, 3, 4], [2, 2, 1])
    selected = pb.GetLineageRequest(tournament_id=TOURNAMENT, page_size=2, filter="number > 0", order_by="number desc")
    page = await client.call(client.reading.GetLineage, selected)
    assert [agent.number for agent in page.agents] == [4, 3]
    selected.page_token = page.next_page_token
    page = await client.call(client.reading.GetLineage, selected)
    assert [agent.number for agent in page.agents] == [2, 1]
    assert not page.next_page_token
    named = pb.GetLineageRequest(agent_id=page.agents[0].agent_id, filter="number > 0", order_by="number")
    with pytest.raises(InvalidArgument, match="name no agent") as raised:
        await client.call(client.reading.GetLineage, named)
    assert [one.field for one in raised.value.violations] == ["filter", "order_by"]
    listed = pb.ListCandidatesRequest(tournament_id=TOURNAMENT, page_size=2)
    stray = (await client.call(client.reading.ListCandidates, listed)).next_page_token
    with pytest.raises(InvalidArgument, match="does not belong to this list"):
        await client.call(client.reading.GetLineage, pb.GetLineageRequest(tournament_id=TOURNAMENT, page_token=stray))


async def test_a_champion_is_named_when_its_contenders_were_evaluated_again(client: Any) -> None:
    client.spec.champion.reevaluate_top = 2
    client.spec.champion.reevaluate_episodes = 50
    request = pb.NameChampionRequest(tournament_id=TOURNAMENT)
    with pytest.raises(NotFound, match="no agent of it was ever generated here"):
        await client.call(client.reading.NameChampion, request)
    for number, score in enumerate([3.0, 9.0, 8.0]):
        await client.submit(await client.generate(number), score)
    asked = await client.call(client.reading.NameChampion, request)
    assert [contender.candidate.agent_number for contender in asked.contenders] == [1, 2]
    assert asked.contenders[0].candidate.rank == 1
    for contender, score in zip(asked.contenders, (5.0, 6.0), strict=True):
        evaluation = Evaluation(mean_return=score, variance=0.0, episodes=contender.episodes)
        request.evaluations.add(
            candidate_id=contender.candidate.candidate_id, evaluation=evaluation, seed=contender.seed
        )
    (again,) = (await client.call(client.reading.NameChampion, request)).contenders
    assert (again.candidate.agent_number, again.episodes) == (2, 50)
    assert again.seed != asked.contenders[0].seed
    request.evaluations.add(
        candidate_id=again.candidate.candidate_id,
        evaluation=Evaluation(mean_return=5.5, episodes=50),
        seed=again.seed,
    )
    named = await client.call(client.reading.NameChampion, request)
    assert (named.champion.agent_number, named.score, len(named.contenders)) == (2, 5.5, 0)
    assert (named.selection.selection_score, named.selection.reported_episodes) == (6.0, 50)


async def test_the_newest_submission_of_an_agent_may_become_champion(client: Any) -> None:
    client.spec.champion.reevaluate_top = 1
    agent = await client.generate(0)
    await client.submit(agent, 9.0)
    newest = (await client.submit(agent, 3.0)).candidate_id
    asked = await client.call(client.reading.NameChampion, pb.NameChampionRequest(tournament_id=TOURNAMENT))
    assert [one.candidate.score for one in asked.contenders] == [9.0, 3.0]
    assert asked.contenders[1].candidate.candidate_id == newest


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_strategy_serves_and_is_replayed(client: Any, strategy: str) -> None:
    if module := STRATEGIES[strategy].requires:
        pytest.importorskip(module)
    client.spec.evolution.Clear()
    client.spec.evolution.strategy = strategy
    client.spec.CopyFrom(specification.resolve(client.spec))
    for number in range(14):
        await client.submit(await client.generate(number), float(number * 5 % 7))
    replayed = await client.call(client.reading.ReplayTournament, pb.ReplayTournamentRequest(tournament_id=TOURNAMENT))
    assert (replayed.agents, list(replayed.differences)) == (14, [])


async def test_statistics_and_replay_report_what_happened(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PAGE_SIZE", 4)  # Statistics read two pages.
    for number in range(6):
        await client.submit(await client.generate(number), float(number % 4))
    statistics = await client.call(client.reading.GetStatistics, pb.GetStatisticsRequest(tournament_id=TOURNAMENT))
    (ppo,) = statistics.algorithms
    assert (ppo.algorithm, ppo.agents, ppo.submissions, ppo.best_score) == ("ppo", 6, 6, 3.0)
    assert "learning_rate" in ppo.hyperparameter_score_covariance
    assert statistics.HasField("compute")
    assert statistics.compute.champion_environment_steps == 0, "the request names no champion"
    best = (await client.candidates())[0].candidate_id
    request = pb.GetStatisticsRequest(tournament_id=TOURNAMENT, champion_candidate_ids=[best])
    found = (await client.call(client.reading.GetStatistics, request)).compute
    assert 0 < found.champion_environment_steps <= ppo.environment_steps
    replayed = await client.call(client.reading.ReplayTournament, pb.ReplayTournamentRequest(tournament_id=TOURNAMENT))
    assert (replayed.agents, replayed.submissions, list(replayed.differences)) == (6, 6, [])


async def test_a_watcher_gets_existing_submissions_then_new_ones(client: Any) -> None:
    agents = [await client.generate(number) for number in range(2)]
    await client.submit(agents[0], 1.0)
    await client.submit(agents[1], 2.0)
    async with watching(client) as responses:
        assert [(await anext(responses)).candidate.score for _ in range(2)] == [1.0, 2.0]
        coming = asyncio.create_task(anext(responses))
        await client.submit(agents[0], 3.0)
        response = await coming
        assert (response.candidate.score, response.candidate.rank) == (3.0, 1)
        assert response.resume_token == response.candidate.sequence == 3


async def test_a_watcher_resumes_after_its_token_and_receives_only_its_tournament(client: Any) -> None:
    agent, other = await client.generate(0), await client.generate(0, tournament_id="other")
    for score in (1.0, 2.0):
        await client.submit(agent, score)
        await client.submit(other, score)
    async with watching(client, resume_token=1) as responses:
        assert (await anext(responses)).candidate.score == 2.0
        coming = asyncio.create_task(anext(responses))
        await client.submit(other, 3.0)
        await client.submit(agent, 4.0)
        response = await coming
        assert (response.candidate.agent_id, response.candidate.score) == (agent.agent_id, 4.0)


async def test_many_watchers_each_get_everything_once_in_order(client: Any) -> None:
    agents = [await client.generate(number) for number in range(3)]

    async def watch(count: int) -> list[int]:
        async with watching(client) as responses:
            return [(await anext(responses)).resume_token for _ in range(count)]

    watchers = [asyncio.create_task(watch(30)) for _ in range(4)]
    requests = [client.publish(agents[number % 3], float(number)) for number in range(30)]
    await asyncio.gather(*(client.call(client.updater.SubmitCandidate, request) for request in requests))
    assert await asyncio.gather(*watchers) == [list(range(1, 31))] * 4


async def test_watchers_are_sent_away_when_the_service_drains(client: Any, watch: SubmissionWatch) -> None:
    await client.submit(await client.generate(0), 1.0)
    async with watching(client) as responses:
        await anext(responses)
        await watch.close()
        with pytest.raises(Unavailable, match="watch again with the last resume_token"):
            await anext(responses)


async def test_errors_cross_the_wire_with_their_reason(client: Any) -> None:
    client.spec.evolution.strategy = "nonsense"
    with pytest.raises(InvalidArgument, match="unknown strategy 'nonsense'") as refused:
        await client.generate(0)
    assert refused.value.reason == BAD_SPEC


async def test_a_stale_epoch_crosses_the_wire_with_its_reason(client: Any) -> None:
    request = client.publish(await client.generate(0), 1.0)
    request.lease_epoch = 0
    with pytest.raises(FailedPrecondition) as refused:
        await client.call(client.updater.SubmitCandidate, request)
    assert refused.value.reason == "ERROR_REASON_STALE_EPOCH"


@pytest.mark.parametrize("number", [2**64 - 1, 2**63])
async def test_numbers_too_large_for_the_database_are_invalid_arguments(client: Any, number: int) -> None:
    await client.register(TOURNAMENT)
    with pytest.raises(InvalidArgument, match=r"number = .*expected at most"):
        await client.generate(number)
    async with watching(client, resume_token=number) as responses:
        with pytest.raises(InvalidArgument, match="is too large"):
            await anext(responses)


async def test_submissions_at_the_same_time_are_all_recorded_once(client: Any) -> None:
    agents = [await client.generate(number) for number in range(4)]
    requests = [client.publish(agents[number % 4], float(number)) for number in range(40)]
    answers = await asyncio.gather(
        *(client.call(client.updater.SubmitCandidate, request) for request in [*requests, *requests])
    )
    assert answers[:40] == answers[40:]
    recorded = await client.candidates(all_submissions=True)
    assert sorted(candidate.sequence for candidate in recorded) == list(range(1, 41))
    assert {candidate.candidate_id for candidate in recorded} == {
        request.checkpoint.manifest_digest for request in requests
    }
    replayed = await client.call(client.reading.ReplayTournament, pb.ReplayTournamentRequest(tournament_id=TOURNAMENT))
    assert list(replayed.differences) == []
