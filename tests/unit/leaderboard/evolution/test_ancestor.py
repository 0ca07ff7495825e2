"""A tournament that starts from an agent of another one."""

from collections.abc import Callable
from typing import Any

import pytest
from known_strategies import EVERY, has_founders, settings_of

from leaderboard import queries
from leaderboard.evolution.ancestor import best_of, inherited_values, seeded_numbers
from leaderboard.garbage import collect_once
from leaderboard.generator import Generator
from leaderboard.plugins.plugin_pool import PluginReply
from leaderboard.ranking.retention import Retention
from leaderboard.store import records
from podrace.checkpoint_store.publish import fetch
from podrace.errors import InvalidArgument, NotFound
from podrace.evolution.v1.evolution_pb2 import ProposeAgentResponse
from podrace.leaderboard.v1.leaderboard_pb2 import (
    ORIGIN_CLONE,
    ORIGIN_FRESH,
    ORIGIN_MUTATION,
    Agent,
    Candidate,
    GetLineageRequest,
)
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MakeSpec = Callable[..., TournamentSpec]
OLD, NEW = "old-abc123", "new-def456"
HOUR = 3600.0
SEARCHED = {"ppo": {"hyperparameters": {"learning_rate": {"low": 1e-5, "high": 1e-1, "value": 1e-3}}}}


def after(make_spec: MakeSpec, ancestor: str, **sections: Any) -> TournamentSpec:
    """A specification that starts from an agent, whose every mutation changes something."""
    evolution = {"initial_agents": 4, "fresh_probability": 0.0, "mutation_probability": 1.0}
    given = {**evolution, **sections.pop("evolution", {}), "ancestor_agent_id": ancestor}
    return make_spec(**{"algorithms": SEARCHED, **sections, "evolution": given})


async def ancestor_of(mesh: Any, make_spec: MakeSpec, **sections: Any) -> tuple[Agent, Candidate]:
    """An agent of the old tournament and its best candidate, which is not its last."""
    spec = make_spec(**{"algorithms": SEARCHED, **sections})
    agent = await mesh.generate(spec, 0, tournament_id=OLD)
    best = (await mesh.submit(agent, 9.0)).candidate
    await mesh.submit(agent, 2.0)
    return agent, best


async def test_the_first_agents_start_from_the_ancestor_and_the_last_of_them_is_fresh(
    mesh: Any, make_spec: MakeSpec
) -> None:
    ancestor, best = await ancestor_of(mesh, make_spec)
    agents = [
        await mesh.generate(after(make_spec, ancestor.agent_id), number, tournament_id=NEW) for number in range(4)
    ]
    assert [agent.origin for agent in agents] == [ORIGIN_CLONE, ORIGIN_MUTATION, ORIGIN_MUTATION, ORIGIN_FRESH]
    for agent in agents[:3]:
        assert list(agent.parent_agent_ids) == [ancestor.agent_id] == [agent.starting_checkpoint.agent_id]
        assert agent.starting_checkpoint.manifest_digest == best.candidate_id
        assert ancestor.agent_id in agent.reason
    assert agents[0].hyperparameters == ancestor.hyperparameters
    assert len({agent.hyperparameters["learning_rate"] for agent in agents[:3]}) == 3
    assert not agents[3].HasField("starting_checkpoint")
    depths = [(await mesh.state.transact(records.get_generation, agent.agent_id)).depth for agent in agents]
    assert depths == [1, 1, 1, 0]


async def test_later_submissions_of_the_ancestors_tournament_change_nothing(mesh: Any, make_spec: MakeSpec) -> None:
    ancestor, best = await ancestor_of(mesh, make_spec)
    spec = after(make_spec, ancestor.agent_id)
    await mesh.generate(spec, 0, tournament_id=NEW)
    await mesh.submit(ancestor, 50.0)
    second = await mesh.generate(spec, 1, tournament_id=NEW)
    assert second.starting_checkpoint.manifest_digest == best.candidate_id
    assert await mesh.replay(NEW) == []


@pytest.mark.long
@pytest.mark.parametrize("strategy", EVERY)
async def test_every_strategy_starts_from_the_ancestor_and_can_be_replayed(
    mesh: Any, make_spec: MakeSpec, strategy: str
) -> None:
    ancestor, best = await ancestor_of(mesh, make_spec)
    spec = after(make_spec, ancestor.agent_id, evolution=settings_of(strategy, population_size=4))
    agents = []
    for number in range(7):
        agents.append(await mesh.generate(spec, number, tournament_id=NEW))
        await mesh.submit(agents[-1], float(number))
    started = [best.candidate_id == agent.starting_checkpoint.manifest_digest for agent in agents]
    first = 1 if has_founders(strategy) else 3
    assert started == [True] * first + [False] * (7 - first)
    assert has_founders(strategy) or agents[3].origin == ORIGIN_FRESH
    assert await mesh.replay(NEW) == []


