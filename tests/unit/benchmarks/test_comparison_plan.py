import argparse
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.comparison import command, measure, own, rows
from benchmarks.comparison.contenders import (
    ABLATIONS,
    CONTROLS,
    PEERS,
    Own,
    Peer,
    known,
    peer_values,
    resolved,
    settings_digest,
    values_of,
)
from benchmarks.comparison.fresh import Policy, Score
from benchmarks.comparison.measure import Measurement, points_of, z_of
from benchmarks.comparison.outcome import Moment, Outcome, moments_at
from benchmarks.comparison.plan import BLOCKS, GROWTH, PEER_TASKS, Choice, Run, plan_table, runs, unknown_contenders
from benchmarks.comparison.tasks import (
    CONDITIONS,
    DEFAULTS,
    LINEAR,
    LOG,
    REVERSE_LOG,
    TASKS,
    UNKNOWN,
    UNKNOWN_LONG,
    WIDE,
    Prior,
)
from podrace.client.compute import ComputeSummary
from podrace.leaderboard.v1.leaderboard_pb2 import EpisodeCorrelation, Snapshot
from podrace.specification import catalog
from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_COMPLETED, TOURNAMENT_STATE_FAILED, Tournament

OWN = {name: contender for name, contender in known().items() if isinstance(contender, Own) and name not in ABLATIONS}
EVERY = {name for block in BLOCKS for name in block.contenders}


def spec_of(name: str, task: str = "docking", conditions: str = UNKNOWN, seed: int = 1):
    return resolved(values_of(OWN[name], TASKS[task], conditions, seed, 60.0), name)


# --- tasks and contenders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prior", "middle"),
    [
        (Prior(1e-5, 1e-1, LOG), 1e-3),
        (Prior(0.9, 0.9999, REVERSE_LOG), 1 - (0.1 * 0.0001) ** 0.5),
        (Prior(0.0, 3.0, LINEAR), 1.5),
    ],
)
def test_positions_and_values_of_a_prior_are_inverse(prior: Prior, middle: float):
    assert prior.at(0.0) == pytest.approx(prior.low)
    assert prior.at(1.0) == pytest.approx(prior.high)
    assert prior.at(0.5) == pytest.approx(middle)
    assert prior.position(middle) == pytest.approx(0.5)


def test_whole_values_stay_in_their_range():
    prior = Prior(64, 1024, LOG, whole=True)
    values = [prior.at(position / 100) for position in range(101)]
    assert (values[0], values[-1]) == (64.0, 1024.0)
    assert all(value.is_integer() for value in values)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("conditions", CONDITIONS)
@pytest.mark.parametrize("name", OWN)
def test_every_contender_of_podrace_has_a_valid_specification_with_the_budget_and_cores_of_the_task(
    name: str, conditions: str, task: str
):
    spec = spec_of(name, task, conditions)
    assert spec.objective.wall_clock_duration.seconds == 60
    cores = 1 if name == "vanilla" else 2
    assert spec.pool.maximum_pods * spec.pod.cores == cores
    assert spec.environment.id == TASKS[task].id


def test_with_unknown_values_no_contender_has_the_defaults_and_all_have_the_same_first_values():
    def first(name: str, seed: int) -> dict[str, float]:
        given = spec_of(name, seed=seed).algorithms["ppo"].hyperparameters
        return {key: given[key].value.number_value for key in WIDE}

    firsts = [first(name, 1) for name in OWN]
    assert all(one == firsts[0] for one in firsts)
    declared = catalog.ALGORITHMS["ppo"].hyperparameters
    assert all(firsts[0][key] != declared[key].default for key in ("learning_rate", "discount", "gae_lambda"))
    assert first("vanilla", 2) != firsts[0]
    for key, prior in WIDE.items():
        assert prior.low <= firsts[0][key] <= prior.high


def test_with_known_defaults_the_first_agent_has_them():
    given = spec_of("tournament", conditions=DEFAULTS).algorithms["ppo"].hyperparameters
    assert given["learning_rate"].value.number_value == pytest.approx(3e-4)
    assert given["learning_rate"].HasField("low")
    fixed = spec_of("vanilla", conditions=DEFAULTS).algorithms["ppo"].hyperparameters
    assert not any(hyperparameter.HasField("low") for hyperparameter in fixed.values())
    assert fixed["learning_rate"].value.number_value == pytest.approx(3e-4)


