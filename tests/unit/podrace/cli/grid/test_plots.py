from pathlib import Path

from podrace.cli.grid import plots
from podrace.cli.grid.results import Combination, Outcome
from podrace.cli.grid.statistics import Point

PNG = b"\x89PNG\r\n\x1a\n"


def combination(name: str, *scores: float) -> Combination:
    runs = [
        Outcome("COMPLETED", "steps", "t", score, 1.0, 300, 9.0, 9.0, (Point(100, 3.0, 1.0), Point(300, 9.0, score)))
        for score in scores
    ]
    return Combination({"algorithm": name}, {"algorithm": name}, tuple(runs))


def test_curves_are_drawn_with_a_legend_however_many_there_are(tmp_path: Path) -> None:
    path = tmp_path / "grid.png"
    plots.draw(path, [combination(f"algorithm{number}", 2.0, 4.0) for number in range(40)], title="many")
    assert path.read_bytes().startswith(PNG)
    assert list(tmp_path.iterdir()) == [path]


def test_a_combination_that_was_never_scored_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "grid.png"
    lost = Combination({"algorithm": "sac"}, {"algorithm": "sac"}, (Outcome("FAILED", "pods die"), Outcome()))
    plots.draw(path, [lost], title="none")
    empty = path.read_bytes()
    plots.draw(path, [combination("ppo", 3.0), lost], title="none")
    assert path.read_bytes() != empty
