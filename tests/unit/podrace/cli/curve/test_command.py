from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.cli.curve import plots
from podrace.cli.terminal.palette import FAMILY_COLORS
from podrace.client.curve.evaluations import EvaluationSettings, known
from podrace.client.curve.points import CurvePoint, curve_seed
from podrace.errors import Unimplemented
from podrace.leaderboard.v1.leaderboard_pb2 import Snapshot
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

NAME = "cartpole-abc123"
PNG = b"\x89PNG\r\n\x1a\n"


def digest(number: int) -> str:
    return f"{number:02d}" + 62 * "b"


def snapshot(number: int, manifest: int, *, agent: int = 1, champion: bool = False, name: str = NAME) -> Snapshot:
    made = Snapshot(
        manifest_digest=digest(manifest),
        tournament_id=name,
        agent_id=f"{name}-a{agent}",
        algorithm="ppo",
        champion=champion,
        number=number,
        environment_steps=100 * number,
        agent_environment_steps=100 * number,
        tournament_environment_steps=1000 * number if champion else 0,
    )
    made.running_duration.FromMilliseconds(2000 * number + 5)
    return made


@pytest.fixture
def raced(mesh: Any) -> Any:
    """A tournament with three snapshots of the champion, two of them equal, and two of an agent."""
    evaluation = mesh.known.evaluation
    evaluation.mean_return, evaluation.variance, evaluation.episodes = 450.0, 64.0, 32
    mesh.known.tournaments[0].spec.evaluation.greedy = True
    mesh.known.tournaments[0].spec.evaluation.snapshot_period.FromSeconds(2)
    mesh.known.tournaments[0].running_duration.FromSeconds(7)
    mesh.known.snapshots = [
        snapshot(1, 1, champion=True),
        snapshot(2, 1, champion=True),
        snapshot(3, 2, champion=True),
        snapshot(1, 3),
        snapshot(2, 4),
    ]
    return mesh


@pytest.fixture
def curve(type_: Any, raced: Any) -> Callable[..., Any]:
    return lambda *arguments: type_("curve", "latest", *arguments, "--orchestrator", raced.address)


def entry(manifest: int, **changes: Any) -> pb.EvaluationEntry:
    values: dict[str, Any] = {"episodes": 32, "seed": curve_seed(0)} | changes
    done, error, members = values.pop("done", True), values.pop("error", ""), values.pop("members", 0)
    made = pb.EvaluationEntry(work=pb.EvaluationWork(evaluation_id=f"{NAME}-e{manifest}", **values), error=error)
    made.work.checkpoint.manifest_digest = digest(manifest)
    for _ in range(members):
        made.work.members.add()
    made.done = done
    if done and not error:
        made.evaluation.mean_return, made.evaluation.episodes = 100.0 + manifest, 32
    return made


def asked(mesh: Any) -> list[str]:
    return [one.checkpoint.manifest_digest for one in mesh.known.asked(pb.CreateEvaluationRequest)]


def test_each_policy_is_evaluated_once_on_fresh_episodes(curve: Any, raced: Any) -> None:
    answer = curve("--json")
    assert answer.code == 0, answer.err
    assert sorted(asked(raced)) == [digest(1), digest(2)]
    for request in raced.known.asked(pb.CreateEvaluationRequest):
        assert (request.episodes, request.seed, request.stochastic) == (32, curve_seed(0), False)
    points = answer.json["points"]
    assert [point["number"] for point in points] == [1, 2, 3]
    assert [point["environment_steps"] for point in points] == [1000, 2000, 3000]
    assert {point["agent_id"] for point in points} == {"champion"}
    assert points[0]["standard_deviation"] == 8.0
    assert points[0]["standard_error"] == pytest.approx(8.0 / 32**0.5)
    assert answer.json["failures"] == []


def test_the_curve_of_an_ensemble_ends_with_all_its_members(curve: Any, raced: Any, canned: Any) -> None:
    tournament = raced.known.tournaments[0]
    newest = canned.candidate(NAME, 7, 1.0)
    newest.candidate_id = tournament.champion_manifest_digest = digest(7)
    raced.known.submissions.append(newest)
    tournament.champion_selection.members.add(agent_id=f"{NAME}-a1", manifest_digest=digest(8))
    # An evaluation of the first member alone is another one.
    raced.known.evaluations = [entry(7)]
    points = curve("--json").json["points"]
    assert (points[-1]["manifest_digest"], points[-1]["mean"]) == (digest(7), 450.0)
    requests = raced.known.asked(pb.CreateEvaluationRequest)
    members = {one.checkpoint.manifest_digest: [member.manifest_digest for member in one.members] for one in requests}
    assert members == {digest(1): [], digest(2): [], digest(7): [digest(8)]}


def test_of_selects_the_curves_to_draw(curve: Any, raced: Any) -> None:
    answer = curve("--of", "agents", "--json")
    assert [point["agent_id"] for point in answer.json["points"]] == [f"{NAME}-a1"] * 2
    assert len(curve("--of", "all", "--json").json["points"]) == 5


