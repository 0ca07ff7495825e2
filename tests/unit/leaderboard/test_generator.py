import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest
from known_strategies import WITH_POPULATION, settings_of

from leaderboard import generation
from leaderboard.evolution import history
from leaderboard.evolution.strategy import NoWork
from leaderboard.generator import Generator
from leaderboard.store import records
from podrace.errors import AGENT_UNKNOWN, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from podrace.leaderboard.v1.leaderboard_pb2 import ORIGIN_FRESH, Agent, GenerateAgentRequest
from podrace.tournament.v1.tournament_pb2 import HyperparameterSpec, TournamentSpec

MakeSpec = Callable[..., TournamentSpec]
TOURNAMENT = "cartpole-abc123"
BAD_SPEC = "ERROR_REASON_BAD_SPEC"


def synchronous_spec(make_spec: MakeSpec, size: int = 3) -> TournamentSpec:
    return make_spec(
        synchronous=True,
        pool={"maximum_pods": size},
        evolution={"initial_agents": size, "fresh_probability": 0.2, "maximum_unfinished_children": 1},
    )


async def test_an_agent_is_generated_once_even_if_the_board_has_changed(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec()
    first = [await mesh.generate(spec, number) for number in range(3)]
    for number, agent in enumerate(first):
        await mesh.submit(agent, float(number))
    mesh.clock.now += 60
    assert [await mesh.generate(spec, number) for number in range(3)] == first


async def lose(mesh: Any, *agents: Agent) -> None:
    """Removes agents from the database, as if it had been restored from a backup made before they were generated."""
    for agent in agents:
        await mesh.state.transact(
            lambda transaction, name: transaction.execute("DELETE FROM agents WHERE agent_id = ?", name), agent.agent_id
        )


def known(spec: TournamentSpec, agent: Agent, **changes: Any) -> GenerateAgentRequest:
    """The request with which an orchestrator assigns an agent again."""
    fields: dict[str, Any] = {
        "request_id": agent.agent_id,
        "tournament_id": TOURNAMENT,
        "number": agent.number,
        **changes,
    }
    return GenerateAgentRequest(spec=spec, agent=agent, **fields)


async def test_an_agent_that_a_restored_database_lost_is_recorded_as_it_was_and_can_submit_again(
    mesh: Any, make_spec: MakeSpec
) -> None:
    spec = make_spec(evolution={"initial_agents": 1, "fresh_probability": 0.0})
    parent = await mesh.generate(spec, 0)
    await mesh.submit(parent, 1.0)
    child, later = await mesh.generate(spec, 1), await mesh.generate(spec, 2)
    before = await mesh.state.transact(records.get_generation, child.agent_id)
    await lose(mesh, child, later)
    with pytest.raises(NotFound, match="was never generated here") as refused:
        await mesh.submit(child, 2.0)
    assert refused.value.reason == AGENT_UNKNOWN
    full = Generator(mesh.state, find_shortage=AsyncMock(return_value="the disk of /data has 1.0 MiB left"))
    assert await full.generate(known(spec, child)) == child, "it needs no space that it did not have before"
    assert await mesh.generator.generate(known(spec, child, number=1)) == child, "a repetition has no effect"
    assert (await mesh.submit(child, 2.0)).candidate.rank == 1
    again = await mesh.state.transact(records.get_generation, child.agent_id)
    assert (again.agent, again.depth, again.ended) == (before.agent, before.depth, None)
    assert (await mesh.generate(spec, 3, [child.agent_id])).number == 3


async def test_an_agent_is_recorded_again_with_its_tournament_if_that_is_lost_too(
    mesh: Any, make_spec: MakeSpec
) -> None:
    spec = make_spec()
    agent = await mesh.generate(spec, 0)
    await lose(mesh, agent)
    await mesh.state.transact(lambda transaction: transaction.execute("DELETE FROM tournaments"))
    assert await mesh.generator.generate(known(spec, agent)) == agent
    assert await mesh.state.transact(records.find_spec, TOURNAMENT) == spec


async def test_what_the_leaderboard_knows_of_an_agent_is_not_replaced(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec()
    agent = await mesh.generate(spec, 0)
    other = Agent()
    other.CopyFrom(agent)
    other.seed += 1
    assert await mesh.generator.generate(known(spec, other)) == agent


@pytest.mark.parametrize("changes", [{"number": 5}, {"tournament_id": "other-1"}])
async def test_an_agent_that_is_not_the_named_one_is_not_recorded(
    changes: dict[str, Any], mesh: Any, make_spec: MakeSpec
) -> None:
    spec = make_spec()
    agent = await mesh.generate(spec, 0)
    await lose(mesh, agent)
    with pytest.raises(InvalidArgument, match=r"GenerateAgent: agent\.agent_id = "):
        await mesh.generator.generate(known(spec, agent, request_id="", **changes))


async def test_a_recorded_agent_does_not_confirm_ends_that_were_rolled_back(mesh: Any, make_spec: MakeSpec) -> None:
    """An incumbent's generator that has no work rolls back what it recorded; the folded log must forget it too."""
    spec = make_spec(evolution={"strategy": "incumbent"}, objective={"wall_clock_duration": "100s"})
    first, second = await mesh.generate(spec, 0), await mesh.generate(spec, 1, [f"{TOURNAMENT}-a0"])
    await lose(mesh, second)
    late = GenerateAgentRequest(tournament_id=TOURNAMENT, spec=spec, number=2)
    late.running_duration.FromMilliseconds(99_900)
    assert isinstance(await mesh.generator.generate(late), NoWork)
    await mesh.generator.generate(known(spec, second))
    cached = mesh.generator._trials
    assert TOURNAMENT not in cached._entries
    assert (await mesh.state.transact(records.get_generation, first.agent_id)).ended is None


async def test_no_agent_is_generated_while_there_is_no_space_for_its_checkpoints(
    mesh: Any, make_spec: MakeSpec
) -> None:
    shortages = AsyncMock(side_effect=["the disk of /data has 1.0 MiB left", ""])
    generator = Generator(mesh.state, find_shortage=shortages)
    request = GenerateAgentRequest(request_id="one", tournament_id=TOURNAMENT, spec=make_spec(), number=0)
    with pytest.raises(ResourceExhausted, match="MiB left"):
        await generator.generate(request)
    made = await generator.generate(request)
    assert made.number == 0


async def test_children_follow_the_first_agents(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec()
    for number in range(2):
        await mesh.submit(await mesh.generate(spec, number), float(number))
    child = await mesh.generate(spec, 2)
    board = {candidate.candidate_id for candidate in await mesh.board()}
    assert child.starting_checkpoint.manifest_digest in board
    assert child.create_time.ToNanoseconds() == round(mesh.clock.now * 1e9)
    generation = await mesh.state.transact(records.get_generation, child.agent_id)
    assert (generation.depth, generation.after_sequence) == (1, 2)


async def test_the_depth_of_a_submission_is_that_of_its_agent(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec(evolution={"initial_agents": 1, "fresh_probability": 0.0, "board_capacity": 1})
    depths = []
    for number in range(4):
        answer = await mesh.submit(await mesh.generate(spec, number), 10.0 * number)
        depths.append(answer.candidate.depth)
    assert depths == [0, 1, 2, 3]


async def test_a_parent_has_a_bounded_number_of_unfinished_children(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec(evolution={"initial_agents": 1, "fresh_probability": 0.0, "maximum_unfinished_children": 2})
    await mesh.submit(await mesh.generate(spec, 0), 5.0)
    unfinished: list[str] = []
    origins = []
    for number in range(1, 5):
        agent = await mesh.generate(spec, number, unfinished)
        unfinished.append(agent.agent_id)
        origins.append(agent.origin == ORIGIN_FRESH)
    assert origins == [False, False, True, True]
    finished = await mesh.generate(spec, 5, unfinished[1:])
    assert finished.origin != ORIGIN_FRESH


@pytest.mark.parametrize("strategy", ["random-search", "tournament", "incumbent"])
async def test_no_agent_begins_that_could_not_be_scored_before_the_end(
    strategy: str, mesh: Any, make_spec: MakeSpec
) -> None:
    spec = make_spec(evolution={"strategy": strategy}, objective={"wall_clock_duration": "100s"})
    request = GenerateAgentRequest(tournament_id=TOURNAMENT, spec=spec, pod_id="p0")
    request.running_duration.FromMilliseconds(98_100)
    assert isinstance(await mesh.generator.generate(request), Agent), "without an agent there is no result at all"
    request.number = 1
    assert isinstance(await mesh.generator.generate(request), NoWork)
    request.running_duration.FromMilliseconds(97_900)
    found = await mesh.generator.generate(request)
    assert isinstance(found, Agent) or strategy == "incumbent"
    spec.objective.wall_clock_duration.FromSeconds(200)
    request.number = 2
    request.spec.CopyFrom(spec)
    request.running_duration.FromMilliseconds(99_900)
    assert isinstance(await mesh.generator.generate(request), Agent), "the objective of the request counts"


async def test_unknown_unfinished_agents_are_ignored(mesh: Any, make_spec: MakeSpec) -> None:
    made = [await mesh.generate(make_spec(), number, ["unknown", f"{TOURNAMENT}-a7"]) for number in range(2)]
    generations = [await mesh.state.transact(records.get_generation, agent.agent_id) for agent in made]
    assert [generation.ended for generation in generations] == [generations[1].position, None]


async def test_an_ended_agent_stays_ended_after_a_late_request(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec()
    first, later = await mesh.generate(spec, 0), await mesh.generate(spec, 2, [f"{TOURNAMENT}-a1"])
    late = await mesh.generate(spec, 1, [first.agent_id])
    ended = [(await mesh.state.transact(records.get_generation, one.agent_id)).ended for one in (first, later, late)]
    assert ended == [2, None, None], "no end of the last two was ever reported"


async def test_equal_seeds_make_equal_fresh_agents_in_every_tournament(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec(seed=5, evolution={"strategy": "random-search"})
    one = [await mesh.generate(spec, number, tournament_id="one") for number in range(4)]
    two = [await mesh.generate(spec, number, tournament_id="two") for number in reversed(range(4))]
    assert [agent.hyperparameters for agent in one] == [agent.hyperparameters for agent in reversed(two)]
    assert [agent.seed for agent in one] == [agent.seed for agent in reversed(two)]


async def test_an_unknown_strategy_is_refused_with_the_nearest_known(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec()
    spec.evolution.strategy = "tournement"
    with pytest.raises(InvalidArgument, match=r"evolution\.strategy.*did you mean 'tournament'") as refused:
        await mesh.generate(spec, 0)
    assert refused.value.reason == BAD_SPEC


async def test_a_strategy_whose_package_is_missing_is_refused_in_one_line(
    mesh: Any, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        InvalidArgument, match=r"strategy = 'pb2': needs sklearn.*pip install 'podrace\[pb2\]'"
    ) as refused:
        await mesh.generate(make_spec(evolution={"strategy": "pb2"}), 0)
    assert refused.value.reason == BAD_SPEC
    assert (await mesh.generate(make_spec(evolution={"strategy": "truncation"}), 0)).seat == 0


async def test_failed_agents_are_recorded_with_the_agent_generated_next(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec(evolution={"strategy": "truncation", "population_size": 2})
    agents = [await mesh.generate(spec, number) for number in range(2)]
    for agent in agents:
        await mesh.submit(agent, 5.0)
    heir = await mesh.generate(spec, 2, failed=[agents[0].agent_id, "unknown"])
    assert heir.reason.startswith("seat 0: a0 failed; continues from the best, a1 (4.75 ± 0.5)")
    generation = await mesh.state.transact(records.get_generation, heir.agent_id)
    failed = [(await mesh.state.transact(records.get_generation, agent.agent_id)).failed for agent in agents]
    assert failed[0] == generation.position
    assert set(failed[1:]) == {None}


@pytest.mark.parametrize(("replaced_share", "parent"), [(0.0, 0), (0.5, 1)])
async def test_a_population_continues_from_checkpoints_that_are_not_on_the_board(
    mesh: Any, make_spec: MakeSpec, replaced_share: float, parent: int
) -> None:
    evolution = {"strategy": "truncation", "population_size": 2, "board_capacity": 1, "donor_share": 0.5}
    spec = make_spec(evolution=evolution | {"replaced_share": replaced_share})
    agents = [await mesh.generate(spec, number) for number in range(2)]
    answers = [await mesh.submit(agent, score) for agent, score in zip(agents, (5.0, 9.0), strict=True)]
    assert [candidate.agent_number for candidate in await mesh.board()] == [1]
    third = await mesh.generate(spec, 2)
    assert third.starting_checkpoint.manifest_digest == answers[parent].candidate.candidate_id
    assert list(third.parent_agent_ids) == [agents[parent].agent_id]


async def test_exactly_the_window_of_the_history_is_read(
    mesh: Any, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "SMALLEST_WINDOW", 2)
    spec = make_spec(evolution={"strategy": "truncation", "population_size": 1})
    for number in range(6):
        await mesh.judge(await mesh.generate(spec, number), float(number), 1.0)
    seen = await mesh.state.transact(generation._read_history, TOURNAMENT, spec, 6)
    assert [agent.number for agent in seen.agents] == [2, 3, 4, 5]
    assert [candidate.agent_number for candidate in seen.submissions] == [2, 3, 4, 5]


async def test_an_older_specification_without_allocation_means_ratio(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec()
    spec.evolution.ClearField("allocation")
    await mesh.generate(spec, 0)
    await mesh.generate(make_spec(), 1)
    with pytest.raises(InvalidArgument, match="evolution differs from what its first agent was generated with"):
        await mesh.generate(
            make_spec(evolution={"initial_agents": 2, "fresh_probability": 0.0, "allocation": "halving"}), 2
        )


def drop_capacity(spec: TournamentSpec) -> None:
    spec.evolution.ClearField("board_capacity")


def drop_value(spec: TournamentSpec) -> None:
    spec.algorithms["ppo"].hyperparameters["epochs"].CopyFrom(HyperparameterSpec())


def drop_ratios(spec: TournamentSpec) -> None:
    spec.algorithms["ppo"].ratio = 0.0


def drop_pods(spec: TournamentSpec) -> None:
    spec.synchronous = True


@pytest.mark.parametrize(
    ("drop", "key"),
    [
        (drop_capacity, "evolution.board_capacity"),
        (drop_value, "algorithms.ppo.hyperparameters.epochs.value"),
        (drop_ratios, "algorithms.<name>.ratio"),
        (drop_pods, "pool.maximum_pods"),
    ],
)
async def test_an_unresolved_specification_is_refused_with_the_missing_key(
    mesh: Any, make_spec: MakeSpec, drop: Callable[[TournamentSpec], None], key: str
) -> None:
    spec = make_spec()
    drop(spec)
    with pytest.raises(InvalidArgument, match=f"^{key}: missing; send the specification resolved") as refused:
        await mesh.generate(spec, 0)
    assert refused.value.reason == BAD_SPEC


async def test_a_request_without_a_tournament_is_refused(mesh: Any) -> None:
    with pytest.raises(InvalidArgument, match="tournament_id is empty"):
        await mesh.generator.generate(GenerateAgentRequest())


async def test_another_seed_or_strategy_later_is_refused_but_other_limits_of_the_pool_are_not(
    mesh: Any, make_spec: MakeSpec
) -> None:
    await mesh.generate(make_spec(), 0)
    await mesh.generate(make_spec(pool={"maximum_pods": 7}, objective={"target_return": 9.0}), 1)
    for changed in (make_spec(seed=1), make_spec(evolution={"strategy": "random-search"})):
        with pytest.raises(InvalidArgument, match="differs from what its first agent was generated with"):
            await mesh.generate(changed, 2)


async def test_a_failed_generation_leaves_no_tournament_behind(mesh: Any, make_spec: MakeSpec) -> None:
    with pytest.raises(FailedPrecondition):
        await mesh.generate(synchronous_spec(make_spec), 3)
    assert await mesh.state.transact(records.find_spec, TOURNAMENT) is None


async def test_a_synchronous_agent_waits_for_the_earlier_rounds(mesh: Any, make_spec: MakeSpec) -> None:
    spec = synchronous_spec(make_spec)
    agents = [await mesh.generate(spec, number) for number in range(3)]
    with pytest.raises(FailedPrecondition, match=f"{agents[1].agent_id} of an earlier round is unfinished"):
        await mesh.generate(spec, 3, [agents[1].agent_id])
    assert (await mesh.generate(spec, 3)).number == 3
    with pytest.raises(FailedPrecondition, match="of the 6 agents of the earlier rounds only 4 were generated"):
        await mesh.generate(spec, 6)


async def test_an_unfinished_agent_of_the_same_round_is_not_waited_for(mesh: Any, make_spec: MakeSpec) -> None:
    spec = synchronous_spec(make_spec)
    first = await mesh.generate(spec, 0)
    assert (await mesh.generate(spec, 1, [first.agent_id])).number == 1


async def run_rounds(mesh: Any, spec: TournamentSpec, name: str, *, backward: bool) -> list[Agent]:
    """Three rounds of three agents that submit twice each; in one order or the other."""
    agents: dict[int, Agent] = {}
    for begin in (0, 3, 6):
        order = list(range(begin, begin + 3))
        if backward:
            order.reverse()
        unfinished: list[str] = []
        for number in order:
            agents[number] = await mesh.generate(spec, number, unfinished if backward else [], tournament_id=name)
            unfinished.append(agents[number].agent_id)
        for attempt in (1, 2):
            for number in order:
                await mesh.submit(agents[number], (number * 7 % 5) * 10.0 + attempt, variance=900.0)
    return [agents[number] for number in sorted(agents)]


def without_name(agent: Agent) -> tuple[Any, ...]:
    parents = [parent.rpartition("-")[2] for parent in agent.parent_agent_ids]
    return agent.number, agent.algorithm, agent.origin, agent.seed, agent.reason, parents, str(agent.hyperparameters)


@pytest.mark.long
@pytest.mark.parametrize("strategy", WITH_POPULATION)
async def test_the_seats_of_a_synchronous_population_do_not_depend_on_which_pod_is_faster(
    mesh: Any, make_spec: MakeSpec, strategy: str
) -> None:
    evolution = settings_of(strategy, population_size=3, replaced_share=0.5, donor_share=0.5)
    sections = {"synchronous": True, "pool": {"maximum_pods": 3}, "algorithms": {"ppo": {"ratio": 2}, "a2c": {}}}
    spec = make_spec(evolution=evolution, **sections)
    forward = await run_rounds(mesh, spec, "forward", backward=False)
    backward = await run_rounds(mesh, spec, "backward", backward=True)
    assert [without_name(agent) for agent in forward] == [without_name(agent) for agent in backward]
    assert [agent.seat for agent in forward] == [0, 1, 2] * 3
    assert any(agent.parent_agent_ids for agent in forward)


async def test_a_synchronous_population_does_not_depend_on_which_pod_is_faster_or_asks_first(
    mesh: Any, make_spec: MakeSpec
) -> None:
    spec = synchronous_spec(make_spec)
    forward = await run_rounds(mesh, spec, "forward", backward=False)
    backward = await run_rounds(mesh, spec, "backward", backward=True)
    assert [without_name(agent) for agent in forward] == [without_name(agent) for agent in backward]
    assert any(agent.parent_agent_ids for agent in forward[3:])
    parents = [parent for agent in forward[3:6] for parent in agent.parent_agent_ids]
    assert len(parents) == len(set(parents)), "one unfinished child a parent"
