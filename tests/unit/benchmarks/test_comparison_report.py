from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.comparison import figures, oracles, rows
from benchmarks.comparison.oracles import Scale
from benchmarks.comparison.report import Results, at_equal_steps, report
from benchmarks.comparison.rows import Point, Row
from benchmarks.comparison.tasks import DEFAULTS, TASKS, UNKNOWN

SCALES = {"docking": Scale(0.0, "random", 100.0, "oracle"), "swing": Scale(-200.0, "random", -100.0, "oracle")}


def row(contender: str, seed: int, value: float, task: str = "docking", **changes: object) -> Row:
    made = Row(
        conditions=UNKNOWN, task=task, contender=contender, seed=seed, settings=contender, version="v", machine="m",
        date="d", load=1.0, budget_seconds=60.0, wall_seconds=60.0, environment_steps=1000, agents=2,
        state="completed", reason="", final_return=value, final_error=1.0, final_episodes=512, reported_score=value,
        reported_error=1.0, z=0.0, share_behind=0.5,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def with_curve(folder: Path, one: Row, points: list[tuple[float, int, float]]) -> Row:
    name = f"curves/{one.contender}-{one.task}-{one.seed}.csv"
    rows.write_curve(folder / name, [Point(seconds, steps, mean, 1.0, 64) for seconds, steps, mean in points])
    return replace(one, curve=name)


def lines(results: Results, base: str = "incumbent") -> list[str]:
    return "\n".join(report(results, base)).splitlines()


def test_returns_are_normalized_by_task(tmp_path: Path):
    results = Results([row("a", 1, 50.0), row("a", 1, -125.0, "swing")], SCALES, tmp_path)
    assert results.scores(UNKNOWN, "a") == {"docking": {1: 0.5}, "swing": {1: 0.75}}


def test_only_runs_with_the_usual_budget_of_a_task_are_compared(tmp_path: Path):
    short = [row("a", 1, 0.0, budget_seconds=5.0, settings="short")]
    assert Results([row("a", 1, 50.0), *short], SCALES, tmp_path).scores(UNKNOWN, "a") == {"docking": {1: 0.5}}
    short.append(row("a", 2, 10.0, budget_seconds=5.0, settings="short"))
    assert Results([row("a", 1, 50.0), *short], SCALES, tmp_path).scores(UNKNOWN, "a") == {"docking": {1: 0.0, 2: 0.1}}


def test_failed_runs_are_listed_and_not_counted(tmp_path: Path):
    made = [row("a", 1, 50.0), row("a", 2, 0.0, state="failed", reason="why")]
    found = lines(Results(made, SCALES, tmp_path))
    assert any(line.startswith("| `a` | 1 |") for line in found)
    assert f"| {UNKNOWN} | docking | `a` | 2 | why |" in found


def test_the_use_of_the_compute_is_a_mean_over_the_runs_where_it_is_known(tmp_path: Path):
    made = [row("a", 1, 0.0, evaluation_share=0.1, stopped_agents=3), row("a", 2, 0.0, evaluation_share=0.2, agents=4)]
    assert "| `a` | 0.50 | 0.15 | 3.0 | 3.0 |" in lines(Results(made, SCALES, tmp_path))


def test_the_base_is_compared_at_equal_seeds(tmp_path: Path):
    leads = (("incumbent", 20), ("a", 0))
    made = [row(name, seed, 10.0 * seed + lead) for seed in (1, 2, 3, 4) for name, lead in leads]
    found = lines(Results(made, SCALES, tmp_path))
    assert "| `a` | 1 | 4 | 0.200 [0.200, 0.200] | yes |  |" in found
    # Single task: all four differences are above 0, so p = 16 / 16.
    assert "| `a` | docking | 4 | +0.200 | 1.000 | no |" in found


def test_a_task_on_which_the_base_is_worse_is_found(tmp_path: Path):
    made = [row(name, seed, 50.0 - lead) for seed in range(1, 7) for name, lead in (("incumbent", 10), ("a", 0))]
    # 1 of 2^6 sign changes: 0.016.
    assert "| `a` | docking | 6 | -0.100 | 0.016 | yes |" in lines(Results(made, SCALES, tmp_path))


def test_at_equal_steps_the_longer_run_counts_as_it_was_then(tmp_path: Path):
    own = with_curve(tmp_path, row("incumbent", 1, 90.0, environment_steps=4000), [(10, 1000, 30.0), (60, 4000, 90.0)])
    peer = with_curve(tmp_path, row("ray-pbt", 1, 50.0, environment_steps=1500), [(60, 1500, 50.0)])
    results = Results([own, peer], SCALES, tmp_path)
    assert at_equal_steps(results, UNKNOWN, "incumbent", "ray-pbt") == ({"docking": {1: 0.3}}, {"docking": {1: 0.5}})
    assert "| `ray-pbt` | 1 | -0.200 [too few seeds] |  |" in lines(results)


def test_times_to_returns_are_compared_where_the_defaults_are_good(tmp_path: Path):
    own = with_curve(tmp_path, row("incumbent", 1, 95.0, conditions=DEFAULTS), [(20, 1, 30.0), (40, 2, 60.0)])
    other = with_curve(tmp_path, row("vanilla-all", 1, 95.0, conditions=DEFAULTS), [(10, 1, 60.0), (60, 9, 95.0)])
    found = lines(Results([own, other], SCALES, tmp_path))
    assert "| `vanilla-all` | docking | 20 / 10 (2.00) | 40 / 10 (4.00) | never / 60 | never / 60 |" in found


def test_reported_scores_are_counted_by_their_z(tmp_path: Path):
    made = [row("a", seed, 1.0, z=z) for seed, z in enumerate((0.5, -0.5, 3.0))]
    assert "| `a` | 3 | 2 | +1.00 |" in lines(Results(made, SCALES, tmp_path))


def test_a_row_becomes_the_oracle_only_if_it_is_better():
    found = oracles.improved(SCALES, [row("a", 1, 120.0), row("a", 1, -150.0, "swing")])
    assert (found["docking"].oracle, found["docking"].random) == (120.0, 0.0)
    assert "a, seed 1" in found["docking"].oracle_source
    assert found["swing"] == SCALES["swing"]


def test_every_task_has_a_scale_with_sources():
    scales = oracles.read()
    assert set(scales) == set(TASKS)
    for scale in scales.values():
        assert scale.oracle > scale.random
        assert scale.random_source
        assert scale.oracle_source


def test_scales_are_read_as_they_were_written(tmp_path: Path):
    oracles.write(SCALES, tmp_path / "a.json")
    assert oracles.read(tmp_path / "a.json") == SCALES


@pytest.mark.long
def test_figures_have_a_panel_per_task(tmp_path: Path):
    pytest.importorskip("matplotlib")
    made = [
        with_curve(tmp_path, row(name, seed, 50.0, task), [(10, 100, value), (60, 1000, value + 5)])
        for name, value in (("incumbent", 20.0), ("a", 40.0))
        for task in ("docking", "swing")
        for seed in (1, 2)
    ]
    files = figures.draw(Results(made, SCALES, tmp_path), tmp_path / "figures")
    assert [path.name for path in files] == ["unknown-seconds.svg", "unknown-environment-steps.svg"]
    text = files[0].read_text()
    assert "<svg" in text
