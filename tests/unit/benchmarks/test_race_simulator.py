import math
import sys
from random import Random

import numpy as np
import pytest

from benchmarks.race_simulator import __main__ as command
from benchmarks.race_simulator.contenders import CONTROLS, GROWING, QUANTA, QUANTUM_STEPS, known, specification_of
from benchmarks.race_simulator.families import FAMILIES, Family
from benchmarks.race_simulator.learning import Learner, Luck, State, World
from benchmarks.race_simulator.race import Race
from benchmarks.race_simulator.records import Records
from benchmarks.race_simulator.table import Cell, Setting, simulate, tables
from leaderboard.evolution import STRATEGIES
from leaderboard.evolution.agents import make
from leaderboard.evolution.strategy import NoWork
from podrace.errors import InvalidArgument

EPISODES = 8
LUCKLESS = Luck(pace=1.0, height=1.0, dead=False)
# The other optional package than numpy that a strategy needs makes it slow.
FAST = [name for name in known() if name != "pb2"]


def race(name: str, pods: int = 2, seed: int = 1, family: str = "bad-defaults") -> Race:
    contender = known()[name]
    return Race(contender, specification_of(contender, pods, EPISODES), FAMILIES[family], pods, seed)


def test_the_grown_pod_continues_the_incumbent_and_not_a_challenger_that_stopped_for_it():
    one, begun = race("incumbent-grows", pods=8), []
    assign = one._assign

    def recorded(pod, now, pods):
        leading = one._records.leading_trial
        waits = pod.agent is None and pod.cores > 1 and leading is not None and not leading.training
        assign(pod, now, pods)
        if waits and pod.agent is not None and one._paused:
            begun.append((one._records.trial_number(pod.agent), leading.number))

    one._assign = recorded
    assert one.run().changes > 0
    assert begun
    assert all(trial == leading for trial, leading in begun)


def test_every_strategy_of_the_leaderboard_takes_part():
    assert set(known()) == (set(STRATEGIES) - {"random-search"}) | set(CONTROLS) | set(GROWING)


@pytest.mark.long
@pytest.mark.parametrize("name", FAST)
def test_the_same_seed_gives_the_same_race(name: str):
    assert race(name).run() == race(name).run()
    assert race(name).run() != race(name, seed=2).run()


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in FAST if name not in GROWING])
@pytest.mark.parametrize("pods", [1, 3])
def test_every_contender_uses_the_pod_time_it_has_and_no_more(name: str, pods: int):
    one = race(name, pods)
    result = one.run()
    contender = known()[name]
    speed = 3**0.85 if name == "vanilla-all" and pods == 3 else 1.0
    trained = QUANTA * round(QUANTUM_STEPS * speed) * contender.pods(pods)
    # A strategy that decides the length of training leaves less than a quantum and its evaluation unused at the end.
    assert trained - 3 * pods * QUANTUM_STEPS <= one._records.environment_steps <= trained
    if STRATEGIES[contender.strategy].fold is None:
        assert one._records.environment_steps == trained
    assert 0 < result.share <= 1


def test_controls_without_search_have_only_the_default_values():
    for name in ("vanilla", "vanilla-all", "best-of-p"):
        one = race(name)
        one.run()
        points = {
            tuple(agent.hyperparameters[key] for key in ("learning_rate", "discount"))
            for agent in one._records.agents.values()
        }
        assert len(points) == 1, name


def test_the_agents_of_a_race_are_those_of_the_leaderboards_code():
    one = race("tournament")
    one.run()
    spec = one._records.spec
    for number in range(spec.evolution.initial_agents):
        made = make("race", spec, number, (), {}, {})
        assert not isinstance(made, NoWork)
        expected, _ = made
        found = one._records.agents[expected.agent_id]
        assert (found.seed, found.origin, found.hyperparameters) == (
            expected.seed,
            expected.origin,
            expected.hyperparameters,
        )


def test_contenders_share_the_luck_of_an_agent_and_the_episodes_of_an_epoch():
    first, second = (World(FAMILIES["lucky-seeds"], 5, episodes=EPISODES, correlation=0.8) for _ in range(2))
    assert first.fresh(3, first.default).luck == second.fresh(3, second.default).luck
    assert first.default == second.default


def test_a_quantum_closes_the_gap_to_the_asymptote_by_the_pace():
    # At the best values: asymptote 0.05 + 0.95 = 1; the pace is 0.07 * (0.25 + 1.25 exp(-0.5 (0.12 / 0.3)^2)).
    world = World(Family(), 1, episodes=EPISODES, correlation=0.0)
    learner = Learner(world.best, LUCKLESS, Random(1), State())
    world.train(learner)
    pace = 0.07 * (0.25 + 1.25 * math.exp(-0.08))
    assert learner.state.skill == pytest.approx(1 - math.exp(-pace), rel=1e-12)
    assert learner.state.quanta == 1


def test_a_greedy_agent_stays_on_the_plateau():
    world = World(FAMILIES["slow-start"], 1, episodes=EPISODES, correlation=0.0)
    greedy = (min(1.0, world.best[0] + 0.3), world.best[1], max(0.0, world.best[2] - 0.3))
    learners = {point: Learner(point, LUCKLESS, Random(1), State()) for point in (world.best, greedy)}
    for learner in learners.values():
        for _ in range(QUANTA):
            world.train(learner)
    assert learners[greedy].state.true_return < 0.4
    assert learners[world.best].state.true_return > 0.8