def test_long_and_short_agents_train_for_their_part_of_the_budget():
    seconds = {name: spec_of(name).assignment.duration.ToTimedelta().total_seconds() for name in CONTROLS}
    expected = {"vanilla": 60, "vanilla-all": 60, "best-of-2": 60, "random-short": 2.5, "random-long": 15}
    assert seconds == expected


def test_other_libraries_get_podraces_values_and_the_same_search_space():
    values = peer_values(PEERS["ray-pbt"], "ray-pbt", TASKS["docking"], UNKNOWN, 1, 60.0)
    assert set(values["priors"]) == set(WIDE)
    assert values["defaults"]["hidden_sizes"] == [32, 32]
    assert values["defaults"]["minibatch_size"] == 512
    assert values["defaults"]["learning_rate"] == pytest.approx(3e-4)
    assert (values["first_default"], values["seconds"], values["cores"]) == (False, 60.0, 2)


def test_every_strategy_that_podrace_knows_is_a_contender():
    assert set(catalog.STRATEGIES) - {"random-search"} <= set(known())


def test_an_unknown_contender_is_refused():
    with pytest.raises(SystemExit, match="choose among"):
        command.check_contenders(["tournament", "tournamint"])
    command.check_contenders(["tournament", "ray-pbt"])


# --- plan --------------------------------------------------------------------------------------------------------


def test_the_whole_plan_fits_twenty_machine_hours_and_growth_four_more():
    of_growth = [run for run in runs(Choice(), EVERY) if run.contender == GROWTH]
    assert sum(run.expected_seconds for run in runs(Choice(), EVERY - {GROWTH})) < 20 * 3600
    assert 0 < sum(run.expected_seconds for run in of_growth) < 4 * 3600


def test_what_is_compared_runs_alternately_seed_by_seed():
    wanted = runs(Choice(regimes=["unknown"]), EVERY)
    assert [run.seed for run in wanted] == sorted(run.seed for run in wanted)
    first = [run for run in wanted if run.seed == 1 and run.task == "pendulum"]
    assert wanted[: len(first)] == first
    assert [run.contender for run in first] == list(BLOCKS[0].contenders)


def test_the_regimes_are_ordered_by_importance():
    assert list(dict.fromkeys(run.regime for run in runs(Choice(), EVERY))) == [
        "unknown", "peers", "defaults", "ablations", "strategies", "first-default",
    ]  # fmt: skip


def test_other_libraries_run_on_three_tasks_with_five_seeds():
    wanted = runs(Choice(contenders=["ray-pbt", "optuna-median"]), EVERY)
    wanted = [run for run in wanted if run.conditions == UNKNOWN_LONG and run.regime == "peers"]
    assert {run.task for run in wanted} == set(PEER_TASKS)
    assert set(Counter((run.task, run.contender) for run in wanted).values()) == {5}


def test_other_libraries_have_three_times_the_budget_of_a_task_and_so_has_what_they_are_compared_with():
    seconds = {(run.contender, run.task): run.seconds for run in runs(Choice(regimes=["peers"]), EVERY)}
    assert seconds["ray-pbt", "pendulum"] == seconds["asha", "pendulum"] == 3 * TASKS["pendulum"].seconds


def test_a_choice_narrows_the_plan():
    choice = Choice(["unknown"], ["swing"], ["vanilla", "tournament"], seeds=2, seconds=5.0)
    assert [(run.task, run.contender, run.seed, run.seconds) for run in runs(choice, EVERY)] == [
        ("swing", "vanilla", 1, 5.0), ("swing", "tournament", 1, 5.0),
        ("swing", "vanilla", 2, 5.0), ("swing", "tournament", 2, 5.0),
    ]  # fmt: skip


def test_the_first_seed_may_be_chosen():
    choice = Choice(["unknown"], ["swing"], ["vanilla"], seeds=2, first_seed=4)
    assert [run.seed for run in runs(choice, EVERY)] == [4, 5]


def test_contenders_that_this_version_does_not_know_are_left_out_and_named():
    assert {run.contender for run in runs(Choice(), ["vanilla"])} == {"vanilla"}
    assert "vanilla" not in unknown_contenders(["vanilla"])
    assert "incumbent" in unknown_contenders(["vanilla"])


