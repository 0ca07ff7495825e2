"""Writes docs/tournament.ipynb: a tournament from Python, with the outputs of a run.

Usage: `python docs/tools/notebook.py` runs the cells and writes the page; `--output FILE` writes elsewhere; `--check`
runs nothing, and exits with 1 if the page has other cells than this file.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/tournament.ipynb"
SECONDS = 300
"""Longest time of one cell."""
CELLS = (
    (
        "markdown",
        """# A tournament from Python

Trains a population of agents on CartPole, shows the candidates and the learning curve, and acts with the champion. It
needs the extras `agentpod`, `plots` and `policy`, and pandas, and takes about half a minute.
[Python](python.md) describes the interface.""",
    ),
    (
        "code",
        """import podrace

tournament = podrace.train("examples/cartpole.toml", {"evaluation.snapshot_period": "2s"}, progress=False)
tournament.status().state""",
    ),
    ("markdown", "The champion is the candidate with the best score on episodes that training has not seen."),
    (
        "code",
        """champion = tournament.champion()
print(champion.agent_id, champion.score, "±", champion.standard_error)""",
    ),
    (
        "code",
        """candidates = tournament.candidates().to_frame()
candidates[["rank", "agent_id", "score", "environment_steps"]]""",
    ),
    ("markdown", "Pods evaluate each snapshot once, on the same fresh episodes. The bars are standard errors."),
    (
        "code",
        """curve = tournament.curve(episodes=8).to_frame()
curve[["seconds", "environment_steps", "mean"]]""",
    ),
    (
        "code",
        """axes = curve.plot(x="environment_steps", y="mean", yerr="standard_error", marker="o", legend=False)
axes.set(xlabel="environment steps", ylabel="return");""",
    ),
    ("markdown", "The champion acts with numpy and ONNX Runtime, without PyTorch."),
    (
        "code",
        """import gymnasium

policy = tournament.load_policy()
environment = gymnasium.make("CartPole-v1")
observation, _ = environment.reset(seed=1)
policy.reset()
total, ended = 0.0, False
while not ended:
    observation, reward, terminated, truncated, _ = environment.step(policy.act(observation))
    total, ended = total + reward, terminated or truncated
total""",
    ),
)
"""Kind and source of each cell."""


def unexecuted() -> nbformat.NotebookNode:
    """Returns the notebook without outputs."""
    make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    cells = [make[kind](source, id=f"cell-{number}") for number, (kind, source) in enumerate(CELLS)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=kernel)


def executed(folder: Path) -> nbformat.NotebookNode:
    """Runs all cells in a folder, which gets the examples of the repository, and returns the notebook with outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell raised.
    """
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    os.environ["PYTHONPATH"] = os.pathsep.join((str(REPOSITORY), os.environ.get("PYTHONPATH", "")))
    client = NotebookClient(
        unexecuted(), timeout=SECONDS, record_timing=False, resources={"metadata": {"path": str(folder)}}
    )
    notebook: nbformat.NotebookNode = client.execute()
    # Which Python ran it says nothing about the page.
    notebook.metadata.pop("language_info", None)
    return notebook


def is_current(page: Path) -> bool:
    """Whether a page has the cells of this file, each code cell with the mark of a run."""
    if not page.is_file():
        return False
    cells = nbformat.read(page, as_version=4).cells
    ran = all(cell.execution_count for cell in cells if cell.cell_type == "code")
    return ran and [(cell.cell_type, cell.source) for cell in cells] == list(CELLS)


def main() -> int:
    """Runs and writes the notebook, or compares it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if the page is not up to date")
    parser.add_argument("--output", type=Path, default=PAGE, help="file to write")
    arguments = parser.parse_args()
    if arguments.check:
        if not is_current(PAGE):
            print("docs/tournament.ipynb has other cells; run `python docs/tools/notebook.py`")
            return 1
        return 0
    with tempfile.TemporaryDirectory(prefix="podrace-notebook-") as folder:
        nbformat.write(executed(Path(folder)), arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
