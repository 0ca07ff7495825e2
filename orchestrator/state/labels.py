"""Reads and writes the labels of a tournament."""

import json
from collections.abc import Mapping

from orchestrator.state import records
from orchestrator.state.database import Transaction
from orchestrator.state.records import LabelsRecord


def labels_of(transaction: Transaction, tournament_id: str) -> dict[str, str]:
    """Returns the labels of a tournament."""
    found = records.find(transaction, LabelsRecord, tournament_id)
    return dict(json.loads(found.labels)) if found else {}


def save_labels(transaction: Transaction, tournament_id: str, labels: Mapping[str, str]) -> None:
    """Replaces the labels of a tournament."""
    if labels or labels_of(transaction, tournament_id):
        records.save(transaction, LabelsRecord(tournament_id, json.dumps(dict(sorted(labels.items())))))