def test_the_table_of_the_plan_counts_runs_and_hours():
    wanted = [Run("unknown", UNKNOWN, "pendulum", "vanilla", seed, 60.0) for seed in (1, 2)]
    # 60 s of budget, 6 s of the mesh, 8 s of evaluation: 74 s, 148 s = 0.04 h together.
    lines = list(plan_table(wanted, {wanted[0]}))
    assert "| unknown | 2 | 1 | 0.0 | 0.0 | pendulum | vanilla |" in lines
    assert wanted[0].expected_seconds == 74.0


# --- measuring ---------------------------------------------------------------------------------------------------


def test_a_changed_run_is_another_run_and_an_equal_one_is_not():
    def digest(name: str, seed: int = 1, seconds: float = 60.0) -> str:
        return settings_digest(values_of(OWN[name], TASKS["docking"], UNKNOWN, seed, seconds))

    assert digest("tournament") == digest("tournament")
    assert len({digest("tournament"), digest("vanilla"), digest("tournament", 2), digest("tournament", 1, 61.0)}) == 4


def test_the_delivered_policy_at_a_time_is_the_best_so_far():
    policies = [Policy("sb3", str(number)) for number in range(3)]
    published = [(1.0, 10, 5.0, policies[0]), (2.0, 20, 3.0, policies[1]), (3.0, 30, 9.0, policies[2])]
    assert moments_at(published, [0.5, 2.5, 3.0]) == [
        Moment(2.5, 20, policies[0]), Moment(3.0, 30, policies[2]),
    ]  # fmt: skip


def test_a_curve_ends_with_the_final_policy():
    policy = Policy("sb3", "a")
    outcome = Outcome(policy, 60.0, 1000, 1, moments=[Moment(30.0, 500, policy), Moment(60.0, 999, policy)])
    points = points_of(outcome, [Score(5.0, 0.5, 512), Score(1.0, 0.1, 64), Score(2.0, 0.2, 64)])
    assert [(point.seconds, point.environment_steps, point.mean) for point in points] == [
        (30.0, 500, 1.0), (60.0, 1000, 5.0),
    ]  # fmt: skip


def test_z_is_in_standard_errors_of_the_difference():
    outcome = Outcome(Policy("sb3", "a"), 1.0, 1, 1, reported_score=10.0, reported_error=3.0)
    assert z_of(outcome, Score(5.0, 4.0, 512)) == 1.0
    assert z_of(Outcome(None, 1.0, 1, 1), None) is None


class FakeMeasurement(Measurement):
    """Does not run anything."""

    measured: list[str] = []  # noqa: RUF012 (shared by all of a test, which empties it)

    def measure(self, curves, notify):
        FakeMeasurement.measured.append(self.run.contender)
        fails = self.run.contender == "vanilla" and FakeMeasurement.measured.count("vanilla") == 1
        return rows.Row(
            **vars(self.key), version="v", machine="m", date="d", load=0.0, budget_seconds=self.run.seconds,
            wall_seconds=1.0, environment_steps=1, agents=1, state="failed" if fails else "completed",
            reason="out of luck" if fails else "", final_return=None if fails else 1.0, final_error=0.1,
        )  # fmt: skip


def test_runs_with_a_row_are_not_repeated_and_failed_ones_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "Measurement", FakeMeasurement)
    FakeMeasurement.measured = []
    choice = Choice(["unknown"], ["docking"], ["tournament", "vanilla"], seeds=1)
    for _ in range(3):
        command.run_all(choice, tmp_path, python=sys.executable, hours=0.0, episodes=8)
    assert FakeMeasurement.measured == ["tournament", "vanilla", "vanilla"]
    assert [row.state for row in rows.read(tmp_path / command.CSV)] == ["completed", "failed", "completed"]


def test_a_tournament_may_have_the_environment_steps_of_another_contender_as_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(command, "Measurement", FakeMeasurement)
    FakeMeasurement.measured = []
    command.run_all(
        Choice(["unknown"], ["docking"], ["tournament"], seeds=1),
        tmp_path,
        python=sys.executable,
        hours=0.0,
        episodes=8,
    )
    choice = Choice(["unknown"], ["docking", "swing"], ["asha", "random-long"], seeds=1)
    command.run_all(choice, tmp_path, python=sys.executable, hours=0.0, episodes=8, steps_of="tournament")
    assert FakeMeasurement.measured == ["tournament", "asha-with-steps-of-tournament"]
    left_out = capsys.readouterr().err
    assert "docking, random-long, seed 1, 60 s: is left out" in left_out, "its agents train for a part of the clock"
    assert "swing, asha, seed 1, 60 s: is left out" in left_out, "the other contender has not run"
    (one,) = command.with_steps_of(
        command.measurements(Choice(["unknown"], ["docking"], ["asha"], seeds=1), sys.executable),
        "tournament",
        rows.read(tmp_path / command.CSV),
    )
    assert one.values["objective"] == {"environment_steps": 1}


