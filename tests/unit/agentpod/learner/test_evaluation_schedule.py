"""Evaluations happen on schedule and within their share of time."""

import asyncio
import statistics
from types import SimpleNamespace

import pytest

from agentpod.learner.evaluation_schedule import (
    EvaluationSchedule,
    EvaluationTime,
    Scorer,
    epoch_score,
    evaluation_lanes,
    evaluation_seed,
)
from agentpod.learner.progress_reporter import ProgressReporter
from agentpod.session.role_faults import RoleLost
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation, MatchResult
from podrace.leaderboard.v1.leaderboard_pb2 import Bar, PlanEvaluationResponse
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec, EvaluationSpec, OpponentsSpec, TournamentSpec


def unseen_progress() -> ProgressReporter:
    return ProgressReporter(SimpleNamespace(progress=pb.Progress()))


def schedule(every: int, steps: int = 0) -> EvaluationSchedule:
    return EvaluationSchedule.starting_at(steps, EvaluationSpec(every_environment_steps=every))


def test_an_evaluation_is_due_once_at_each_multiple():
    due = schedule(1000)
    assert [due.take(steps) for steps in (512, 1024, 1536, 2048, 2560, 5120, 5632, 6144)] == [
        False,
        True,
        False,
        True,
        False,
        True,
        False,
        True,
    ]


def test_an_agent_that_resumes_is_not_evaluated_at_once():
    due = schedule(1000, steps=2500)
    assert not due.take(2900)
    assert due.take(3000)


def test_evaluations_stay_within_their_share_of_all_work_of_a_pod():
    time = EvaluationTime()
    # The duration of the first evaluation is unknown: there is always time for it.
    assert time.affords(0.1, 0.0, 0.0)
    time.add(4.0)
    assert time.affords(0.1, 100.0, 5.0)
    assert not time.affords(0.1, 100.0, 9.0)
    assert not time.affords(0.1, 100.0, 5.0, ongoing_seconds=4.0)
    time.earlier_seconds = 100.0
    assert time.affords(0.1, 100.0, 9.0)
    assert time.last_seconds == 4.0


@pytest.mark.parametrize(("fault", "counted_seconds"), [("", 300.0), ("evaluator python:a:b: it hangs", 2.0)])
async def test_time_lost_to_a_failing_evaluator_plugin_does_not_count_as_evaluation_time(fault, counted_seconds):
    clock, progress, published = iter((1000.0, 1300.0)), pb.Progress(), []
    scored = Evaluation(mean_return=5.0, wall_seconds=2.0, evaluator_fault=fault)

    async def evaluate(*_, **__):
        return scored

    async def publish(frozen, evaluation):
        published.append(evaluation)

    scorer = Scorer(
        SimpleNamespace(evaluate=evaluate),
        SimpleNamespace(publish=publish),
        ProgressReporter(SimpleNamespace(progress=progress)),
        SimpleNamespace(stop=asyncio.get_running_loop().create_future(), evaluation_epoch=0),
        TournamentSpec(synchronous=True, evaluation=EvaluationSpec(episodes=8)),
        spent := EvaluationTime(),
        started=1000.0,
        clock=lambda: next(clock),
    )
    scorer.start(SimpleNamespace(counters=SimpleNamespace(policy_version=3)), SimpleNamespace(release=lambda: None))
    await scorer.settle()
    assert published == [scored]
    assert (progress.score, progress.evaluator_fault) == (5.0, fault)
    assert (spent.last_seconds, spent.spent_seconds) == (counted_seconds, counted_seconds)


async def test_time_for_the_last_evaluation_is_reserved_by_the_last_one_that_was_completed():
    clock, lost = iter((1000.0, 1003.0)), RoleLost("the evaluator crashed")

    async def evaluate(*_, **__):
        raise lost

    scorer = Scorer(
        SimpleNamespace(evaluate=evaluate),
        SimpleNamespace(),
        unseen_progress(),
        SimpleNamespace(stop=asyncio.get_running_loop().create_future(), evaluation_epoch=0),
        TournamentSpec(synchronous=True, evaluation=EvaluationSpec(episodes=8)),
        spent := EvaluationTime(spent_seconds=40.0, last_seconds=40.0),
        started=1000.0,
        clock=lambda: next(clock),
    )
    scorer.start(SimpleNamespace(counters=SimpleNamespace(policy_version=3)), SimpleNamespace(release=lambda: None))
    with pytest.raises(RoleLost):
        await scorer.settle()
    assert (spent.last_seconds, spent.spent_seconds) == (40.0, 43.0)


