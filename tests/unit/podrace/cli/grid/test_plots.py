from pathlib import Path

import pytest

from podrace.cli.grid import plots
from podrace.cli.grid.results import CellOutcome, Combination
from podrace.cli.grid.statistics import BestScorePoint

PNG = b"\x89PNG\r\n\x1a\n"


def combination(name: str, *scores: float) -> Combination:
    runs = [
        CellOutcome(
            "COMPLETED",
            "steps",
            "t",
            score,
            1.0,
            300,
            9.0,
            9.0,
            (BestScorePoint(100, 3.0, 1.0), BestScorePoint(300, 9.0, score)),
        )
        for score in scores
    ]
    return Combination({"algorithm": name}, {"algorithm": name}, tuple(runs))


@pytest.mark.long
def test_any_number_of_curves_is_drawn_with_a_legend(tmp_path: Path) -> None:
    path = tmp_path / "grid.png"
    plots.draw(path, [combination(f"algorithm{number}", 2.0, 4.0) for number in range(40)], title="many")
    assert path.read_bytes().startswith(PNG)
    assert list(tmp_path.iterdir()) == [path]


def test_a_combination_without_scores_is_omitted(tmp_path: Path) -> None:
    path = tmp_path / "grid.png"
    lost = Combination({"algorithm": "sac"}, {"algorithm": "sac"}, (CellOutcome("FAILED", "pods die"), CellOutcome()))
    plots.draw(path, [lost], title="none")
    empty = path.read_bytes()
    plots.draw(path, [combination("ppo", 3.0), lost], title="none")
    assert path.read_bytes() != empty