def test_no_run_begins_that_would_not_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(command, "Measurement", FakeMeasurement)
    FakeMeasurement.measured = []
    choice = Choice(["unknown"], ["docking"], ["tournament"], seeds=2)
    command.run_all(choice, tmp_path, python=sys.executable, hours=0.01, episodes=8)
    assert FakeMeasurement.measured == []
    assert "stopped with 2 runs left" in capsys.readouterr().err


def test_a_library_that_is_not_installed_is_left_out_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(command.peer_runs, "missing", lambda library, python: "optuna" if library == "optuna" else "")
    choice = Choice(["unknown"], ["docking"], ["vanilla", "optuna-median", "ray-pbt"], seeds=1)
    assert [one.run.contender for one in command.measurements(choice, "python3")] == ["vanilla", "ray-pbt"]
    assert "optuna-median is left out: python3 has no optuna" in capsys.readouterr().err


def test_a_run_that_fails_becomes_a_row_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> Outcome:
        raise RuntimeError("no space left")

    monkeypatch.setattr(measure.own, "run", fails)
    run = Run("unknown", UNKNOWN, "docking", "vanilla", 1, 60.0)
    row = Measurement(run, known()["vanilla"]).measure(tmp_path / "curves", print)
    assert (row.good, row.state, row.reason) == (False, "failed", "no space left")


def test_names_are_separated_by_commas():
    assert command.names_of(TASKS)("docking,swing") == ["docking", "swing"]
    with pytest.raises(argparse.ArgumentTypeError, match="choose among"):
        command.names_of(TASKS)("docking,chess")


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_settings_of_an_ablation_exist(name: str):
    if ABLATIONS[name].strategy in catalog.STRATEGIES:
        resolved(values_of(ABLATIONS[name], TASKS["pendulum"], DEFAULTS, 1, 60.0), name)


def ended(**changes: object):
    tournament = Tournament(
        state=TOURNAMENT_STATE_COMPLETED, environment_steps=1000, champion_manifest_digest="c1", best_score=5.0,
        best_score_standard_error=0.5, running_duration={"seconds": 60},
    )  # fmt: skip
    tournament.MergeFrom(Tournament(**changes))
    snapshots = [
        Snapshot(manifest_digest="s", champion=champion, number=number, running_duration={"seconds": seconds},
                 tournament_environment_steps=10 * seconds)
        for champion, number, seconds in ((True, 2, 20), (False, 1, 10), (True, 1, 10), (True, 9, 90))
    ]  # fmt: skip
    compute = ComputeSummary(1000, 100, 50.0, 10.0, 1.0, 2, (), EpisodeCorrelation(correlation=0.5, pairs=3))
    return own._Ended(tournament, snapshots, agents=3, compute=compute)


def test_the_outcome_of_a_tournament_is_its_champion_with_the_snapshots_until_its_end():
    outcome = own.outcome_of(ended(), "folder:///x")
    assert outcome.policy == Policy("podrace", "folder:///x", ["c1"])
    assert (outcome.share_behind, outcome.reported_score, outcome.wall_seconds) == (0.1, 5.0, 60.0)
    assert (outcome.evaluation_share, outcome.stopped_agents, outcome.correlation) == (0.2, 2, 0.5)
    assert [(one.seconds, one.environment_steps) for one in outcome.moments] == [(10.0, 100), (20.0, 200)]


def test_an_ensemble_as_champion_is_evaluated_as_one():
    outcome = own.outcome_of(ended(champion_selection={"members": [{"manifest_digest": "c3"}]}), "folder:///x")
    assert outcome.policy == Policy("podrace", "folder:///x", ["c1", "c3"])


def test_a_tournament_without_a_champion_has_a_reason():
    assert own.outcome_of(ended(state=TOURNAMENT_STATE_FAILED, reason="no pods"), "s").reason == "no pods"


def test_peers_are_never_specifications_of_podrace():
    assert all(isinstance(contender, Peer) for contender in PEERS.values())