def test_evaluations_use_the_options_of_the_tournament_overridden_by_those_of_the_command(
    curve: Any, raced: Any
) -> None:
    spec = raced.known.tournaments[0].spec.evaluation
    spec.options.update({"split": "validation", "episode_days": 5})
    spec.greedy = False
    curve("--option", "split=backtest", "--episodes", "7", "--seed", "4")
    for request in raced.known.asked(pb.CreateEvaluationRequest):
        assert dict(request.options) == {"split": "backtest", "episode_days": 5}
        assert (request.episodes, request.seed, request.stochastic) == (7, curve_seed(4), True)


def test_done_evaluations_are_reused_and_queued_ones_are_waited_for(curve: Any, raced: Any) -> None:
    raced.known.evaluations = [entry(1), entry(3, done=False), entry(9)]
    answer = curve("--of", "all", "--json")
    assert sorted(asked(raced)) == [digest(2), digest(4)]
    means = {point["manifest_digest"]: point["mean"] for point in answer.json["points"]}
    assert means == {digest(1): 101.0, digest(2): 450.0, digest(3): 450.0, digest(4): 450.0}
    assert "5 snapshots, 1 already evaluated, evaluating 3 on 32 episodes each" in answer.err


@pytest.mark.parametrize(
    "other",
    [{"episodes": 31}, {"seed": 1}, {"stochastic": True}, {"members": 1}, {"error": "no such object"}, {"options": {}}],
)
def test_an_evaluation_with_other_settings_is_not_reused(other: dict[str, Any]) -> None:
    how = EvaluationSettings(32, Struct(), curve_seed(0), stochastic=False)
    if "options" in other:
        other["options"] = Struct()
        other["options"]["split"] = "backtest"
    assert known([entry(1, **other)], how) == {}
    assert set(known([entry(1)], how)) == {digest(1)}


def test_a_score_of_the_built_in_evaluator_instead_of_the_plugin_is_not_reused() -> None:
    stand_in = entry(1)
    stand_in.evaluation.evaluator_fault = "evaluator python:mine:score: it hung"
    how = EvaluationSettings(32, Struct(), curve_seed(0), stochastic=False)
    assert known([stand_in], how) == {}
    assert known([entry(1), stand_in], how)[digest(1)].evaluation.evaluator_fault == ""


def test_a_done_evaluation_has_priority_over_a_queued_one() -> None:
    how = EvaluationSettings(32, Struct(), curve_seed(0), stochastic=False)
    for entries in ([entry(1), entry(1, done=False)], [entry(1, done=False), entry(1)]):
        assert known(entries, how)[digest(1)].done


@pytest.mark.long
def test_csv_and_plot_are_written_atomically(curve: Any, raced: Any, tmp_path: Path) -> None:
    answer = curve("--csv", "c.csv", "--plot", "c.png")
    assert answer.code == 0, answer.err
    lines = (tmp_path / "c.csv").read_text().splitlines()
    assert len(lines) == 4
    assert lines[1].startswith(f"{NAME},champion,ppo,2.005,1000,450.0,8.0,")
    assert (tmp_path / "c.png").read_bytes().startswith(PNG)
    assert "wrote c.csv" in answer.err
    assert "450.0 ± 1.4" in answer.out
    curve("--plot", "c.svg", "--by", "steps")
    assert (tmp_path / "c.svg").read_text().startswith("<?xml")
    assert {path.name for path in tmp_path.iterdir()} == {"c.csv", "c.png", "c.svg"}


def test_several_tournaments_share_a_plot(type_: Any, raced: Any, canned: Any, tmp_path: Path) -> None:
    other = canned.tournament("pendulum-zzzzzz")
    other.running_duration.FromSeconds(60)
    raced.known.tournaments.append(other)
    raced.known.snapshots.append(snapshot(1, 8, champion=True, name="pendulum-zzzzzz"))
    where = ("--orchestrator", raced.address)
    answer = type_("curve", "cart", "pendulum", "latest", *where, "--plot", "c.png", "--csv", "c.csv")
    assert answer.code == 0, answer.err
    assert (tmp_path / "c.png").stat().st_size > 10_000
    names = [line.partition(",")[0] for line in (tmp_path / "c.csv").read_text().splitlines()[1:]]
    assert names == [NAME] * 3 + ["pendulum-zzzzzz"]


def test_a_snapshot_that_cannot_be_evaluated_is_reported_and_omitted(curve: Any, raced: Any) -> None:
    raced.known.evaluations = [entry(1)]
    raced.known.evaluation_error = "object 02bb is not in folder:///store"
    answer = curve("--json")
    assert answer.code == 1
    assert [point["number"] for point in answer.json["points"]] == [1, 2]
    assert [failure["manifest_digest"] for failure in answer.json["failures"]] == [digest(2)]
    assert f"snapshot {digest(2)[:12]} is omitted: evaluation" in answer.err
    assert "object 02bb is not in" in answer.err


