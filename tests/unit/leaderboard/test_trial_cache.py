"""The cached fold of a log equals the fold from the first event, whatever happened to the transactions in between."""

from collections.abc import Callable
from typing import Any

import pytest

from leaderboard import trial_cache
from leaderboard.evolution.strategy import NoWork
from leaderboard.generator import Generator
from leaderboard.store import records
from leaderboard.trial_cache import TrialCache
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, GenerateAgentRequest
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

TOURNAMENT = "cartpole-abc123"
MakeSpec = Callable[..., TournamentSpec]


@pytest.fixture
def spec(make_spec: MakeSpec) -> TournamentSpec:
    return make_spec(
        evolution={"strategy": "incumbent"},
        evaluation={"every_environment_steps": 1000},
        objective={"wall_clock_duration": "1000s"},
    )


def state_of(trials: Any) -> Any:
    return (
        {number: {**vars(trial), "at_rung": [*trial.at_rung]} for number, trial in trials.by_number.items()},
        trials.stops,
        trials.incumbent and trials.incumbent.number,
        trials.founders,
        {number: vars(standing) for number, standing in trials.ladders._standings.items()},
        trials.time_taken(trials.clock),
        [trial.number for trial in trials.ladders.able()],
        sorted(trials.ladders.training),
        sorted(trials.ladders.interrupted),
    )


async def both(mesh: Any, spec: TournamentSpec) -> tuple[Any, Any]:
    """The generator's cached fold and a new one."""
    cached = await mesh.state.transact(mesh.generator._trials.read, TOURNAMENT, spec)
    folded = await mesh.state.transact(TrialCache().read, TOURNAMENT, spec)
    return state_of(cached), state_of(folded)


async def race(mesh: Any, spec: TournamentSpec, agents: int, pods: int = 3) -> list[Agent]:
    """Hands out agents to pods that take turns, and scores each twice."""
    made: list[Agent] = []
    training: list[Agent] = []
    for number in range(agents):
        agent = await mesh.generate(spec, number, [one.agent_id for one in training])
        made.append(agent)
        training.append(agent)
        if len(training) == pods:
            for step in (1000, 2000):
                for one in training:
                    score = (one.number * 7919 % 13) + step / 1000
                    await mesh.submit(one, float(score), environment_steps=step, core_seconds=step / 100)
            training.pop(number % pods)
    return made


async def test_the_cache_equals_a_new_fold_after_every_agent(mesh: Any, spec: TournamentSpec) -> None:
    for agents in (1, 5, 14):
        await mesh.state.transact(lambda one: one.execute("DELETE FROM agents"))
        await mesh.state.transact(lambda one: one.execute("DELETE FROM submissions"))
        await race(mesh, spec, agents)
        cached, folded = await both(mesh, spec)
        assert cached == folded
        assert len(folded[0]) >= min(agents, 3)


async def test_the_cache_equals_a_new_fold_when_agents_fail(mesh: Any, spec: TournamentSpec) -> None:
    failed: list[str] = []
    training: list[Agent] = []
    for number in range(14):
        agent = await mesh.generate(spec, number, [one.agent_id for one in training], failed=failed)
        cached, folded = await both(mesh, spec)
        assert cached == folded
        training.append(agent)
        if number % 3:
            await mesh.submit(agent, float(number), environment_steps=1000, core_seconds=10.0)
        if len(training) == 3:
            # Some are recorded as failed before they are recorded as ended, and some after.
            failed.append(training[number % 2].agent_id)
            training.pop(number % 3)
    assert any(trial["failures"] for trial in cached[0].values())
    assert await mesh.replay() == []


async def test_a_race_from_the_database_replays_to_the_same_decisions(mesh: Any, spec: TournamentSpec) -> None:
    made = await race(mesh, spec, 16)
    assert await mesh.replay() == []
    assert len({agent.trial for agent in made}) < 16, "some agents continue others"


async def test_a_generator_that_was_restarted_makes_the_same_agents(mesh: Any, spec: TournamentSpec) -> None:
    first = await race(mesh, spec, 12)
    again = Generator(mesh.state)
    number = len(first)
    unfinished = [first[-1].agent_id]
    request = GenerateAgentRequest(tournament_id=TOURNAMENT, spec=spec, number=number, unfinished_agent_ids=unfinished)
    trials = await mesh.state.transact(again._trials.read, TOURNAMENT, spec)
    assert state_of(trials) == (await both(mesh, spec))[0]
    made = await again.generate(request)
    assert isinstance(made, Agent)
    assert await mesh.replay() == []


async def test_a_pod_without_work_changes_nothing(mesh: Any, spec: TournamentSpec) -> None:
    made = await race(mesh, spec, 4)
    before = await mesh.state.transact(records.list_generations, TOURNAMENT)
    request = GenerateAgentRequest(
        tournament_id=TOURNAMENT, spec=spec, number=4, unfinished_agent_ids=[agent.agent_id for agent in made]
    )
    request.running_duration.FromSeconds(999)
    answer = await mesh.generator.generate(request)
    assert isinstance(answer, NoWork)
    assert await mesh.state.transact(records.list_generations, TOURNAMENT) == before
    request.running_duration.FromSeconds(10)
    assert isinstance(await mesh.generator.generate(request), Agent)
    cached, folded = await both(mesh, spec)
    assert cached == folded
    assert await mesh.replay() == []


