"""Evaluates the champion of a finished tournament and writes plots, HTML pages and report.json.

Only this module evaluates on the data that `[reports]` of the specification names, so no agent is selected on it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.cli.results import backtest_html, deflated_sharpe, plots
from podrace.cli.results.deflated_sharpe import Deflation, deflate
from podrace.cli.results.importance_plot import draw_importance
from podrace.cli.results.origin import write_origin
from podrace.cli.results.scoring import evaluated, headline
from podrace.cli.terminal.atomic_file import whole_file
from podrace.cli.terminal.output import finite
from podrace.cli.views import compute as compute_view
from podrace.cli.views import importance as importance_view
from podrace.cli.views import json_shapes, tables
from podrace.client import Client
from podrace.client.account_charts import ACCOUNT
from podrace.client.champion import members_of_champion
from podrace.client.compute import ComputeSummary, read_compute
from podrace.client.hyperparameters import HyperparametersByAgent, read_of_champion
from podrace.client.importance import AlgorithmImportance, importance_of
from podrace.errors import FailedPrecondition, PodraceError, Unimplemented
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.printable import printable
from podrace.specification.resolve import REPORT_NAME
from podrace.tournament.v1.tournament_pb2 import ReportSpec, Tournament

REPORT_FILE = "report.json"
"""File of the folder with the results of a tournament, which is written after the others."""
SHARPE_RATIO = "sharpe_ratio"
"""Measure of single episodes that contains the candidates' Sharpe ratios."""
OTHERS = ("index_", "random_")
"""Prefixes of metrics of other baselines than the equal-weight pool."""


@dataclass
class ChampionReport:
    """Evaluations of the champion."""

    champion: Sequence[Checkpoint]
    """Its checkpoint, or those of the members of an ensemble."""
    hyperparameters: HyperparametersByAgent = field(default_factory=dict)
    """Those of its agents."""
    compute: ComputeSummary | None = None
    """What the compute of the tournament was used for, before the reports were made."""
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    """By name of the report."""
    failures: dict[str, str] = field(default_factory=dict)
    """Errors of the reports that failed, by name."""
    importance: Sequence[AlgorithmImportance] = ()
    """Importance of the hyperparameters of each algorithm."""
    deflations: dict[str, Deflation] = field(default_factory=dict)
    """Deflated Sharpe ratios of the reports that have an account value, by name, if candidates have Sharpe ratios."""


async def make_report(
    client: Client, tournament: Tournament, folder: Path, *, orchestrator: str, notify: Callable[[str], None]
) -> ChampionReport:
    """Evaluates the champion for each report of the specification and writes plots, pages and report.json.

    Args:
        client: Client of the mesh.
        tournament: A completed tournament.
        folder: Folder for the files; created if it does not exist.
        orchestrator: Address of the orchestrator; empty for the embedded mesh of the home. The folder records it.
        notify: Receives lines for the user.

    Raises:
        PodraceError: The leaderboard does not answer, or the files cannot be written. An evaluation that fails is
            listed in the result instead.
    """
    report = ChampionReport(members_of_champion(tournament))
    report.hyperparameters = await read_of_champion(client, tournament)
    report.compute = await read_compute(client, tournament)
    for name, spec in sorted(tournament.spec.reports.items()):
        if not REPORT_NAME.fullmatch(name):
            # The specification may be that of another user, on a mesh that did not check it.
            report.failures[name] = "no files can be named after it"
            continue
        notify(f"evaluating the champion: {name}")
        await _evaluate(client, tournament, name, spec, report)
    submissions = await client.list_submissions(tournament)
    report.deflations = _deflations(report, submissions)
    report.importance = importance_of(tournament.spec, await client.list_agents(tournament), submissions)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FailedPrecondition(f"results cannot be written to {folder}: {error.strerror}") from None
    write_origin(folder, orchestrator)
    _write(folder, tournament, submissions, report, notify)
    return report


async def _evaluate(
    client: Client, tournament: Tournament, name: str, spec: ReportSpec, report: ChampionReport
) -> None:
    first, *others = report.champion
    try:
        report.evaluations[name] = await evaluated(
            client, tournament, first, members=others, episodes=spec.episodes, options=spec.options
        )
    except PodraceError as error:
        report.failures[name] = error.message


