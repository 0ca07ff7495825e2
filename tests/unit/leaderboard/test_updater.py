import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from leaderboard import queries
from leaderboard.score_histories import ScoreHistories
from leaderboard.store import records
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import MOST_RETURNS, Updater, record
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, EpochScore
from podrace.checkpoint_store.publish import claim
from podrace.digests import digest
from podrace.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import (
    VERDICT_ACCEPTED,
    VERDICT_EVICTED,
    VERDICT_REFUSED,
    Agent,
    Candidate,
    ListCandidatesRequest,
    ListExperienceRequest,
    PlanEvaluationRequest,
    PlanEvaluationResponse,
    SubmitCandidateRequest,
)
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MakeSpec = Callable[..., TournamentSpec]
STALE_EPOCH = "ERROR_REASON_STALE_EPOCH"
BAD_DIGEST = "ERROR_REASON_BAD_DIGEST"
NON_FINITE = "ERROR_REASON_NON_FINITE"


@pytest.fixture
async def agents(mesh: Any, make_spec: MakeSpec) -> list[Agent]:
    """Four fresh agents of a tournament whose board has two places."""
    spec = make_spec(evolution={"initial_agents": 4, "board_capacity": 2})
    return [await mesh.generate(spec, number) for number in range(4)]


async def submissions(mesh: Any, tournament_id: str) -> list[Candidate]:
    request = ListCandidatesRequest(tournament_id=tournament_id, all_submissions=True)
    return list((await mesh.state.transact(queries.page_of_candidates, request)).candidates)


async def test_a_score_is_the_mean_and_its_error_the_root_of_variance_over_episodes(
    mesh: Any, agents: list[Agent]
) -> None:
    answer = await mesh.submit(agents[1], 431.0, variance=36.0, environment_steps=300)
    candidate = answer.candidate
    assert (candidate.score, candidate.standard_error, candidate.episodes) == (431.0, 1.5, 16)
    assert (candidate.agent_environment_steps, candidate.environment_steps) == (300, 300)
    assert (candidate.agent_id, candidate.agent_number, candidate.algorithm) == (agents[1].agent_id, 1, "ppo")
    assert (candidate.rank, candidate.verdict, candidate.sequence) == (1, VERDICT_ACCEPTED, 1)
    assert candidate.submit_time.ToNanoseconds() == round(mesh.clock.now * 1e9)
    assert answer.best_score == 431.0


async def test_a_candidate_whose_evaluator_failed_ranks_after_the_others(mesh: Any, agents: list[Agent]) -> None:
    stand_in = await mesh.submit(agents[0], 99.0, evaluator_fault="the evaluator hung")
    assert stand_in.candidate.evaluator_fault == "the evaluator hung"
    await mesh.submit(agents[1], 1.0)
    assert [candidate.agent_number for candidate in await mesh.board()] == [1, 0]


async def test_a_repeat_gets_the_same_answer_and_leaves_no_second_record(mesh: Any, agents: list[Agent]) -> None:
    request = mesh.publish(agents[0], 5.0)
    first = await mesh.updater.submit(request)
    await mesh.submit(agents[1], 50.0)
    await mesh.submit(agents[2], 60.0)
    mesh.clock.now += 100
    again = await mesh.updater.submit(request)
    assert again == first
    assert again.candidate.verdict == VERDICT_ACCEPTED
    assert len(await submissions(mesh, agents[0].tournament_id)) == 3


async def test_a_repeat_is_answered_under_any_epoch_and_without_the_store(mesh: Any, agents: list[Agent]) -> None:
    request = mesh.publish(agents[0], 5.0)
    first = await mesh.updater.submit(request)
    claim(mesh.store, agents[0].agent_id, 9)
    mesh.updater._store = None
    assert await mesh.updater.submit(request) == first


async def test_a_repeated_request_that_overtakes_the_first_adds_no_second_record(
    mesh: Any, agents: list[Agent]
) -> None:
    request = mesh.publish(agents[0], 5.0)
    answers = await asyncio.gather(*(mesh.updater.submit(request) for _ in range(5)))
    assert all(answer == answers[0] for answer in answers)
    assert len(await submissions(mesh, agents[0].tournament_id)) == 1