async def test_a_replay_finds_an_altered_start(mesh: Any, make_spec: MakeSpec) -> None:
    ancestor, _ = await ancestor_of(mesh, make_spec)
    agent = await mesh.generate(after(make_spec, ancestor.agent_id), 0, tournament_id=NEW)
    agent.starting_checkpoint.manifest_digest = "another"
    await mesh.state.transact(
        lambda transaction: transaction.execute(
            "UPDATE agents SET agent = ? WHERE tournament_id = ?", agent.SerializeToString(), NEW
        )
    )
    assert any("starting_checkpoint was" in line for line in await mesh.replay(NEW))


def test_each_algorithm_of_a_mix_keeps_a_fresh_agent(make_spec: MakeSpec) -> None:
    spec = make_spec(algorithms={"ppo": {"ratio": 2}, "a2c": {}}, evolution={"initial_agents": 6})
    turns = {name: seeded_numbers(spec, name) for name in ("ppo", "a2c")}
    assert [len(numbers) for numbers in turns.values()] == [3, 1]
    assert seeded_numbers(make_spec(evolution={"initial_agents": 1}), "ppo") == [0]


async def test_agents_of_other_algorithms_stay_fresh(mesh: Any, make_spec: MakeSpec) -> None:
    ancestor, _ = await ancestor_of(mesh, make_spec)
    spec = after(make_spec, ancestor.agent_id, algorithms={**SEARCHED, "a2c": {}})
    agents = [await mesh.generate(spec, number, tournament_id=NEW) for number in range(4)]
    assert {agent.algorithm for agent in agents if agent.origin == ORIGIN_FRESH} == {"ppo", "a2c"}
    assert [agent.algorithm for agent in agents if agent.origin != ORIGIN_FRESH] == ["ppo"]


async def test_values_that_are_not_searched_are_those_of_the_new_specification(mesh: Any, make_spec: MakeSpec) -> None:
    ancestor, _ = await ancestor_of(mesh, make_spec)
    fixed = {"ppo": {"hyperparameters": {"discount": 0.9, "learning_rate": {"low": 1e-2, "high": 1e-1, "value": 5e-2}}}}
    spec = make_spec(algorithms=fixed)
    values = inherited_values(spec, ancestor)
    assert values["discount"] == 0.9
    assert values["learning_rate"] == 5e-2, "the ancestor's lies outside of where it is searched now"


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"algorithms": {"a2c": {}}}, "is an agent of ppo, and the algorithms here are a2c"),
        ({"environment": {"id": "Acrobot-v1"}}, "was trained on 'CartPole-v1', but environment.id = 'Acrobot-v1'"),
        ({"algorithms": {"ppo": {"hyperparameters": {"hidden_sizes": [8]}}}}, "hidden_sizes = .*would not fit"),
    ],
)
async def test_checkpoints_that_do_not_fit_are_refused_in_one_line_with_the_first_agent(
    mesh: Any, make_spec: MakeSpec, sections: dict[str, Any], line: str
) -> None:
    ancestor, _ = await ancestor_of(mesh, make_spec)
    with pytest.raises(InvalidArgument, match=line) as refused:
        await mesh.generate(after(make_spec, ancestor.agent_id, **sections), 0, tournament_id=NEW)
    assert refused.value.reason == "ERROR_REASON_BAD_SPEC"
    assert "\n" not in refused.value.message
    with pytest.raises(NotFound):
        await mesh.state.transact(records.get_spec, NEW)


async def test_options_that_shape_observations_must_agree(mesh: Any, make_spec: MakeSpec) -> None:
    def stocks(*tickers: str, **options: Any) -> dict[str, Any]:
        return {"environment": {"id": "stocks", "options": {"tickers": list(tickers), **options}}}

    ancestor, _ = await ancestor_of(mesh, make_spec, **stocks("AAPL", "IBM"))
    with pytest.raises(InvalidArgument, match=r"environment.options.tickers = \['AAPL', 'IBM'\], not \['AAPL'\]"):
        await mesh.generate(after(make_spec, ancestor.agent_id, **stocks("AAPL")), 0, tournament_id=NEW)
    other = after(make_spec, ancestor.agent_id, **stocks("AAPL", "IBM", path="newer.npz"))
    assert (await mesh.generate(other, 0, tournament_id=NEW)).origin == ORIGIN_CLONE


async def test_an_ancestor_must_exist_and_have_been_scored(mesh: Any, make_spec: MakeSpec) -> None:
    unscored = await mesh.generate(make_spec(), 0, tournament_id=OLD)
    for agent_id, line in (("gone-abc123-a7", "no other tournament"), (unscored.agent_id, "was never scored")):
        with pytest.raises(InvalidArgument, match=line):
            await mesh.generate(after(make_spec, agent_id), 0, tournament_id=NEW)
    with pytest.raises(InvalidArgument, match="no other tournament"):
        await mesh.generate(after(make_spec, f"{NEW}-a0"), 0, tournament_id=NEW)


def test_a_malformed_agent_id_is_refused_before_anything_is_created(make_spec: MakeSpec) -> None:
    with pytest.raises(InvalidArgument, match=r"ancestor_agent_id = 'latest': expected the id of an agent"):
        make_spec(evolution={"ancestor_agent_id": "latest"})