# --- common episodes ---------------------------------------------------------------------------------------------


class Pod:
    """Roles, checkpoints and lease of a pod whose policies are worth the epoch of their episodes."""

    def __init__(self, plan: PlanEvaluationResponse | None = None) -> None:
        self.plan, self.planned, self.calls, self.published = plan, [], [], []
        self.stop = asyncio.get_running_loop().create_future()
        self.evaluation_epoch, self.released = 2, 0
        self.fault, self.earlier_seconds = "", 1000.0

    async def evaluate(self, held, *, episodes, seed, greedy, first_episode):
        self.calls.append((first_episode, episodes, seed, greedy))
        returns = [float((first_episode + i) % 3) for i in range(episodes)]
        return Evaluation(
            mean_return=statistics.fmean(returns),
            variance=statistics.variance(returns),
            episodes=episodes,
            episode_returns=returns,
            evaluator_fault=self.fault,
            wall_seconds=0.1 * episodes,
        )

    async def publish(self, frozen, evaluation):
        self.published.append(evaluation)

    async def plan_evaluation(self, epoch):
        self.planned.append(epoch)
        return self.plan

    def release(self):
        self.released += 1

    async def score(self, **evaluation) -> Evaluation:
        synchronous = evaluation.pop("synchronous", False)
        settings = EvaluationSpec(**{"episodes": 64, "greedy": True, "racing": True, "share": 0.1, **evaluation})
        spec = TournamentSpec(
            seed=5, synchronous=synchronous, environment=EnvironmentSpec(id="Pendulum-v1"), evaluation=settings
        )
        spent = EvaluationTime(earlier_seconds=self.earlier_seconds)
        scorer = Scorer(
            self,
            self,
            unseen_progress(),
            self,
            spec,
            spent,
            started=0.0,
            clock=lambda: 0.0,
        )
        scorer.start(SimpleNamespace(counters=SimpleNamespace(policy_version=3)), self)
        await scorer.settle()
        (published,) = self.published
        return published


def seeds(pod: Pod) -> set[int]:
    return {seed for _, _, seed, _ in pod.calls}


async def test_the_episodes_depend_on_the_tournament_and_the_epoch_only():
    pod = Pod()
    evaluation = await pod.score()
    assert evaluation.epoch == 2
    seed = evaluation_seed(TournamentSpec(seed=5), 2)
    assert pod.calls == [(0, 8, seed, True), (8, 8, seed, True), (16, 16, seed, True), (32, 32, seed, True)]
    assert pod.released == 1
    others = {evaluation_seed(TournamentSpec(seed=seed), epoch) for seed in (5, 6) for epoch in (1, 2)}
    assert len(others) == 4


async def test_an_evaluation_behind_its_bar_stops():
    pod = Pod(PlanEvaluationResponse(bar=Bar(score=1000.0, standard_error=1.0)))
    assert (await pod.score()).episodes == 8
    assert pod.planned == [2]


@pytest.mark.parametrize("settings", [{"racing": False}, {"synchronous": True}, {"episodes": 8}])
async def test_without_racing_all_episodes_are_played_in_one_call(settings):
    pod = Pod(PlanEvaluationResponse(bar=Bar(score=1000.0, standard_error=1.0)))
    evaluation = await pod.score(**settings)
    assert evaluation.episodes == settings.get("episodes", 64)
    assert len(pod.calls) == 1


@pytest.mark.parametrize(("earlier_seconds", "episodes"), [(0.0, 8), (16.0, 16), (40.0, 32), (70.0, 64)])
async def test_an_evaluation_stops_at_its_share_of_the_time_but_plays_the_first_stage(earlier_seconds, episodes):
    pod = Pod(PlanEvaluationResponse(other_epochs=[1]))
    pod.earlier_seconds = earlier_seconds
    evaluation = await pod.score(share=0.1)
    assert evaluation.episodes == episodes
    # Nothing was decided, so the policy may lead and connects the epochs.
    assert [score.episodes for score in evaluation.other_epochs] == [episodes]