async def test_every_submission_is_recorded_in_order_of_arrival_with_any_verdict(
    mesh: Any, agents: list[Agent]
) -> None:
    for agent, score in [(0, 5.0), (1, 50.0), (0, 4.0), (2, 60.0), (3, 1.0)]:
        await mesh.submit(agents[agent], score)
    recorded = await submissions(mesh, agents[0].tournament_id)
    assert [candidate.sequence for candidate in recorded] == [1, 2, 3, 4, 5]
    assert [candidate.score for candidate in recorded] == [5.0, 50.0, 4.0, 60.0, 1.0]
    assert [candidate.verdict for candidate in recorded] == [
        VERDICT_EVICTED,
        VERDICT_ACCEPTED,
        VERDICT_REFUSED,
        VERDICT_ACCEPTED,
        VERDICT_REFUSED,
    ]
    assert [candidate.rank for candidate in recorded] == [0, 2, 0, 1, 0]


async def test_an_eviction_is_stored_with_its_reason(mesh: Any, agents: list[Agent]) -> None:
    evicted = await mesh.submit(agents[0], 5.0)
    await mesh.submit(agents[1], 50.0)
    await mesh.submit(agents[2], 60.0)
    stored = await mesh.state.transact(records.find_submission, evicted.candidate.candidate_id)
    assert stored.standing.verdict == VERDICT_EVICTED
    assert stored.standing.reason == "a2 (59.75 ± 0.5) took its place"
    assert stored.answer.candidate.verdict == VERDICT_ACCEPTED
    assert [candidate.agent_number for candidate in await mesh.board()] == [2, 1]


async def test_a_pod_that_lost_its_agent_is_refused_and_its_successor_is_not(mesh: Any, agents: list[Agent]) -> None:
    request = mesh.publish(agents[0], 5.0, lease_epoch=1)
    claim(mesh.store, agents[0].agent_id, 2)
    with pytest.raises(FailedPrecondition, match="was assigned again") as refused:
        await mesh.updater.submit(request)
    assert refused.value.reason == STALE_EPOCH
    request.lease_epoch = 2
    assert (await mesh.updater.submit(request)).candidate.verdict == VERDICT_ACCEPTED


async def test_an_epoch_that_was_never_claimed_is_refused(mesh: Any, agents: list[Agent]) -> None:
    request = mesh.publish(agents[0], 5.0, lease_epoch=1)
    request.lease_epoch = 7
    with pytest.raises(FailedPrecondition, match="claim the agent first"):
        await mesh.updater.submit(request)


async def test_an_agent_that_was_never_generated_is_not_found(mesh: Any, agents: list[Agent]) -> None:
    unknown_agent = Agent(agent_id="t-a0", tournament_id="t", algorithm="ppo")
    with pytest.raises(NotFound, match="agent 't-a0' was never generated here"):
        await mesh.submit(unknown_agent, 5.0)


async def test_a_manifest_that_is_not_in_the_store_is_not_found(mesh: Any, agents: list[Agent]) -> None:
    claim(mesh.store, agents[0].agent_id, 1)
    missing = Checkpoint(agent_id=agents[0].agent_id, manifest_digest=digest(b"missing"))
    with pytest.raises(NotFound, match=digest(b"missing")):
        await mesh.updater.submit(SubmitCandidateRequest(checkpoint=missing, lease_epoch=1))


async def test_an_unpublished_checkpoint_is_not_found(mesh: Any, agents: list[Agent]) -> None:
    checkpoint = Checkpoint(agent_id=agents[0].agent_id, manifest_digest=digest(b"x"))
    with pytest.raises(NotFound, match="publish before you submit"):
        await mesh.updater.submit(SubmitCandidateRequest(checkpoint=checkpoint, lease_epoch=1))


async def test_a_malformed_digest_is_refused(mesh: Any) -> None:
    with pytest.raises(InvalidArgument, match="is not a SHA-256"):
        await mesh.updater.submit(SubmitCandidateRequest(checkpoint=Checkpoint(manifest_digest="../../x")))


async def test_a_damaged_manifest_is_data_loss(mesh: Any, agents: list[Agent]) -> None:
    request = mesh.publish(agents[0], 5.0)
    name = request.checkpoint.manifest_digest
    path = mesh.store._object_path(agents[0].tournament_id, name)
    path.write_bytes(path.read_bytes().replace(b"5", b"9"))
    with pytest.raises(DataLoss) as lost:
        await mesh.updater.submit(request)
    assert lost.value.reason == BAD_DIGEST