def test_the_best_candidate_is_the_one_on_the_board_or_else_the_last(make_spec: MakeSpec, make_candidate: Any) -> None:
    seven = [make_candidate(7, score, sequence=place) for place, score in ((1, 5.0), (2, 3.0))]
    better = [make_candidate(number, 9.0, sequence=number + 3) for number in range(2)]
    roomy, tight = make_spec(), make_spec(evolution={"board_capacity": 2})
    agent_id = seven[0].agent_id
    assert best_of(agent_id, roomy, [*seven, *better]) == seven[0]
    assert best_of(agent_id, tight, [*seven, *better]) == seven[1], "the best was evicted, its files may be gone"
    assert best_of(agent_id, roomy, better) is None


class FreshProposer:
    """A generator plugin that always proposes a fresh agent; records the numbers of the agents."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def find_missing_function(self, evolution: Any) -> str:
        return ""

    async def call(self, method: Any, evolution: Any, prepare: Any) -> PluginReply[ProposeAgentResponse]:
        self.asked.append((await prepare()).request.number)
        return PluginReply(ProposeAgentResponse(fresh={}, reason="no parent"))

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("synchronous", [False, True])
async def test_a_generator_plugin_is_not_called_for_agents_that_start_from_the_ancestor(
    mesh: Any, make_spec: MakeSpec, synchronous: bool
) -> None:
    ancestor, best = await ancestor_of(mesh, make_spec)
    rounds = {"synchronous": True, "pool": {"maximum_pods": 2}} if synchronous else {}
    spec = after(make_spec, ancestor.agent_id, evolution={"generator": "python:mine:propose"}, **rounds)
    plugins = FreshProposer()
    mesh.generator = Generator(mesh.state, plugins)  # type: ignore[arg-type]
    agents = [await mesh.generate(spec, number, tournament_id=NEW) for number in (0, 1, 3, 2, 4)]
    agents.sort(key=lambda agent: agent.number)
    assert plugins.asked == [3, 4]
    assert [agent.starting_checkpoint.manifest_digest for agent in agents] == [best.candidate_id] * 3 + [""] * 2
    assert all(agent.reason.endswith("; python:mine:propose was not called") for agent in agents[:3])
    assert agents[3].reason.startswith("fresh, python:mine:propose: no parent")
    assert not any(agent.generator_fault for agent in agents)
    assert await mesh.replay(NEW) == []


async def test_the_ancestors_files_are_kept_while_first_agents_may_start_from_them(
    mesh: Any, make_spec: MakeSpec
) -> None:
    ancestor, best = await ancestor_of(mesh, make_spec, evolution={"board_capacity": 1})
    mix = {**SEARCHED, "a2c": {}}
    spec = after(make_spec, ancestor.agent_id, algorithms=mix, evolution={"initial_agents": 6})
    assert seeded_numbers(spec, "ppo") == [1, 3]
    await mesh.generate(spec, 0, tournament_id=NEW)
    # It is driven off its own board, and is neither its agent's last nor among its last two.
    other = await mesh.generate(make_spec(algorithms=SEARCHED, evolution={"board_capacity": 1}), 1, tournament_id=OLD)
    await mesh.submit(other, 50.0)
    await mesh.submit(ancestor, 1.0)

    async def is_there() -> bool:
        mesh.clock.now += 2 * HOUR
        await collect_once(mesh.state, mesh.store, grace_seconds=HOUR, retention=Retention())
        try:
            fetch(mesh.store, best.candidate_id)
        except NotFound:
            return False
        return True

    assert await is_there(), "agents 1 and 3 were not made yet"
    await mesh.generate(spec, 1, tournament_id=NEW)
    await mesh.generate(spec, 2, tournament_id=NEW)
    assert await is_there(), "agent 1 has ended, agent 3 was not made yet"
    second = await mesh.generate(spec, 3, tournament_id=NEW)
    assert second.starting_checkpoint.manifest_digest == best.candidate_id
    assert await is_there(), "agent 3 has not ended"
    await mesh.generate(spec, 4, tournament_id=NEW)
    assert not await is_there()


async def test_a_lineage_continues_into_the_other_tournament_with_summaries(mesh: Any, make_spec: MakeSpec) -> None:
    ancestor, best = await ancestor_of(mesh, make_spec)
    agent = await mesh.generate(after(make_spec, ancestor.agent_id), 0, tournament_id=NEW)
    family = await queries.lineage(mesh.state, GetLineageRequest(agent_id=agent.agent_id))
    assert [one.agent_id for one in family.agents] == [agent.agent_id, ancestor.agent_id]
    assert family.summaries[1].best.candidate_id == best.candidate_id
    assert family.summaries[0].lineage_environment_steps == best.environment_steps
    await mesh.submit(agent, 3.0)
    all_agents = await queries.lineage(mesh.state, GetLineageRequest(tournament_id=NEW))
    assert all_agents.summaries[0].submissions == 1
    assert not all_agents.summaries[0].HasField("learning_speed"), "the two scores are of different data"