async def test_an_answer_that_depends_on_the_speed_of_pods_is_not_asked_for_in_a_synchronous_tournament():
    pod = Pod(PlanEvaluationResponse(other_epochs=[1]))
    await pod.score(synchronous=True, racing=False)
    assert not pod.planned


async def test_a_leader_is_also_scored_in_the_epoch_that_is_wanted():
    pod = Pod(PlanEvaluationResponse(other_epochs=[1, 0]))
    evaluation = await pod.score()
    assert [score.epoch for score in evaluation.other_epochs] == [1]
    assert seeds(pod) == {evaluation_seed(TournamentSpec(seed=5), epoch) for epoch in (1, 2)}
    (other,) = evaluation.other_epochs
    assert (other.mean_return, other.episodes) == (evaluation.mean_return, 64)
    assert other.standard_error == pytest.approx(epoch_score(1, evaluation).standard_error)


async def test_a_policy_that_connects_two_epochs_plays_all_episodes_although_it_is_far_behind():
    bar = Bar(score=1000.0, standard_error=1.0)
    assert (await Pod(PlanEvaluationResponse(bar=bar)).score()).episodes < 64
    evaluation = await Pod(PlanEvaluationResponse(bar=bar, other_epochs=[1])).score()
    assert evaluation.episodes == 64
    assert [score.epoch for score in evaluation.other_epochs] == [1]


async def test_an_evaluation_that_fell_back_connects_no_epochs():
    pod = Pod(PlanEvaluationResponse(other_epochs=[1]))
    pod.fault = "the plugin failed"
    assert not (await pod.score(racing=False)).other_epochs


@pytest.mark.parametrize(
    ("id", "racing", "episodes", "lanes"),
    [
        ("Pendulum-v1", True, 64, 8),
        ("Pendulum-v1", True, 5, 5),
        ("Pendulum-v1", False, 64, 64),
        ("pendulum", True, 64, 64),
        ("pendulum", True, 512, 64),
        ("mujoco:Ant-v5", True, 32, 8),
    ],
)
def test_lanes_follow_from_the_specification_alone(id, racing, episodes, lanes):
    evaluation = EvaluationSpec(episodes=episodes, racing=racing)
    assert evaluation_lanes(TournamentSpec(environment=EnvironmentSpec(id=id), evaluation=evaluation)) == lanes


@pytest.mark.parametrize(
    ("id", "racing", "episodes", "lanes"),
    [("pendulum", True, 512, 512), ("pendulum", False, 5000, 1024), ("mujoco:Ant-v5", True, 32, 8)],
)
def test_a_simulator_on_a_gpu_of_the_pod_plays_more_episodes_at_a_time(id, racing, episodes, lanes):
    spec = TournamentSpec(
        environment=EnvironmentSpec(id=id), evaluation=EvaluationSpec(episodes=episodes, racing=racing)
    )
    spec.pod.gpus = 1
    assert evaluation_lanes(spec) == lanes


# --- games -------------------------------------------------------------------------------------------------------


async def test_a_rated_policy_also_plays_against_the_opponents_of_the_plan(monkeypatch):
    pod = Pod(PlanEvaluationResponse(opponents=[Checkpoint(agent_id="a", manifest_digest="c0")]))
    played = Evaluation(matches=[MatchResult(opponent_candidate_id="c0", wins=3, losses=1)], wall_seconds=0.5)

    async def read_opponents(checkpoints):
        return [one.manifest_digest for one in checkpoints]

    async def evaluate(held, *, episodes, seed, greedy, first_episode=0, opponents=()):
        if opponents:
            assert (opponents, episodes) == (["c0"], 4)
            return played
        return Evaluation(episodes=episodes, matches=[MatchResult(wins=2, losses=6)], wall_seconds=1.0)

    monkeypatch.setattr(
        "agentpod.learner.evaluation_schedule.opponents_of", lambda published, spaces, spec: list(published)
    )
    pod.read_opponents, pod.evaluate, pod.spaces = read_opponents, evaluate, None
    spec = TournamentSpec(
        evaluation=EvaluationSpec(episodes=8),
        opponents=OpponentsSpec(rated=True, games=4),
        environment=EnvironmentSpec(id="game:tic-tac-toe", count=8),
    )
    scorer = Scorer(pod, pod, unseen_progress(), pod, spec, EvaluationTime(), started=0.0)
    scorer.start(SimpleNamespace(counters=SimpleNamespace(policy_version=3)), SimpleNamespace(release=lambda: None))
    await scorer.settle()
    (evaluation,) = pod.published
    assert [(one.opponent_candidate_id, one.wins, one.losses) for one in evaluation.matches] == [
        ("", 2, 6),
        ("c0", 3, 1),
    ]
    assert evaluation.wall_seconds == 1.5