def test_the_error_has_the_reason_if_no_snapshot_can_be_evaluated(curve: Any, raced: Any, tmp_path: Path) -> None:
    raced.known.evaluation_error = "object 02bb is not in folder:///store"
    answer = curve("--csv", "c.csv")
    assert answer.code == 1
    assert answer.err.splitlines()[-1].startswith("error: no snapshot could be evaluated: evaluation")
    assert not (tmp_path / "c.csv").exists()


def test_the_error_about_missing_snapshots_explains_how_to_get_them(curve: Any, raced: Any) -> None:
    raced.known.snapshots.clear()
    answer = curve()
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "the first is due after 2 s (evaluation.snapshot_period)" in answer.err
    assert "the tournament has been running for 7.0 s" in answer.err
    raced.known.tournaments[0].spec.evaluation.ClearField("snapshot_period")
    answer = curve()
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "has no snapshots: its specification has no evaluation.snapshot_period" in answer.err
    assert not asked(raced)


def test_the_error_about_missing_snapshots_mentions_those_of_the_other_kind(curve: Any, raced: Any) -> None:
    raced.known.snapshots = [snapshot(1, 3)]
    answer = curve()
    assert answer.code == 2
    assert "has no snapshots for --of champion, but 1 for --of agents" in answer.err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--plot", "c.jpg"], "--plot c.jpg: expected a file name with the suffix .png or .svg"),
        (["--csv", "-"], "--csv -: name a file, or /dev/stdout"),
        (["--csv", "nowhere/c.csv"], "--csv nowhere/c.csv: there is no folder"),
        (["--plot", "nowhere/c.png"], "--plot nowhere/c.png: there is no folder"),
        (["--option", "split"], "--option split: expected KEY=VALUE"),
        (["--of", "no-one"], "Invalid value for '--of'"),
        (["--episodes", "0"], "Invalid value for '--episodes'"),
        (["nothing"], "unknown tournament 'nothing'"),
    ],
)
def test_an_error_is_reported_in_one_line_before_anything_is_evaluated(
    curve: Any, raced: Any, arguments: list[str], line: str
) -> None:
    answer = curve(*arguments)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert line in answer.err
    assert not asked(raced)


def test_a_single_episode_has_no_standard_error(curve: Any, raced: Any) -> None:
    raced.known.evaluation.variance, raced.known.evaluation.episodes = 0.0, 1
    answer = curve("--episodes", "1", "--of", "agents")
    assert answer.code == 0, answer.err
    assert [line.split()[-2:] for line in answer.out.splitlines()[-2:]] == [["450.0", "-"]] * 2


def test_a_file_that_cannot_be_written_is_reported_in_one_line(curve: Any, raced: Any, tmp_path: Path) -> None:
    (tmp_path / "curves.incoming.csv").mkdir()
    answer = curve("--csv", str(tmp_path / "curves.csv"))
    assert answer.code == 1
    assert answer.err.splitlines()[-1] == f"error: --csv {tmp_path}/curves.csv: cannot be written: Is a directory"


@pytest.mark.parametrize("panels", [1, 2])
def test_the_title_fits_above_its_panels(panels: int) -> None:
    points = [CurvePoint(snapshot(1, 1, name="a-tournament-with-a-long-name-abc123"), Evaluation(episodes=32))]
    environments = {"a-tournament-with-a-long-name-abc123": "cartpole"}
    lines = plots.title(points, environments, panels=panels).splitlines()
    assert all(len(line) <= 60 * panels for line in lines)


@pytest.mark.parametrize(("episodes", "band"), [(2, "band of one standard deviation"), (1, "deviation unknown")])
def test_the_title_mentions_a_band_only_if_the_deviation_is_known(tmp_path: Path, episodes: int, band: str) -> None:
    points = [CurvePoint(snapshot(number, 1), Evaluation(mean_return=3.0, episodes=episodes)) for number in (1, 2)]
    assert plots.title(points, {NAME: "CartPole-v1"}, panels=2).endswith(band)
    plots.draw(tmp_path / "c.png", points, environments={NAME: "CartPole-v1"}, by=["steps"])
    assert (tmp_path / "c.png").read_bytes().startswith(PNG)


def test_without_matplotlib_nothing_is_evaluated(curve: Any, raced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise Unimplemented("matplotlib is not installed, so that nothing is drawn; install podrace[plots]")

    monkeypatch.setattr("podrace.cli.curve.command.new_figure", missing)
    answer = curve("--plot", "c.png")
    assert answer.code == 1
    assert "podrace[plots]" in answer.err
    assert not asked(raced)


@pytest.mark.long
@pytest.mark.parametrize("curves", [1, len(FAMILY_COLORS), 40])
def test_any_number_of_curves_can_be_drawn(tmp_path: Path, curves: int) -> None:
    evaluation = Evaluation(mean_return=3.0, variance=1.0, episodes=4)
    points = [CurvePoint(snapshot(number, 1, agent=agent), evaluation) for agent in range(curves) for number in (1, 2)]
    path = tmp_path / "c.png"
    plots.draw(path, points, environments={NAME: "CartPole-v1"}, by=["wall-clock", "steps"])
    assert path.read_bytes().startswith(PNG)
    assert list(tmp_path.iterdir()) == [path]
