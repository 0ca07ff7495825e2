"""Builds the tables of docs/monitoring.md: kinds of events, metrics that the sources declare, and alerts."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from markdown_tables import names_table, sentence, table

from podrace.discovery.event_kinds import EVENT_KINDS

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("orchestrator", "leaderboard", "agentpod", "simulators", "podrace")
ALERTS = REPOSITORY / "deploy/compose/alerts.yaml"
KINDS = ("Counter", "Gauge", "Histogram")


def declarations(path: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yields name, kind, text and labels of each metric that a module declares."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KINDS):
            continue
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "prometheus_client":
            name, text, *labels = (ast.literal_eval(argument) for argument in node.args)
            yield name, node.func.attr, text, labels[0] if labels else []


def rows() -> Iterator[Sequence[str]]:
    """Yields a row for each metric, by package and name."""
    for package in PACKAGES:
        found = (each for path in (REPOSITORY / package).rglob("*.py") for each in declarations(path))
        for name, kind, text, labels in sorted(found):
            yield f"`{name}`", kind.lower(), ", ".join(f"`{label}`" for label in labels), sentence(text)


def alerts() -> Iterator[Sequence[str]]:
    """Yields a row for each alert, in the order of the file."""
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            condition = " ".join(rule["expr"].split())
            lasting = f" for {rule['for']}" if "for" in rule else ""
            yield (
                f"`{rule['alert']}`",
                rule["labels"]["severity"],
                f"`{condition}`{lasting}",
                rule["annotations"]["action"],
            )


def tables() -> dict[str, str]:
    """Returns the tables of the page by the name in its template."""
    return {
        "events": names_table(("Kind", "When"), EVENT_KINDS),
        "metrics": table(("Metric", "Kind", "Labels", "Meaning"), rows()),
        "alerts": table(("Alert", "Severity", "Condition", "What to do"), alerts()),
    }