async def test_a_score_of_another_policy_is_data_loss(mesh: Any, agents: list[Agent]) -> None:
    with pytest.raises(DataLoss, match="score the policy that is published") as lost:
        await mesh.submit(agents[0], 5.0, policy_digest=digest(b"another policy"))
    assert lost.value.reason == BAD_DIGEST


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
async def test_a_score_that_is_not_finite_is_data_loss_and_is_not_recorded(
    mesh: Any, agents: list[Agent], score: float
) -> None:
    with pytest.raises(DataLoss, match=r"evaluation\.mean_return = .* is not finite") as lost:
        await mesh.submit(agents[0], score)
    assert lost.value.reason == NON_FINITE
    assert await submissions(mesh, agents[0].tournament_id) == []


@pytest.mark.parametrize(
    ("changes", "error", "line"),
    [
        ({"variance": math.nan}, DataLoss, r"evaluation\.variance = nan is not finite"),
        (
            {"evaluation": {"episode_metrics": {"sharpe": math.nan}}},
            DataLoss,
            r"episode_metrics\['sharpe'\] = nan is not finite",
        ),
        ({"core_seconds": math.inf}, DataLoss, "core_seconds = inf is not finite"),
        ({"evaluation": {"wall_seconds": math.nan}}, DataLoss, "evaluation.wall_seconds = nan is not finite"),
        ({"variance": -1.0}, InvalidArgument, r"evaluation\.variance = -1 is negative"),
        ({"episodes": 0}, InvalidArgument, "has no score; publish it with an evaluation"),
        ({"algorithm": "sac"}, InvalidArgument, "algorithm = 'sac': expected 'ppo'"),
        ({"tournament_id": "other"}, InvalidArgument, "tournament_id = 'other': expected"),
    ],
)
async def test_a_manifest_that_cannot_be_judged_is_refused(
    mesh: Any, agents: list[Agent], changes: dict[str, Any], error: type[Exception], line: str
) -> None:
    with pytest.raises(error, match=line):
        await mesh.submit(agents[0], 5.0, **changes)
    assert await submissions(mesh, agents[0].tournament_id) == []


async def test_the_checkpoint_of_another_agent_is_refused(mesh: Any, agents: list[Agent]) -> None:
    request = mesh.publish(agents[0], 5.0)
    mesh.publish(agents[1], 5.0)
    request.checkpoint.agent_id = agents[1].agent_id
    with pytest.raises(InvalidArgument, match=r"agent_id = .*-a0': expected .*-a1'"):
        await mesh.updater.submit(request)


async def test_sequences_count_over_all_tournaments(mesh: Any, make_spec: MakeSpec) -> None:
    agents = [await mesh.generate(make_spec(), 0, tournament_id=name) for name in ("t", "u", "v")]
    answers = [await mesh.submit(agent, 1.0) for agent in agents]
    assert [answer.candidate.sequence for answer in answers] == [1, 2, 3]
    assert [answer.candidate.rank for answer in answers] == [1, 1, 1]


