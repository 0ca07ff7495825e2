"""Evaluates the required node affinity of a pod, as the scheduler does. Pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.launchers.kubernetes.api_client import Object

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def allows(node: Object, affinity: Mapping[str, Any] | None) -> bool:
    """Whether a node matches the required node affinity: any of its terms, and all expressions of the term.

    Preferences, and affinities to other pods, are not evaluated.
    """
    required = ((affinity or {}).get("nodeAffinity") or {}).get(REQUIRED)
    if not required:
        return True
    labels = node["metadata"].get("labels") or {}
    fields = {"metadata.name": node["metadata"].get("name", "")}
    return any(
        all(_matches(labels, each) for each in term.get("matchExpressions") or ())
        and all(_matches(fields, each) for each in term.get("matchFields") or ())
        for term in required.get("nodeSelectorTerms") or ()
        # As for the scheduler, an empty term matches no node.
        if term
    )


def _matches(labels: Mapping[str, str], expression: Object) -> bool:
    value: str | None = labels.get(expression["key"])
    values: Sequence[str] = expression.get("values") or ()
    operator: str = expression["operator"]
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) == (operator == "Exists")
    if operator in ("In", "NotIn"):
        return (value in values) == (operator == "In")
    if value is None or not value.lstrip("-").isdigit():
        return False
    return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