class SlowEvaluation:
    """An evaluation that ends when `answer` is set, and the scorer that waits for it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.began, self.answer, self.released, self.published = asyncio.Event(), loop.create_future(), [], []
        self.lease = SimpleNamespace(stop=loop.create_future(), evaluation_epoch=0, held=True, stopped_early=False)
        spec = TournamentSpec(synchronous=True, evaluation=EvaluationSpec(episodes=8))
        self.scorer = Scorer(self, self, unseen_progress(), self.lease, spec, EvaluationTime(), started=0.0)

    async def evaluate(self, *_, **__):
        self.began.set()
        return await self.answer

    async def publish(self, frozen, evaluation):
        self.published.append(evaluation)

    async def begin(self) -> None:
        frozen = SimpleNamespace(counters=SimpleNamespace(policy_version=3))
        self.scorer.start(frozen, SimpleNamespace(release=lambda: self.released.append(1)))
        await self.began.wait()


@pytest.mark.parametrize("waits", [True, False])
async def test_a_stop_cancels_the_evaluation_under_way_also_while_it_is_waited_for(waits):
    slow = SlowEvaluation()
    await slow.begin()
    waiting = asyncio.create_task(slow.scorer.settle()) if waits else None
    slow.lease.stop.set_result("drain")
    async with asyncio.timeout(10):
        await (waiting or slow.scorer.settle())
    scorer = slow.scorer
    assert (slow.answer.cancelled(), slow.released, scorer.busy, scorer.scored_version) == (True, [1], False, -1)


async def test_the_evaluation_of_the_last_policy_may_end_after_a_stop():
    slow = SlowEvaluation()
    slow.scorer.end_training()
    await slow.begin()
    slow.lease.stop.set_result("the tournament has made all its environment steps")
    await asyncio.sleep(0)
    slow.answer.set_result(Evaluation(episodes=8, mean_return=5.0))
    await slow.scorer.settle()
    assert (slow.scorer.scored_version, [one.mean_return for one in slow.published]) == (3, [5.0])


async def test_it_is_cancelled_if_it_takes_too_long(monkeypatch):
    monkeypatch.setattr("agentpod.learner.evaluation_schedule.SCORE_AFTER_STOP_SECONDS", 0.01)
    slow = SlowEvaluation()
    slow.scorer.end_training()
    await slow.begin()
    slow.lease.stop.set_result("drain")
    async with asyncio.timeout(10):
        await slow.scorer.settle()
    assert slow.answer.cancelled()


@pytest.mark.parametrize("why", [{"held": False}, {"stopped_early": True}])
async def test_it_is_cancelled_at_once_if_its_score_is_not_needed(why):
    slow = SlowEvaluation()
    slow.scorer.end_training()
    vars(slow.lease).update(why)
    await slow.begin()
    slow.lease.stop.set_result("drain")
    async with asyncio.timeout(5):
        await slow.scorer.settle()
    assert slow.answer.cancelled()


async def test_a_lost_role_does_not_wait_for_a_policy_that_is_being_published():
    """The store may be full: publishing then takes minutes, and the roles are needed at once."""
    pod, accepted = Pod(), asyncio.Event()

    async def publish(frozen, evaluation):
        await accepted.wait()
        pod.published.append(evaluation)

    pod.publish = publish
    spec = TournamentSpec(synchronous=True, evaluation=EvaluationSpec(episodes=8))
    scorer = Scorer(pod, pod, unseen_progress(), pod, spec, EvaluationTime(), started=0.0, clock=lambda: 0.0)
    scorer.start(SimpleNamespace(counters=SimpleNamespace(policy_version=3)), pod)
    while not pod.released:
        await asyncio.sleep(0)
    await asyncio.wait_for(scorer.interrupt(), 10.0)
    assert scorer.busy
    accepted.set()
    await scorer.settle()
    assert len(pod.published) == 1
    assert scorer.scored_version == 3