async def test_a_synchronous_board_does_not_depend_on_which_pod_is_faster(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec(synchronous=True, pool={"maximum_pods": 3}, evolution={"initial_agents": 3, "board_capacity": 2})
    scores = {0: [10.0, 100.0], 1: [12.0, 13.0], 2: [11.0, 12.5]}
    boards = []
    for name, order in [("forward", [0, 1, 2]), ("backward", [2, 1, 0])]:
        agents = [await mesh.generate(spec, number, tournament_id=name) for number in range(3)]
        for number in order:
            for score in scores[number]:
                await mesh.submit(agents[number], score, variance=64.0)
        boards.append([(candidate.agent_number, candidate.score) for candidate in await mesh.board(name)])
        listed = await submissions(mesh, name)
        on_board = [candidate for candidate in listed if candidate.verdict == VERDICT_ACCEPTED]
        assert sorted(candidate.rank for candidate in on_board) == [1, 2]
    assert boards[0] == boards[1]


async def test_watchers_are_notified_of_a_submission_whose_caller_gave_up(
    mesh: Any, agents: list[Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = SubmissionWatch()
    updater = Updater(mesh.state, mesh.store, watch)
    transact, durable, answered = mesh.state.transact, asyncio.Event(), asyncio.Event()

    async def transact_slowly(function: Any, *arguments: Any) -> Any:
        result = await transact(function, *arguments)
        if function is record:
            durable.set()
            await answered.wait()
        return result

    monkeypatch.setattr(mesh.state, "transact", transact_slowly)
    submitting = asyncio.create_task(updater.submit(mesh.publish(agents[0], 7.0)))
    await durable.wait()
    submitting.cancel()
    await asyncio.wait([submitting])
    answered.set()
    await asyncio.wait_for(watch.wait_after(agents[0].tournament_id, 0), 5.0)
    assert [candidate.score for candidate in await submissions(mesh, agents[0].tournament_id)] == [7.0]


# --- common episodes ---------------------------------------------------------------------------------------------


async def test_returns_epoch_and_scores_in_other_epochs_are_kept_with_the_candidate(
    mesh: Any, agents: list[Agent]
) -> None:
    other = EpochScore(epoch=1, mean_return=4.0, standard_error=0.5, episodes=16)
    evaluation = {"episode_returns": [4.0, 6.0] * 8, "epoch": 2, "other_epochs": [other]}
    candidate = (await mesh.submit(agents[0], 5.0, variance=16 / 15, evaluation=evaluation)).candidate
    assert list(candidate.episode_returns) == [4.0, 6.0] * 8
    assert candidate.evaluation_epoch == 2
    assert list(candidate.other_epochs) == [other]
    assert (candidate.estimate, candidate.estimate_error) == pytest.approx((5.0 - 0.5 / 15**0.5, 1 / 15**0.5))


async def test_a_candidate_of_an_earlier_version_has_no_epoch(mesh: Any, agents: list[Agent]) -> None:
    candidate = (await mesh.submit(agents[0], 5.0)).candidate
    assert not candidate.HasField("evaluation_epoch")
    assert "one by one" not in candidate.reason


async def test_a_candidate_without_common_episodes_states_that(mesh: Any, agents: list[Agent]) -> None:
    candidate = (await mesh.submit(agents[0], 5.0, evaluation={"epoch": 0})).candidate
    assert candidate.reason == (
        "the board has room; its episodes cannot be compared one by one with those of other agents"
    )


async def test_only_the_first_returns_of_a_long_evaluation_are_kept(mesh: Any, make_spec: MakeSpec) -> None:
    agent = await mesh.generate(make_spec(evaluation={"episodes": 1000}), 0)
    evaluation = {"episode_returns": [5.0] * 1000, "epoch": 0}
    candidate = (await mesh.submit(agent, 5.0, variance=0.0, episodes=1000, evaluation=evaluation)).candidate
    assert len(candidate.episode_returns) == MOST_RETURNS == 256


@pytest.mark.parametrize(
    ("evaluation", "error"),
    [
        ({"episode_returns": [5.0] * 15}, InvalidArgument),
        ({"episode_returns": [math.nan] * 16}, DataLoss),
        ({"other_epochs": [EpochScore(mean_return=math.inf)]}, DataLoss),
        ({"other_epochs": [EpochScore(standard_error=math.nan)]}, DataLoss),
    ],
)
async def test_returns_that_cannot_be_used_are_refused(
    mesh: Any, agents: list[Agent], evaluation: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match="evaluation"):
        await mesh.submit(agents[0], 5.0, evaluation=evaluation)


async def test_the_estimate_is_the_mean_of_the_last_two_scores_of_the_agent(mesh: Any, agents: list[Agent]) -> None:
    await mesh.submit(agents[0], 5.0)
    await mesh.submit(agents[1], 100.0)
    assert (await mesh.submit(agents[0], 5.5)).candidate.estimate == 5.25


async def test_a_leaderboard_that_was_restarted_gives_the_same_estimates(mesh: Any, agents: list[Agent]) -> None:
    await mesh.submit(agents[0], 5.0)
    mesh.updater._histories = ScoreHistories()
    assert (await mesh.submit(agents[0], 5.5)).candidate.estimate == 5.25


async def test_a_policy_that_is_clearly_better_keeps_the_place_of_its_trial(mesh: Any, agents: list[Agent]) -> None:
    await mesh.submit(agents[0], 360.0)
    best = await mesh.submit(agents[0], 950.0)
    worse = await mesh.submit(agents[0], 380.0)
    assert worse.candidate.verdict == VERDICT_REFUSED
    assert [one.candidate_id for one in await mesh.board()] == [best.candidate.candidate_id]


async def test_the_plan_of_an_evaluation_names_the_bar(mesh: Any, agents: list[Agent]) -> None:
    async def plan(agent: Agent) -> PlanEvaluationResponse:
        return await mesh.updater.plan_evaluation(PlanEvaluationRequest(agent_id=agent.agent_id))

    assert not (await plan(agents[0])).HasField("bar")
    await mesh.submit(agents[0], 5.0)
    assert (await plan(agents[1])).bar.agent_id == agents[0].agent_id
    await mesh.submit(agents[1], 50.0)
    # The board has two places: a third agent has to beat the last one, and those on it have to beat themselves.
    assert (await plan(agents[2])).bar.agent_id == agents[0].agent_id
    assert (await plan(agents[1])).bar.agent_id == agents[1].agent_id
    with pytest.raises(NotFound):
        await mesh.updater.plan_evaluation(PlanEvaluationRequest(agent_id="unknown"))


async def experience(mesh: Any, agent: Agent, after: int = 0) -> tuple[list[str], int]:
    request = ListExperienceRequest(agent_id=agent.agent_id, after_sequence=after)
    answer = await mesh.updater.list_experience(request)
    return [source.manifest_digest for source in answer.sources], answer.sequence


async def test_the_newest_replay_memory_of_each_other_agent_is_listed(mesh: Any, agents: list[Agent]) -> None:
    assert await experience(mesh, agents[0]) == ([], 0)
    steps = {"replay_steps": 100, "replay_memory_steps": 100}
    digests = [
        (await mesh.submit(agent, score, **steps)).candidate.candidate_id
        for agent, score in ((agents[0], 1.0), (agents[1], 2.0), (agents[1], 3.0), (agents[2], 4.0))
    ]
    await mesh.submit(agents[3], 5.0)
    assert await experience(mesh, agents[0]) == ([digests[3], digests[2]], 4)
    assert await experience(mesh, agents[3]) == ([digests[3], digests[2], digests[0]], 4)
    assert await experience(mesh, agents[0], after=3) == ([digests[3]], 4)
    assert await experience(mesh, agents[0], after=5) == ([], 5)
    with pytest.raises(NotFound):
        await mesh.updater.list_experience(ListExperienceRequest(agent_id="unknown"))


async def test_ancestors_and_other_tournaments_are_not_listed_as_experience(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec(evolution={"strategy": "tournament", "initial_agents": 1, "fresh_probability": 0.0})
    steps = {"replay_steps": 100, "replay_memory_steps": 100}
    parent = await mesh.generate(spec, 0)
    await mesh.submit(parent, 1.0, **steps)
    children = [await mesh.generate(spec, number) for number in (1, 2)]
    assert all(list(child.parent_agent_ids) == [parent.agent_id] for child in children)
    sibling = (await mesh.submit(children[1], 2.0, **steps)).candidate.candidate_id
    outsider = await mesh.generate(spec, 0, tournament_id="other-def456")
    await mesh.submit(outsider, 9.0, **steps)
    assert (await experience(mesh, children[0]))[0] == [sibling]
    assert len((await experience(mesh, parent))[0]) == 1


async def test_a_candidate_knows_how_long_its_evaluation_took_if_its_pod_reported_it(
    mesh: Any, agents: list[Agent]
) -> None:
    answer = await mesh.submit(agents[0], 5.0, evaluation={"wall_seconds": 1.5})
    assert answer.candidate.evaluation_seconds == 1.5
    assert not (await mesh.submit(agents[1], 5.0)).candidate.HasField("evaluation_seconds")


async def test_a_candidate_keeps_the_means_of_the_first_measures_by_name(mesh: Any, agents: list[Agent]) -> None:
    measures = {f"m{number:02d}": float(number) for number in range(20)}
    answer = await mesh.submit(agents[0], 5.0, evaluation={"episode_metrics": {**measures, "a" * 65: 1.0}})
    assert dict(answer.candidate.episode_metrics) == {f"m{number:02d}": float(number) for number in range(16)}
