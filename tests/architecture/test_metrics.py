"""Dashboards, alerts and the collector's configuration against what the services export."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
COMPOSE = REPOSITORY / "deploy/compose"
DASHBOARDS = sorted((COMPOSE / "grafana/dashboards").glob("*.json"))
PACKAGES = ("podrace", "orchestrator", "leaderboard", "agentpod", "simulators")
DECLARED = re.compile(
    r'prometheus_client\.(Counter|Gauge|Histogram)\(\s*"(\w+)"[^)]*?(?:\[([^\]]*)\])?\s*\)', re.DOTALL
)
SUFFIXES = {"Counter": ("_total",), "Gauge": ("",), "Histogram": ("_bucket", "_sum", "_count")}
GIVEN_BY_PROMETHEUS = {"job", "instance", "le", "component", "pod_id", "tournament_id", "role"}
"""Labels that a sample gets where it is collected: `orchestrator.pool.prometheus_targets` gives the last three."""


def exported() -> dict[str, set[str]]:
    """Names of samples, with the labels that each has."""
    found: dict[str, set[str]] = {"process_resident_memory_bytes": set()}
    for package in PACKAGES:
        for path in (REPOSITORY / package).rglob("*.py"):
            for kind, name, labels in DECLARED.findall(path.read_text()):
                for suffix in SUFFIXES[kind]:
                    found[name + suffix] = set(re.findall(r'"(\w+)"', labels))
    return found


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (variable["definition"] for variable in dashboard["templating"]["list"])


def load(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def test_every_package_exports_metrics_under_its_own_name() -> None:
    names = exported()
    assert len(names) > 25
    assert {name.split("_")[0] for name in names} == {"podrace", "process"}


def alerts() -> Iterator[str]:
    for group in yaml.safe_load((COMPOSE / "alerts.yaml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"] if "up{" not in rule["expr"])


@pytest.mark.parametrize("path", [*DASHBOARDS, COMPOSE / "alerts.yaml"], ids=lambda path: path.name)
def test_every_metric_of_a_dashboard_or_an_alert_is_exported_with_the_labels_it_is_asked_for(path: Path) -> None:
    names = exported()
    for expression in expressions(load(path)) if path.suffix == ".json" else alerts():
        used = re.findall(r"\b((?:podrace|process)_\w+)(?:\{([^}]*)\})?", expression)
        assert used, f"{path.name}: {expression!r} names no metric"
        for name, selector in used:
            assert name in names, f"{path.name}: no package exports {name}"
            asked = set(re.findall(r"(\w+)\s*=~?", selector))
            assert asked <= names[name] | GIVEN_BY_PROMETHEUS, f"{path.name}: {name} has no {asked - names[name]}"
        for labels in re.findall(r"\bby \(([^)]*)\)", expression):
            known = set().union(*(names[name] for name, _ in used)) | GIVEN_BY_PROMETHEUS
            assert {label.strip() for label in labels.split(",")} <= known, expression


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_a_dashboard_is_one_that_grafana_can_provision(path: Path) -> None:
    dashboard = load(path)
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= dashboard.keys()
    source = (COMPOSE / "grafana/provisioning/datasources/prometheus.yaml").read_text()
    identities = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identities)) == len(identities)
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert all(f"uid: {target['datasource']['uid']}\n" in source for target in panel["targets"])


def test_dashboards_have_names_of_their_own() -> None:
    uids = [load(path)["uid"] for path in DASHBOARDS]
    assert len(set(uids)) == len(DASHBOARDS) >= 2