async def test_pods_without_work_do_not_make_the_log_be_folded_again(
    mesh: Any, spec: TournamentSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await race(mesh, spec, 7)
    folds: list[str] = []
    whole = trial_cache._fold_all
    monkeypatch.setattr(trial_cache, "_fold_all", lambda *given: (folds.append(given[1]), whole(*given)))
    first = await both(mesh, spec)
    folds.clear()
    # The incumbent trains. The others end, some of them failed, and there is no work for their pods.
    for failed in range(4):
        request = GenerateAgentRequest(tournament_id=TOURNAMENT, spec=spec, number=7)
        request.unfinished_agent_ids.append(made[-1].agent_id)
        request.failed_agent_ids.extend(agent.agent_id for agent in made[:failed])
        request.running_duration.FromSeconds(997)
        assert isinstance(await mesh.generator.generate(request), NoWork)
        await mesh.generator.review(TOURNAMENT)
    await mesh.submit(made[-1], 50.0, environment_steps=3000, core_seconds=30.0)
    await mesh.generator.review(TOURNAMENT)
    assert folds == []
    cached, folded = await both(mesh, spec)
    assert cached == folded != first[0]
    request.running_duration.FromSeconds(10)
    assert isinstance(await mesh.generator.generate(request), Agent)
    cached, folded = await both(mesh, spec)
    assert cached == folded
    assert await mesh.replay() == []


@pytest.mark.parametrize("begins_by_clock", [True, False])
async def test_time_is_reserved_for_the_last_score_by_the_present_objective(
    mesh: Any, make_spec: MakeSpec, begins_by_clock: bool
) -> None:
    sections = {"evolution": {"strategy": "incumbent"}, "evaluation": {"every_environment_steps": 1000}}
    by_clock = make_spec(**sections, objective={"wall_clock_duration": "1000s"})
    by_steps = make_spec(**sections, objective={"environment_steps": 1_000_000})
    made = await race(mesh, by_clock if begins_by_clock else by_steps, 7)
    request = GenerateAgentRequest(
        tournament_id=TOURNAMENT, spec=by_clock, number=7, unfinished_agent_ids=[made[-1].agent_id]
    )
    # A quantum takes 10 s, and the last evaluation by the clock 2 s.
    request.running_duration.FromSeconds(989)
    request.tournament_environment_steps = 989_000
    assert isinstance(await mesh.generator.generate(request), NoWork)
    request.spec.CopyFrom(by_steps)
    assert isinstance(await mesh.generator.generate(request), Agent)
    assert await mesh.replay() == []
    request.number, request.tournament_environment_steps = 8, 991_000
    request.running_duration.FromSeconds(991)
    assert isinstance(await mesh.generator.generate(request), NoWork)
    cached, folded = await both(mesh, by_clock if begins_by_clock else by_steps)
    assert cached == folded


async def test_an_agent_records_how_far_the_tournament_was(mesh: Any, spec: TournamentSpec) -> None:
    request = GenerateAgentRequest(
        tournament_id=TOURNAMENT, spec=spec, number=0, pod_id="p0", tournament_environment_steps=5000
    )
    request.running_duration.FromSeconds(250)
    agent = await mesh.generator.generate(request)
    assert isinstance(agent, Agent)
    assert (agent.pod_id, agent.objective_share, agent.tournament_environment_steps) == ("p0", 0.25, 5000)
    assert agent.running_duration.ToSeconds() == 250
    assert (agent.trial, agent.rung, agent.assignment_environment_steps) == (0, 0, 2000)


async def test_a_review_names_the_agents_to_stop(mesh: Any, spec: TournamentSpec) -> None:
    spec.evolution.fresh_until, spec.evolution.first_rung = 0.0, 3
    founder = await mesh.generate(spec, 0)
    for step in (1000, 2000):
        await mesh.submit(founder, 100.0, environment_steps=step)
    fork = await mesh.generate(spec, 1, [founder.agent_id])
    assert fork.parent_agent_ids == [founder.agent_id]
    assert (await mesh.generator.review(TOURNAMENT)).stops == {}
    for step in (1000, 2000):
        await mesh.submit(fork, 0.0, environment_steps=step)
    assert list((await mesh.generator.review(TOURNAMENT)).stops) == [fork.agent_id]
    await mesh.generate(spec, 2, [founder.agent_id])
    assert (await mesh.generator.review(TOURNAMENT)).stops == {}, "the fork has ended"
    assert (await mesh.generator.review("unknown")).stops == {}


async def test_a_synchronous_tournament_stops_no_agent_early(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec(
        evolution={"strategy": "incumbent", "fresh_until": 0.0},
        evaluation={"every_environment_steps": 1000, "episodes": 16},
        synchronous=True,
        pool={"maximum_pods": 2},
    )
    agents = [await mesh.generate(spec, number) for number in range(2)]
    for one in agents:
        await mesh.submit(one, 100.0)
    round_two = [await mesh.generate(spec, number) for number in (2, 3)]
    for one in round_two:
        for step in (1000, 2000):
            await mesh.submit(one, 0.0, environment_steps=step)
    assert (await mesh.generator.review(TOURNAMENT)).stops == {}
    assert await mesh.replay() == []
