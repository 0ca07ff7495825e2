"""Tests the list of pods that Prometheus reads."""

import json

from orchestrator.decisions.resources import Resources
from orchestrator.launchers.base import ListedPod
from orchestrator.pool.prometheus_targets import PrometheusTargets


def listed(pod_id: str, **metrics: str) -> ListedPod:
    return ListedPod(pod_id, "race", 0.0, 1, Resources(1.0, 1, 0), metrics)


def test_every_role_of_every_listed_pod_is_a_target_with_its_own_labels() -> None:
    targets = PrometheusTargets()
    targets.update([listed("gone", learner="gone:9090")])
    targets.update([listed("p0", learner="p0-learner:9090", evaluator="p0-evaluator:9090"), listed("p1")])
    content_type, body = targets.page() or ("", b"")
    assert content_type == "application/json"
    assert json.loads(body) == [
        {
            "targets": ["p0-learner:9090"],
            "labels": {"pod_id": "p0", "tournament_id": "race", "role": "learner"},
        },
        {
            "targets": ["p0-evaluator:9090"],
            "labels": {"pod_id": "p0", "tournament_id": "race", "role": "evaluator"},
        },
    ]


def test_there_is_no_list_before_the_first_one_and_an_empty_list_is_one() -> None:
    targets = PrometheusTargets()
    assert targets.page() is None
    targets.update([])
    assert targets.page() == ("application/json", b"[]")
