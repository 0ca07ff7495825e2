"""Writes the points of learning curves as CSV and JSON. Pure."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from podrace.cli.terminal import formats
from podrace.client.curve.points import CurvePoint
from podrace.client.hyperparameters import HyperparametersByAgent

COLUMNS = (
    "tournament_id", "agent_id", "algorithm", "seconds", "environment_steps", "mean", "standard_deviation",
    "standard_error", "episodes",
)  # fmt: skip
"""Columns of the CSV file. `agent_id` is `champion` for the champion's curve."""


def csv_text(points: Sequence[CurvePoint]) -> str:
    """Returns the points as CSV, with unrounded numbers."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: formats.cell(value) for name, value in point.values().items()} for point in points)
    return text.getvalue()


def json_values(
    points: Sequence[CurvePoint], failures: Mapping[str, str], known: HyperparametersByAgent
) -> dict[str, Any]:
    """Shape of `curve --json`: the values of the CSV file and `number`, the period (null: the final champion)."""
    return {
        "points": [
            point.values()
            | {
                "number": point.snapshot.number or None,
                "snapshot_agent_id": point.snapshot.agent_id,
                "hyperparameters": known.get(point.snapshot.agent_id),
                "policy_environment_steps": point.snapshot.environment_steps,
                "manifest_digest": point.snapshot.manifest_digest,
            }
            for point in points
        ],
        "failures": [{"manifest_digest": digest, "error": error} for digest, error in failures.items()],
    }