def _deflations(report: ChampionReport, submissions: Sequence[Candidate]) -> dict[str, Deflation]:
    tried = [entry.episode_metrics[SHARPE_RATIO] for entry in submissions if SHARPE_RATIO in entry.episode_metrics]
    correlation = submissions[-1].episode_correlation if submissions else 0.0
    found = {
        name: deflate(evaluation.traces[ACCOUNT].values, tried, correlation)
        for name, evaluation in report.evaluations.items()
        if ACCOUNT in evaluation.traces
    }
    return {name: deflation for name, deflation in found.items() if deflation is not None}


def _write(
    folder: Path,
    tournament: Tournament,
    submissions: Sequence[Candidate],
    report: ChampionReport,
    notify: Callable[[str], None],
) -> None:
    _write_pages(folder, tournament, report)
    try:
        plots.draw_learning_curves(folder / "learning_curves.png", tournament, submissions)
        _draw_accounts(folder, tournament, report)
        title = f"Scores of trials by hyperparameter: {tournament.tournament_id}"
        draw_importance(folder / "hyperparameters.png", tournament.spec, report.importance, title=title)
    except Unimplemented as error:
        notify(error.message)
    ended = json_shapes.result(tournament, folder, report.hyperparameters)
    spent = compute_view.as_json(report.compute) if report.compute else {}
    about = {"importance": importance_view.as_json(report.importance), "reports": _reports(report)}
    _write_json(folder / REPORT_FILE, ended | spent | about)


def _write_pages(folder: Path, tournament: Tournament, report: ChampionReport) -> None:
    """Writes a page for each report with an account value, for instance backtest.html for the report `backtest`."""
    for name, evaluation in report.evaluations.items():
        if ACCOUNT in evaluation.traces:
            title = f"{name}: {tables.champion_name(tournament)} of {tournament.tournament_id}"
            deflation = report.deflations.get(name)
            note = deflated_sharpe.summary(deflation) if deflation else ""
            _write_text(folder / f"{name}.html", backtest_html.backtest_page(title, evaluation, note))


def _draw_accounts(folder: Path, tournament: Tournament, report: ChampionReport) -> None:
    agent = tables.champion_name(tournament)
    for name, evaluation in report.evaluations.items():
        if "account_value" in evaluation.traces:
            plots.draw_account_value(
                folder / f"account_value_{name}.png",
                champion=evaluation.traces["account_value"],
                baseline=evaluation.traces.get("equal_weight_value"),
                title=f"Account value, {name}: {agent} of {tournament.tournament_id}",
            )
        if "drawdown" in evaluation.traces:
            plots.draw_backtest(folder / f"{name}.png", evaluation.traces, title=f"{name}: {agent}")


def _reports(report: ChampionReport) -> dict[str, Any]:
    made = {name: json_shapes.evaluation(evaluation) for name, evaluation in report.evaluations.items()}
    for name, deflation in report.deflations.items():
        made[name]["deflated_sharpe"] = deflated_sharpe.as_json(deflation)
    return made | {name: {"error": line} for name, line in report.failures.items()}


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    _write_text(path, json.dumps(finite(values), indent=2, allow_nan=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    with whole_file(path) as place:
        place.write_text(text, encoding="utf-8")


def render(report: ChampionReport) -> RenderableType:
    """Returns what the compute was used for, and the metrics of each report as a table."""
    parts: list[RenderableType] = []
    if report.compute and (facts := compute_view.facts(report.compute)):
        parts.append(tables.facts_table(facts))
    for name, evaluation in report.evaluations.items():
        parts += [Text(), Text.assemble((printable(name), "bold"), f": {headline(evaluation)}")]
        # The table has room for one baseline; the page shows all.
        measures = {key: value for key, value in evaluation.metrics.items() if not key.startswith(OTHERS)}
        if measures:
            parts.append(Padding(tables.metrics_table(measures, column="champion"), (0, 0, 0, 2)))
        if name in report.deflations:
            parts.append(Padding(Text(deflated_sharpe.summary(report.deflations[name])), (0, 0, 0, 2)))
    for name, line in report.failures.items():
        parts += [Text(), Text(printable(f"{name}: {line}"), style="red")]
    return Group(*parts)