def test_on_common_episodes_differences_have_less_noise():
    def deviation(correlation: float) -> float:
        world = World(FAMILIES["good-noisy"], 1, episodes=64, correlation=correlation)
        return float(np.std(world.returns(0.5, 0) - world.returns(0.5, 0)))

    assert deviation(0.9) < 0.5 * deviation(0.0)


def test_the_standard_error_of_a_score_is_that_of_the_family():
    world = World(FAMILIES["good-noisy"], 1, episodes=16, correlation=0.0)
    scores = [world.returns(0.5, 0).mean() for _ in range(2000)]
    assert np.std(scores) == pytest.approx(0.10, rel=0.1)


def test_the_steps_behind_a_candidate_include_those_of_its_parents():
    contender = known()["tournament"]
    records = Records(
        specification_of(contender, 1, EPISODES, [("evolution.initial_agents", 1), ("evolution.fresh_probability", 0)])
    )
    returns = np.arange(4.0)
    parent = records.generate("pod", 0.0)
    records.submit(parent, returns, steps=700, seconds=7.0, epoch=0)
    records.finish(parent)
    child = records.generate("pod", 1.0)
    assert list(child.parent_agent_ids) == [parent.agent_id]
    assert records.submit(child, returns, steps=300, seconds=3.0, epoch=0).environment_steps == 1000
    assert records.environment_steps == 1000


def test_scores_are_compared_in_pairs_only_on_common_episodes():
    spec = specification_of(known()["tournament"], 2, EPISODES)
    for common in (True, False):
        records, found = Records(spec, common_episodes=common), []
        for returns in (np.arange(8.0), 2 + np.arange(8.0), np.arange(8.0) - 1):
            agent = records.generate("pod", 0.0)
            found.append(records.submit(agent, returns, steps=1, seconds=1.0, epoch=0))
        # Known from the first pair on.
        assert (found[2].episode_correlation > 0) is common
        # A single score is estimated at half its standard error below it.
        assert found[0].estimate == pytest.approx(3.5 - found[0].standard_error / 2)


def test_a_continued_agent_has_the_values_and_the_luck_of_the_one_before():
    one = race("incumbent")
    one.run()
    agents = one._records.agents
    continued = [agent for agent in agents.values() if one._records.continues(agent)]
    assert continued
    for agent in continued:
        assert agent.hyperparameters == agents[agent.parent_agent_ids[0]].hyperparameters
    assert any(agent.assignment_environment_steps > QUANTUM_STEPS for agent in continued)


def test_an_agent_that_the_strategy_stops_frees_its_pod():
    def stopped(one: Race) -> int:
        trained = dict(one._records._steps)
        lengths = {agent.agent_id: one._length_of(agent) for agent in one._records.agents.values()}
        unfinished = set(one._records._unfinished)
        return sum(trained[key] < lengths[key] for key in trained if key not in unfinished)

    contender = known()["incumbent"]
    counts = []
    for errors in (0.5, 100):
        spec = specification_of(contender, 4, EPISODES, [("evolution.stop_errors", errors)])
        one = Race(contender, spec, FAMILIES["bad-defaults"], 4, 1)
        one.run()
        counts.append(stopped(one))
    assert counts[0] > 0 == counts[1]


def test_settings_replace_those_of_strategies_and_unknown_ones_are_refused():
    contender = known()["tournament"]
    assert specification_of(contender, 2, EPISODES, [("evolution.tournament_size", 7)]).evolution.tournament_size == 7
    with pytest.raises(InvalidArgument, match="tournament_sise"):
        specification_of(contender, 2, EPISODES, [("evolution.tournament_sise", 7)])
    assert command.override("evolution.fresh_probability=0.5") == ("evolution.fresh_probability", 0.5)
    assert command.override("evolution.strategy=softmax") == ("evolution.strategy", "softmax")
    with pytest.raises(SystemExit, match="KEY=VALUE"):
        command.override("evolution")


@pytest.mark.parametrize("name", ["truncation", "mf-pbt"])
def test_a_population_has_the_size_that_its_budget_gives(name: str):
    # Assignments of 4 of 48 quanta: 12 for each pod, a sixth of which are seats, at least 4.
    sizes = [specification_of(known()[name], pods, EPISODES).evolution.population_size for pods in (2, 8, 12)]
    assert sizes == [4, 16, 24]
    given = specification_of(known()[name], 8, EPISODES, [("evolution.population_size", 9)])
    assert given.evolution.population_size == 9


def test_an_unknown_contender_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["race_simulator", "--contenders", "unknown-name"])
    with pytest.raises(SystemExit):
        command.main()
    assert "choose among" in capsys.readouterr().err


def test_differences_are_paired_by_seed():
    setting = Setting(["good-defaults"], ["vanilla", "best-of-p"], [2], 4, 0, EPISODES, 0.8)
    cells = list(simulate(setting, processes=1))
    text = "\n".join(tables(cells, against="vanilla"))
    assert [cell.contender for cell in cells] == ["vanilla", "best-of-p"]
    gap = cells[1].values("final") - cells[0].values("final")
    assert f"{gap.mean():+.3f}" in text


def test_metrics_of_a_cell_are_means_over_seeds():
    results = [race("vanilla", seed=seed).run() for seed in (1, 2)]
    found = Cell("bad-defaults", 2, "vanilla", results, 0.0).metrics()
    finals = [result.final for result in results]
    assert found["final"] == pytest.approx(sum(finals) / 2)
    assert found["error"] == pytest.approx(abs(finals[0] - finals[1]) / 2)


def test_the_quick_command_prints_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["race_simulator", "--quick", "--contenders", "tournament,random-long"])
    command.main()
    assert "| family | tournament | random-long |" in capsys.readouterr().out
